"""Python environments: one for each content, whole or absent, in use or removed."""

from __future__ import annotations

import errno
import io
import os
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, JobGraph
from flintlock.model.tasks import FailureKind
from flintlock.spark import environments
from flintlock.spark.environments import (
    EnvironmentFailed,
    EnvironmentSource,
    build_environment,
    environment_key,
    environment_places,
    open_environment,
    remove_unused,
    source_of,
)
from flintlock.spark.region.errors.failures import environment_failure
from flintlock.spark.runner.defaults import RunnerDefaults
from flintlock.spark.runner_messages import DedicatedEngine

OWN = f"python{sys.version_info.major}.{sys.version_info.minor}"


def make(directory: Path) -> None:
    directory.mkdir()
    (directory / "content").write_text("whole")


def use_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each use of an environment be a second after the one before."""
    times, utime = iter(range(1, 100)), os.utime

    def used(path: Path) -> None:
        time_s = next(times)
        utime(path, (time_s, time_s))

    monkeypatch.setattr(os, "utime", used)


def whole(cache: Path) -> set[str]:
    return {path.parent.name for path in cache.glob("*/content")}


def test_an_environment_is_built_once_for_its_key(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(directory: Path) -> None:
        built.append(directory)
        make(directory)

    for key in ("a", "a", "b", "a"):
        open_environment(tmp_path, key, build).close()

    assert built == [tmp_path / "a", tmp_path / "b"]
    assert whole(tmp_path) == {"a", "b"}


def test_of_two_at_once_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    building, proceed = threading.Event(), threading.Event()
    built: list[str] = []

    def build(directory: Path) -> None:
        built.append(threading.current_thread().name)
        building.set()
        assert proceed.wait(30)
        make(directory)

    opened: list[str] = []
    threads = [
        threading.Thread(target=lambda: opened.append(open_environment(tmp_path, "a", build).python)) for _ in range(2)
    ]
    threads[0].start()
    assert building.wait(30)
    threads[1].start()
    proceed.set()
    for thread in threads:
        thread.join(30)

    assert len(built) == 1
    assert opened == [str(tmp_path / "a" / "bin" / "python")] * 2


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        make(directory)
        raise EnvironmentFailed("no such package")

    with pytest.raises(EnvironmentFailed):
        open_environment(tmp_path, "a", fail)

    assert whole(tmp_path) == set()
    open_environment(tmp_path, "a", make).close()
    assert whole(tmp_path) == {"a"}


def test_a_part_that_a_dead_process_has_left_is_built_anew(tmp_path: Path) -> None:
    make(tmp_path / "a")  # without its marker
    (tmp_path / "a" / "leftover").touch()

    open_environment(tmp_path, "a", make).close()

    assert not (tmp_path / "a" / "leftover").exists()


def test_the_least_recently_used_ones_are_removed_but_none_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_one_after_the_other(monkeypatch)
    used = open_environment(tmp_path, "used", make)
    for key in ("old", "new", "newer"):
        open_environment(tmp_path, key, make).close()
    make(tmp_path / "part")

    remove_unused(tmp_path, kept=2)

    assert whole(tmp_path) == {"used", "new", "newer"}
    used.close()
    remove_unused(tmp_path, kept=2)
    assert whole(tmp_path) == {"new", "newer"}
    assert {path.name for path in tmp_path.glob("*.lock")} == {"new.lock", "newer.lock"}


def test_a_new_environment_replaces_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "KEPT", 3)
    use_one_after_the_other(monkeypatch)

    for key in ("a", "b", "c", "d", "e"):
        open_environment(tmp_path, key, make).close()

    assert whole(tmp_path) == {"c", "d", "e"}


def graph(*artifacts: tuple[str, ArtifactKind, str]) -> JobGraph:
    return JobGraph(
        job_id=JobId("ab" * 16),
        name="j",
        artifacts=tuple(Artifact(name=name, kind=kind, blob=BlobKey(blob)) for name, kind, blob in artifacts),
    )


def test_the_key_depends_on_content_and_on_what_is_below_and_on_nothing_else() -> None:
    first = graph(("r.txt", ArtifactKind.REQUIREMENTS, "1"), ("a.whl", ArtifactKind.REQUIREMENT_FILE, "2"))
    contents = {"r.txt": "/blobs/1", "a.whl": "/blobs/2", "s.txt": "/blobs/1", "lib.py": "/blobs/9"}
    key = environment_key(source_of(first, contents), ["/site"])

    same = graph(
        ("lib.py", ArtifactKind.PY_FILE, "9"),
        ("a.whl", ArtifactKind.REQUIREMENT_FILE, "2"),
        ("s.txt", ArtifactKind.REQUIREMENTS, "1"),
    )
    other_wheel = graph(("r.txt", ArtifactKind.REQUIREMENTS, "1"), ("a.whl", ArtifactKind.REQUIREMENT_FILE, "3"))
    packed = graph(("r.txt", ArtifactKind.ENVIRONMENT, "1"))

    assert environment_key(source_of(same, contents), ["/site"]) == key
    assert environment_key(source_of(other_wheel, contents), ["/site"]) != key
    assert environment_key(source_of(packed, contents), ["/site"]) != key
    assert environment_key(source_of(first, contents), ["/other"]) != key
    assert source_of(first, contents) == EnvironmentSource(
        content=("requirements::1", "requirement-file:a.whl:2"),
        requirements="/blobs/1",
        files={"a.whl": "/blobs/2"},
    )


def packed(path: Path, *names: str) -> EnvironmentSource:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"#"))
        link = tarfile.TarInfo("bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        archive.addfile(link)
    return EnvironmentSource(content=(), archive=str(path))


def test_a_packed_environment_of_another_python_is_refused(tmp_path: Path) -> None:
    source = packed(tmp_path / "env.tar.gz", "lib/python3.2/site-packages/a.py")

    with pytest.raises(EnvironmentFailed, match=rf"has python3\.2; the cluster needs {OWN}"):
        build_environment(source, tmp_path / "env", [])


def test_what_is_not_a_packed_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_text("no archive")
    source = EnvironmentSource(content=(), archive=str(tmp_path / "env.tar.gz"))

    with pytest.raises(EnvironmentFailed, match="cannot be unpacked"):
        build_environment(source, tmp_path / "env", [])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            EnvironmentFailed("pip says:\nno matching distribution"),
            FailureKind.CONFIGURATION,
        ),
        (EnvironmentFailed("…\nERROR: [Errno 28] No space left on device"), FailureKind.NO_SPACE),
        (OSError(errno.ENOSPC, "No space left on device"), FailureKind.NO_SPACE),
        (OSError(errno.EACCES, "Permission denied"), FailureKind.RUNNER_LOST),
    ],
)
def test_a_full_disk_is_not_the_fault_of_a_job_that_needs_an_environment(error: Exception, kind: FailureKind) -> None:
    """It is tried again later; what pip refuses is not."""
    failure = environment_failure(error)

    assert failure.kind is kind
    assert failure.message.startswith("the job's Python environment cannot be built: ")


def test_environments_are_where_executors_find_them() -> None:
    """The cache of a machine's user is on that machine; the work directory is on all of them."""
    caches, work = Path("/home/flintlock/.cache"), "/shared/work"
    shared = Path("/shared/work/environments")
    assert environment_places(caches, work).of(has_executors=False) == caches / "environments"
    assert environment_places(caches, work).of(has_executors=True) == shared
    assert environment_places(caches, f"file://{work}").of(has_executors=True) == shared


@pytest.mark.parametrize(
    ("work_dir", "python_is_shipped", "reason"),
    [
        ("hdfs:///work", False, "it needs an execution.work-dir that is mounted on all machines, and that is hdfs:///"),
        ("/shared/work", True, "the Python on which it is based: it came with this application of YARN"),
    ],
)
def test_an_environment_that_executors_would_not_find_is_refused(
    work_dir: str, python_is_shipped: bool, reason: str
) -> None:
    places = environment_places(Path("/caches"), work_dir, python_is_shipped=python_is_shipped)

    with pytest.raises(EnvironmentFailed, match=f"executors on other machines would not find it: .*{reason}"):
        places.of(has_executors=True)
    assert places.of(has_executors=False) == Path("/caches/environments")


@pytest.mark.parametrize(
    ("engine", "of_cluster", "of_job", "master"),
    [
        (EngineKind.SHARED, "yarn", "spark://ignored:7077", "yarn"),
        (EngineKind.DEDICATED, "yarn", "local[2]", "local[2]"),
        (EngineKind.DEDICATED, "local[2]", "yarn", "yarn"),
        (EngineKind.AUTO, "local[2]", "yarn", "yarn"),
    ],
)
def test_which_executors_use_the_environment_of_a_job_depends_on_its_driver(
    engine: EngineKind, of_cluster: str, of_job: str, master: str
) -> None:
    defaults = RunnerDefaults(scratch_dir="", dedicated=DedicatedEngine(run_dir="", conf={"spark.master": of_cluster}))
    graph = JobGraph(job_id=JobId("ab" * 16), name="j", engine=engine, config={"spark.master": of_job})

    assert defaults.master_of(graph) == master
