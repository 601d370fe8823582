"""Do client and cluster fit together? Asked before anything is pickled.

A pickled function is bytecode: it needs the same Python, and PySpark that its code was written against. Releases that
differ only in their last number fit.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from flintlock import __version__
from flintlock.config.extras import install_command
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import Versions

_LABELS: Final = {"flintlock": "Flintlock", "python": "Python", "pyspark": "PySpark"}


def own_versions() -> Versions:
    """Return what runs here; PySpark is looked up, not imported (empty where it is not installed)."""
    try:
        pyspark = version("pyspark")
    except PackageNotFoundError:
        pyspark = ""
    return Versions(flintlock=__version__, python=f"{sys.version_info.major}.{sys.version_info.minor}", pyspark=pyspark)


def misfits(client: Versions, cluster: Versions, pickles: bool) -> tuple[str, ...]:
    """Name everything that does not fit; without pickled functions only Flintlock itself has to."""
    asked = tuple(_LABELS) if pickles else ("flintlock",)
    return tuple(
        f"{_LABELS[name]} is {here or 'missing'} here and {there or 'missing'} on the cluster"
        for name in asked
        if _release(here := str(getattr(client, name))) != _release(there := str(getattr(cluster, name)))
    )


def require_fit(client: Versions, cluster: Versions, pickles: bool) -> None:
    """Raise Refused that names each version that does not fit."""
    found = misfits(client, cluster, pickles)
    if found:
        why = "functions are pickled, so both sides must run the same" if pickles else "both sides must speak the same"
        hint = f": {install_command('cluster')}" if pickles and not client.pyspark else ""
        raise Refused(f"client and cluster do not fit: {'; '.join(found)} ({why}){hint}")


def _release(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")[:2])
