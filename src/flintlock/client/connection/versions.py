"""Whether client and cluster are compatible. Checked before anything is pickled.

A pickled function is bytecode: it needs the same Python, and the PySpark that its code was written against. Releases
that differ only in their patch version are compatible.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from flintlock import __version__
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import Versions


def own_versions() -> Versions:
    """Return what runs here; PySpark is looked up, not imported (empty where it is not installed)."""
    try:
        pyspark = version("pyspark")
    except PackageNotFoundError:
        pyspark = ""
    return Versions(flintlock=__version__, python=f"{sys.version_info.major}.{sys.version_info.minor}", pyspark=pyspark)


def incompatibilities(client: Versions, cluster: Versions, pickles: bool) -> tuple[str, ...]:
    """Return a text for each incompatible product; without pickled functions only Flintlock itself counts."""
    return tuple(
        f"{item.product} is {item.own or 'missing'} here and {item.other or 'missing'} on the cluster"
        for item in client.mismatches(cluster)
        if pickles or item.product == "Flintlock"
    )


def require_compatible(client: Versions, cluster: Versions, pickles: bool) -> None:
    """Raise Refused that names each incompatible version."""
    found = incompatibilities(client, cluster, pickles)
    if found:
        why = "functions are pickled: both sides must run the same" if pickles else "both sides must run the same"
        raise Refused(f"client and cluster versions are incompatible: {'; '.join(found)} ({why} minor versions)")
