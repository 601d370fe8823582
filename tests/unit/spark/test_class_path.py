"""The class path of a driver: which jars and packages it is given, and what is said where they are not there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from flintlock.spark.engine.class_path import IVY, missing_jar, resolving, unresolved, with_class_path


def test_jars_and_packages_of_a_job_come_beside_those_of_the_settings() -> None:
    given = {"spark.jars": "/opt/a.jar, /opt/b.jar", "spark.jars.packages": "g:a:1", "spark.x": "1"}

    conf = with_class_path(given, jars=[Path("/opt/b.jar"), Path("/s/c.jar")], packages=["g:b:2"], cache="/cache")

    assert conf == {
        "spark.jars": "/opt/a.jar,/opt/b.jar,/s/c.jar",
        "spark.jars.packages": "g:a:1,g:b:2",
        "spark.x": "1",
        IVY: "/cache",
    }


def test_a_configured_cache_of_packages_is_kept_and_none_is_set_without_packages() -> None:
    assert with_class_path({"spark.x": "1"}, cache="/cache") == {"spark.x": "1"}
    assert with_class_path({IVY: "/own"}, packages=["g:a:1"], cache="/cache")[IVY] == "/own"


def test_the_first_jar_that_is_not_there_is_named(tmp_path: Path) -> None:
    there = tmp_path / "there.jar"
    there.touch()

    def missing(jars: str) -> str | None:
        return missing_jar({"spark.jars": jars}, str(tmp_path))

    assert missing(f"{there},file:{there},file://{there},local:{there},there.jar,{tmp_path}/*.jar") is None
    assert missing("s3a://bucket/a.jar,hdfs://host/b.jar,https://host/c.jar") is None
    assert missing(f"{there}, /opt/none.jar ,/opt/other.jar") == "/opt/none.jar"
    assert missing(f"{tmp_path}/*.none") == f"{tmp_path}/*.none"
    assert missing("file:///opt/none.jar") == "file:///opt/none.jar"
    assert missing_jar({}) is None
    assert missing_jar({"spark.jars": "there.jar"}) == "there.jar"  # relative to nothing


def test_one_driver_at_a_time_resolves_into_a_cache(tmp_path: Path) -> None:
    conf = {"spark.jars.packages": "g:a:1", IVY: str(tmp_path / "packages")}

    with resolving(conf):
        other = os.open(tmp_path / "packages" / "resolving.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    with resolving({IVY: str(tmp_path / "unused")}):
        assert not (tmp_path / "unused").exists()


def test_packages_that_cannot_be_resolved_are_named_by_their_coordinates() -> None:
    log = (
        "\t\t::          UNRESOLVED DEPENDENCIES         ::\n"
        "\t\t:: com.nowhere#nothing;1.0: not found\n"
        "Exception in thread main java.lang.RuntimeException: [unresolved dependency: com.nowhere#nothing;1.0: "
        "not found, unresolved dependency: g#a;2: not found]\n"
        "RuntimeException: [unresolved dependency: com.nowhere#nothing;1.0: not found]\n"
    )

    assert unresolved(log, "com.nowhere:nothing:1.0,g:a:2,g:b:3") == (
        "the packages com.nowhere:nothing:1.0,g:a:2,g:b:3 cannot be resolved: "
        "com.nowhere:nothing:1.0 (not found), g:a:2 (not found)"
    )
    assert unresolved("the JVM ran out of memory", "g:a:2") is None
