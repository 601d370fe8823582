"""Which savepoints a JobManager makes, and where."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.savepoints.checkpoint_samples import UID, CheckpointSample, streaming_job
from tests.unit.savepoints.interruptions import observing

from flintlock.config.options import RESTORE_PATH
from flintlock.model.errors import Conflict, Forbidden, Invalid, Refused, Unavailable
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.savepoints import writing
from flintlock.savepoints.service import SavepointFiles

TRIGGER = TriggerId("7" * 32)
JOB = streaming_job()


def service(tmp_path: Path, *, confined: bool = False, checkpoints: str = "") -> SavepointFiles:
    CheckpointSample(tmp_path / "checkpoints" / JOB.job_id / UID).commit(2)
    return SavepointFiles(
        checkpoints or f"file://{tmp_path}/checkpoints",
        str(tmp_path / "savepoints"),
        spark="4.3.0",
        clock_ms=lambda: 7,
        confined=confined,
    )


@pytest.mark.parametrize("directory", ["", "elsewhere"])
def test_a_savepoint_is_made_in_the_configured_or_in_the_requested_directory(tmp_path: Path, directory: str) -> None:
    requested = str(tmp_path / directory) if directory else ""

    location = asyncio.run(service(tmp_path).save(JOB, TRIGGER, requested))

    parent = tmp_path / (directory or "savepoints")
    assert location == str(parent / f"savepoint-{JOB.job_id[:6]}-{TRIGGER}")
    assert (Path(location) / "_metadata.json").exists()


def test_a_batch_job_has_no_savepoints(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="is a batch job"):
        asyncio.run(service(tmp_path).save(structs.replace(JOB, job_type=JobType.BATCH), TRIGGER, ""))


@pytest.mark.parametrize("place", ["hdfs://nn/savepoints", "savepoints", "/sav\0epoints"])
def test_a_place_that_is_no_directory_of_this_machine_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(Refused, match="is not a directory that the JobManager can reach"):
        asyncio.run(service(tmp_path).save(JOB, TRIGGER, place))
    with pytest.raises(Refused, match="is not a directory that the JobManager can reach"):
        asyncio.run(service(tmp_path).prepare(place))
    with pytest.raises(Refused, match=r"state\.checkpoints\.dir"):
        asyncio.run(service(tmp_path, checkpoints="s3://bucket/checkpoints").save(JOB, TRIGGER, ""))


def test_where_jobs_run_as_another_user_savepoints_are_made_below_the_configured_directory_only(tmp_path: Path) -> None:
    """Else a user could have the JobManager's user write to any place."""
    confined = service(tmp_path, confined=True)
    with pytest.raises(Forbidden, match="is not below"):
        asyncio.run(confined.save(JOB, TRIGGER, str(tmp_path / "savepoints" / ".." / "other")))

    assert asyncio.run(confined.save(JOB, TRIGGER, str(tmp_path / "savepoints" / "mine")))


def test_a_directory_for_savepoints_is_made_and_checked_before_a_job_is_stopped(tmp_path: Path) -> None:
    files = service(tmp_path)
    asyncio.run(files.prepare(""))
    assert [*(tmp_path / "savepoints").iterdir()] == []
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"no savepoint can be made in .*: File exists"):
        asyncio.run(files.prepare(str(tmp_path / "file")))


def test_checkpoints_that_are_not_as_spark_writes_them_are_a_savepoint_that_is_not_made(tmp_path: Path) -> None:
    """The error concerns the operation, and not the leader that carries it out."""
    files = service(tmp_path)
    (tmp_path / "checkpoints" / JOB.job_id / UID / "offsets" / "1").write_bytes(b"v1\n\xff")
    with pytest.raises(Unavailable, match=r"the savepoint .* could not be made: .*invalid start byte"):
        asyncio.run(files.save(JOB, TRIGGER, ""))
    assert [*(tmp_path / "savepoints").iterdir()] == []


def test_a_savepoint_whose_directory_cannot_be_synced_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = service(tmp_path)

    def stale(directory: Path) -> None:
        if directory == tmp_path / "savepoints":
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(writing, "sync_directory", stale)
    with pytest.raises(Unavailable, match="Stale file handle"):
        asyncio.run(files.save(JOB, TRIGGER, ""))


def restoring(path: Path, **config: str) -> JobGraph:
    return structs.replace(JOB, job_id=JobId("9" * 32), config={"execution.state-recovery.path": str(path), **config})


def test_a_job_is_restored_from_the_savepoint_that_its_configuration_names(tmp_path: Path) -> None:
    files = service(tmp_path)
    location = Path(asyncio.run(files.save(JOB, TRIGGER, "")))
    job = restoring(location)
    asyncio.run(files.check_restore(job))
    assert not asyncio.run(files.is_restored(job))

    asyncio.run(files.restore(job))

    assert asyncio.run(files.is_restored(job))
    assert (tmp_path / "checkpoints" / job.job_id / UID / "commits" / "1").exists()
    assert asyncio.run(files.is_restored(JOB)), "a job that begins anew"


def test_a_sink_that_cannot_be_listed_now_does_not_decide_whether_a_job_fits(tmp_path: Path) -> None:
    files = service(tmp_path)
    job = structs.replace(
        streaming_job(out=tmp_path / "out"),
        config=restoring(Path(asyncio.run(files.save(JOB, TRIGGER, "")))).config,
    )
    log = tmp_path / "out" / "0" / "_spark_metadata"
    log.mkdir(parents=True)

    def stale(event: str, path: str) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    with observing(log, stale), pytest.raises(Unavailable, match="cannot be checked: Stale file handle"):
        asyncio.run(files.check_restore(job))


def test_a_job_that_was_restored_needs_no_savepoint_wherever_savepoints_are_made_now(tmp_path: Path) -> None:
    files = service(tmp_path, confined=True)
    job = restoring(Path(asyncio.run(files.save(JOB, TRIGGER, ""))))
    asyncio.run(files.restore(job))
    elsewhere = SavepointFiles(
        f"file://{tmp_path}/checkpoints", str(tmp_path / "other"), spark="4.3.0", clock_ms=lambda: 7, confined=True
    )

    assert asyncio.run(elsewhere.is_restored(job))


def test_a_job_that_cannot_be_restored_is_refused_with_the_reason(tmp_path: Path) -> None:
    files = service(tmp_path, confined=True)
    location = Path(asyncio.run(files.save(JOB, TRIGGER, "")))
    batch = structs.replace(restoring(location), job_type=JobType.BATCH)
    with pytest.raises(Invalid, match="only a streaming job begins from a savepoint"):
        asyncio.run(files.check_restore(batch))
    with pytest.raises(Forbidden, match="made and read only there"):
        asyncio.run(files.check_restore(restoring(tmp_path / "elsewhere")))
    with pytest.raises(Refused, match="is not a directory that the JobManager can reach"):
        asyncio.run(files.check_restore(restoring(Path("relative"))))


def test_where_jobs_run_as_another_user_no_sink_is_taken_back(tmp_path: Path) -> None:
    """Their code could exchange a directory of the sink for a link while the JobManager moves files."""
    files = service(tmp_path, confined=True)
    location = Path(asyncio.run(files.save(JOB, TRIGGER, "")))
    job = restoring(location, **{"execution.state-recovery.rewind-sinks": "true"})
    for refused in (files.check_restore, files.restore):
        with pytest.raises(Forbidden, match="moves no files in their sinks"):
            asyncio.run(refused(job))
    with pytest.raises(Forbidden, match="moves no files in their sinks"):
        asyncio.run(files.check_upgrade(JOB, job))
    assert not asyncio.run(files.is_restored(job))

    asyncio.run(service(tmp_path).restore(job))
    asyncio.run(files.restore(job))
    assert asyncio.run(files.is_restored(job)), "one that was restored before goes on"


def test_a_path_through_a_loop_of_links_is_refused_where_jobs_run_as_another_user(tmp_path: Path) -> None:
    """Python 3.11 raises RuntimeError for it."""
    files = service(tmp_path, confined=True)
    (tmp_path / "savepoints").mkdir()
    (tmp_path / "savepoints" / "loop").symlink_to(tmp_path / "savepoints" / "loop")
    path = str(tmp_path / "savepoints" / "loop" / "one")
    for call in (files.check_disposal(path), files.dispose(path, ""), files.save(JOB, TRIGGER, path)):
        with pytest.raises(Refused, match="leads to no directory: Symlink loop"):
            asyncio.run(call)


def test_what_is_disposed_of_is_what_was_there_when_it_was_checked(tmp_path: Path) -> None:
    """The disposal may be repeated by the next leader, when another savepoint has the path."""
    files = service(tmp_path)
    location = Path(asyncio.run(files.save(JOB, TRIGGER, "")))
    first = asyncio.run(files.check_disposal(str(location)))
    asyncio.run(files.dispose(str(location), first))
    CheckpointSample(tmp_path / "checkpoints" / JOB.job_id / UID).commit(3)
    asyncio.run(files.save(JOB, TRIGGER, ""))

    asyncio.run(files.dispose(str(location), first))

    second = asyncio.run(files.check_disposal(str(location)))
    assert second != first
    asyncio.run(files.dispose(str(location), second))
    assert [*location.parent.iterdir()] == []


def test_storage_that_does_not_answer_is_not_taken_for_a_path_without_a_savepoint(tmp_path: Path) -> None:
    files = service(tmp_path)
    location = asyncio.run(files.save(JOB, TRIGGER, ""))

    def stale(event: str, path: str) -> None:
        if event == "open":
            raise OSError(errno.ESTALE, "Stale file handle", path)

    with observing(Path(location), stale), pytest.raises(Unavailable, match="Stale file handle"):
        asyncio.run(files.check_disposal(location))
    with pytest.raises(Invalid, match="File name too long"):
        asyncio.run(files.check_disposal(location + "x" * 300))


SUCCESSOR = structs.replace(
    JOB,
    job_id=JobId("e" * 32),
    config={"execution.upgrade-of": JOB.job_id},
)


def test_an_upgrade_is_compared_with_where_the_job_is_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its sinks are ahead of what is compared, and its sources have cleaned up: the job goes on until it is stopped."""
    files = service(tmp_path)
    asyncio.run(files.check_upgrade(JOB, SUCCESSOR))
    assert [*(tmp_path / "savepoints").iterdir()] == []

    with pytest.raises(Invalid, match="no query of the job takes the state of 'files-v1'"):
        asyncio.run(files.check_upgrade(JOB, structs.replace(streaming_job("other-v1"), job_id=SUCCESSOR.job_id)))
    assert [*(tmp_path / "savepoints").iterdir()] == []


def test_a_job_goes_back_only_if_its_savepoint_is_there_and_nothing_was_done_after_it(tmp_path: Path) -> None:
    files = service(tmp_path)
    place = files.place(JOB, TriggerId(SUCCESSOR.job_id))
    job = structs.replace(SUCCESSOR, config={**SUCCESSOR.config, "execution.state-recovery.path": place})
    assert asyncio.run(files.way_back(job, JOB)) is None, "its predecessor was not stopped"
    assert not asyncio.run(files.has_gone_on(job))

    assert asyncio.run(files.save(JOB, TriggerId(SUCCESSOR.job_id), "")) == place
    assert asyncio.run(files.way_back(job, JOB)) == place, "it was not restored"
    asyncio.run(files.restore(job))
    assert asyncio.run(files.way_back(job, JOB)) == place
    (tmp_path / "checkpoints" / job.job_id / UID / "offsets" / "2").touch()
    assert asyncio.run(files.way_back(job, JOB)) == place, "a batch that is only planned is done again"
    assert not asyncio.run(files.has_gone_on(job))
    (tmp_path / "checkpoints" / job.job_id / UID / "commits" / "2").touch()
    assert asyncio.run(files.way_back(job, JOB)) is None
    assert asyncio.run(files.has_gone_on(job))
    assert not asyncio.run(files.has_gone_on(JOB)), "it began from no savepoint"


@pytest.mark.parametrize("checkpoints", ["", "s3://bucket/checkpoints"])
def test_what_was_restored_of_a_job_that_is_given_up_is_removed_and_nothing_else(
    tmp_path: Path, checkpoints: str
) -> None:
    files = service(tmp_path, checkpoints=checkpoints)
    restored = structs.replace(JOB, job_id=JobId("d" * 32), config={RESTORE_PATH.key: "/s/one"})
    for job_id in (restored.job_id, JobId("e" * 32)):
        CheckpointSample(tmp_path / "checkpoints" / job_id / UID).commit(1)
    begun = structs.replace(JOB, job_id=JobId("e" * 32))  # it began without a savepoint
    asyncio.run(files.abandon_restore(restored))
    asyncio.run(files.abandon_restore(begun))
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left == {JOB.job_id, begun.job_id} | ({restored.job_id} if checkpoints else set())
