"""Archives of loaded classes, which halve what an engine's start costs.

A Spark driver loads some twenty thousand classes before its first query. A JVM can store them, parsed and linked
(from Java 25 on with profiles of hot code), in a file that the next JVM maps. Writing it takes a minute when the JVM
ends, so it happens only on request (`SparkEngine.record_archive`).

An archive belongs to one Java and one set of jars, and its name identifies them. The JVM checks this as well: one that
does not match, or has a damaged header, is ignored with a line in the log, and the start is as slow as without.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from flintlock.spark.engine.java import Java, java_flags
from flintlock.spark.engine.jvm import spark_home


def archive_file(directory: Path, java: Java) -> Path:
    """Return where the archive for this Java and the installed Spark is, or would be."""
    facts = hashlib.sha256()
    facts.update("\n".join((java.home, *java_flags(java.major, has_vector_module=java.has_vector_module))).encode())
    release = Path(java.home) / "release"
    facts.update(release.read_bytes() if release.is_file() else str(java.major).encode())
    for jar in sorted((spark_home() / "jars").glob("*.jar")):
        status = jar.stat()
        facts.update(f"{jar}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return directory / f"classes-{java.major}-{facts.hexdigest()[:16]}.jsa"


def archive_in_use(directory: str, java: Java) -> str:
    """Return the archive to start with, or an empty string where there is none that this user can read."""
    file = archive_file(Path(directory), java) if directory else None
    return str(file) if file is not None and os.access(file, os.R_OK) else ""
