"""The class path of a Spark driver beyond Spark itself: jars by their files, and packages that Spark resolves.

Spark ignores a file of `spark.jars` that is not there and fails later, with the name of a class: it is looked for
before the driver starts. Packages are resolved by Ivy inside of the driver's JVM, into a cache that drivers share and
that Ivy does not lock: one driver at a time resolves.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flintlock.model.checking.dependencies import JARS, PACKAGES

IVY: Final = "spark.jars.ivy"
_UNRESOLVED: Final = re.compile(r"unresolved dependency: ([^\s;#]+)#([^\s;]+);([^\s:]+): ([^],\n]*)")
_LOCAL_SCHEMES: Final = re.compile(r"(?:file|local):(?://)?(?=/)")
_MAGIC: Final = re.compile(r"[*?\[{]")


def missing_jar(conf: Mapping[str, str], directory: str = "") -> str | None:
    """Return the first local file of `spark.jars` that is not there; None if all are.

    `directory`: where relative paths start. Files of other file systems are not looked for.
    """
    for item in conf.get(JARS, "").split(","):
        path = _LOCAL_SCHEMES.sub("", item.strip(), count=1).partition("#")[0]
        if not path or re.match(r"[A-Za-z][\w+.-]+:", path):
            continue
        if not (glob.glob(path, root_dir=directory or None) if _MAGIC.search(path) else _exists(path, directory)):  # noqa: PTH207
            return item.strip()
    return None


def missing_jar_text(jar: str) -> str:
    """Return what is said about a file of `spark.jars` that is not there."""
    return f"spark.jars names {jar!r}, which is not a file on this machine"


def with_class_path(
    conf: Mapping[str, str], *, jars: Iterable[Path] = (), packages: Iterable[str] = (), cache: str
) -> dict[str, str]:
    """Return the settings with these jars and packages beside those that they have, and a cache for packages."""
    result = dict(conf)
    for key, added in ((JARS, [str(jar) for jar in jars]), (PACKAGES, list(packages))):
        if added:
            given = [item.strip() for item in result.get(key, "").split(",") if item.strip()]
            result[key] = ",".join(dict.fromkeys((*given, *added)))
    if cache and result.get(PACKAGES):
        result.setdefault(IVY, cache)
    return result


@contextmanager
def resolving(conf: Mapping[str, str]) -> Generator[None]:
    """Wait until no other driver of this machine resolves packages into the same cache; be the one that does."""
    if not conf.get(PACKAGES) or IVY not in conf:
        yield
        return
    cache = Path(conf[IVY])
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache / "resolving.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def unresolved(log: str, packages: str) -> str | None:
    """Return why packages could not be resolved, by what the driver has logged; None if that was not the cause."""
    found = dict.fromkeys(f"{group}:{name}:{version} ({why})" for group, name, version, why in _UNRESOLVED.findall(log))
    if found:
        return f"the packages {packages} cannot be resolved: {', '.join(found)}"
    return None


def _exists(path: str, directory: str) -> bool:
    return (Path(directory) / path).is_file() if directory or path.startswith("/") else False
