"""The servers of Hadoop for tests: downloaded on demand by Maven, pinned by their hashes.

`python -m tests.cluster.hadoop_artifacts` downloads them, and prints where they are. The clients of YARN and HDFS are
among PySpark's jars; one jar more has the servers, in the version of these clients, and three more are what it needs.
They are stored in the directory HADOOP_JARS, else in `test-cache` of the Python environment (`.venv`), once for each
list. Where they cannot be fetched, tests that need them are skipped, and say why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

#: Coordinates and SHA-256 of each jar. The version of Hadoop is that of PySpark's `hadoop-client-api`.
ARTIFACTS: Final = {
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0":
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    "org.bouncycastle:bcpkix-jdk18on:1.82": "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
    "org.bouncycastle:bcprov-jdk18on:1.82": "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
    "org.bouncycastle:bcutil-jdk18on:1.82": "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
}  # fmt: skip
LIMIT_S: Final = 400


class NotInstallable(Exception):
    """The jars cannot be had on this machine at present, with the reason."""


def install_hadoop(cache: Path | None = None) -> Path:
    """Return the directory with the jars; download them if they are not there. Of several processes one does.

    Raises NotInstallable if they cannot be fetched, RuntimeError if they are not those that are pinned.
    """
    cache = cache or Path(os.environ.get("HADOOP_JARS") or f"{sys.prefix}/test-cache")
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"hadoop-{hashlib.sha256(repr(ARTIFACTS).encode()).hexdigest()[:16]}"
    with (cache / "hadoop.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            _download(target)
            _check(target)
            (target / "complete").touch()
    return target


def _download(directory: Path) -> None:
    """Have Maven copy the jars, without what they depend on, into the directory."""
    maven = shutil.which("mvn")
    if maven is None:
        raise NotInstallable("the servers of Hadoop are downloaded by Maven, and there is no `mvn`")
    (directory / "pom.xml").write_text(_project())
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DexcludeTransitive=true", "-DoutputDirectory=."]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstallable(f"Maven did not download the servers of Hadoop within {LIMIT_S} s") from None
    if done.returncode != 0:
        raise NotInstallable(f"Maven cannot download the servers of Hadoop: {(done.stdout + done.stderr)[-500:]}")


def _project() -> str:
    dependencies = ""
    for coordinates in ARTIFACTS:
        group, name, version = coordinates.split(":")
        dependencies += f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        dependencies += f"<version>{version}</version></dependency>\n"
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>flintlock</groupId><artifactId>tests</artifactId>"
        f"<version>0</version>\n<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def _check(directory: Path) -> None:
    for coordinates, expected in ARTIFACTS.items():
        _, name, version = coordinates.split(":")
        found = hashlib.sha256((directory / f"{name}-{version}.jar").read_bytes()).hexdigest()
        if found != expected:
            raise RuntimeError(f"{coordinates} has the SHA-256 {found}, not {expected}")


if __name__ == "__main__":
    sys.stdout.write(f"{install_hadoop()}\n")
