"""A job is restored completely before it starts, or not at all; a savepoint is only read."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.unit.savepoints.checkpoint_samples import UID, CheckpointSample, streaming_job
from tests.unit.savepoints.interruptions import Died, dying_at, observing
from tests.unit.savepoints.test_writing import content

from flintlock.config.options import RESTORE_PATH
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.ids import BlobKey
from flintlock.model.jobgraph import Artifact, JobGraph
from flintlock.model.operations import Source
from flintlock.savepoints.checkpoints import compared_marker
from flintlock.savepoints.restoring import Restore, check_restore, is_restored, restore_job
from flintlock.savepoints.writing import write_savepoint

NEW_ID = "22222222-2222-2222-2222-222222222222"


class Saved:
    """A savepoint of a job after its batch 3, and the place where another one is restored."""

    def __init__(self, root: Path, *uids: str, batches: int = 4) -> None:
        self.root = root
        self.job = streaming_job(*uids, out=root / "out")
        for uid in uids or (UID,):
            CheckpointSample(root / "old" / uid).commit(batches)
        self.path = write_savepoint(
            self.job, checkpoints=root / "old", parent=root / "s", name="one", spark="4.3.0", now_ms=7, unique="1"
        )
        self.checkpoints = root / "new"
        self.tries = 0

    def check(self, job: JobGraph | None = None, *, allow_unclaimed: bool = False, spark: str = "4.3.1") -> None:
        restore = Restore(path=self.path, allow_unclaimed=allow_unclaimed)
        check_restore(job or self.job, restore, spark)

    def restore(self, *, claim: bool = False) -> None:
        restore = Restore(path=self.path, claim=claim)
        self.tries += 1
        restore_job(self.job, restore, checkpoints=self.checkpoints, new_id=NEW_ID.replace("2", str(1 + self.tries)))

    def sink_log(self, *batches: int, number: int = 0) -> None:
        log = self.root / "out" / str(number) / "_spark_metadata"
        log.mkdir(parents=True)
        for batch in batches:
            (log / str(batch)).touch()


def query_id(checkpoint: Path) -> str:
    return json.loads((checkpoint / "metadata").read_text())["id"]


def test_a_restored_query_has_the_saved_files_and_a_new_id(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    before = content(saved.path)
    saved.check()
    saved.restore()

    restored = saved.checkpoints / UID
    assert query_id(restored).startswith("22222222-2222")
    expected = {path.removeprefix(f"queries/{UID}/"): found for path, found in before.items()}
    assert {**content(restored), "metadata": expected["metadata"]} == expected
    assert content(saved.path) == before, "the id of the saved query is not changed through a link"


def test_several_queries_get_different_ids(tmp_path: Path) -> None:
    saved = Saved(tmp_path, "a-v1", "b-v1")
    saved.restore()

    assert query_id(saved.checkpoints / "a-v1") != query_id(saved.checkpoints / "b-v1")


def test_a_claim_keeps_the_ids(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    saved.restore(claim=True)

    assert content(saved.checkpoints / UID) == content(saved.path / "queries" / UID)


@pytest.mark.parametrize(
    ("change", "spark", "fits"),
    [
        ({"job_id": "b" * 32}, "4.3.0", True),
        ({"config": {RESTORE_PATH.key: "/s/one"}}, "4.3.0", True),
        ({"config": {"spark.sql.shuffle.partitions": "7"}}, "4.3.0", False),
        ({"params": {"day": "2026-11-19"}}, "4.3.0", False),
        ({"parallelism": 7}, "4.3.0", False),
        ({"artifacts": (Artifact(name="code.py", blob=BlobKey("c" * 64)),)}, "4.3.0", False),
        ({}, "4.3.1", False),
        ({}, "", False),
    ],
)
def test_a_state_needs_no_comparison_with_the_steps_that_it_was_saved_with(
    tmp_path: Path, change: dict[str, Any], spark: str, fits: bool
) -> None:
    saved = Saved(tmp_path)
    job = structs.replace(saved.job, **change)
    restore_job(job, Restore(path=saved.path), checkpoints=saved.checkpoints, new_id=NEW_ID, spark=spark)
    assert compared_marker(saved.checkpoints / UID).exists() == fits


def test_a_state_is_compared_with_other_steps(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    read, *rest = saved.job.vertices
    assert isinstance(read.operation, Source)
    other = structs.replace(read, operation=structs.replace(read.operation, schema="other LONG"))
    job = structs.replace(saved.job, vertices=(other, *rest))
    restore_job(job, Restore(path=saved.path), checkpoints=saved.checkpoints, new_id=NEW_ID, spark="4.3.0")
    assert not compared_marker(saved.checkpoints / UID).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_where_checkpoints_belong_to_another_user_restored_files_do_too_and_the_saved_ones_do_not(
    tmp_path: Path,
) -> None:
    """They are copies: neither the savepoint, nor what it may link to, is given away."""
    saved = Saved(tmp_path)
    os.chown(tmp_path, 65534, 65534)
    saved.restore()

    restored, file = saved.checkpoints / UID / "commits" / "3", saved.path / "queries" / UID / "commits" / "3"
    owners = {path.stat().st_uid for path in (saved.checkpoints, restored.parent, restored)}
    assert (owners, file.stat().st_uid) == ({65534}, 0)
    assert not restored.samefile(file)


def test_whoever_dies_while_restoring_leaves_queries_that_are_complete_or_not_there(tmp_path: Path) -> None:
    """The next one completes it. Until then nothing says that the job may start."""
    for number in range(1, 1000):
        saved = Saved(tmp_path / str(number), batches=1)
        before = content(saved.path)
        died = False
        try:
            with dying_at(tmp_path / str(number), number):
                saved.restore(claim=True)
        except Died:
            died = True
        if (saved.checkpoints / UID).exists():
            assert content(saved.checkpoints / UID) == content(saved.path / "queries" / UID)
        if is_restored(saved.checkpoints):
            shutil.rmtree(saved.path)
            saved.restore(claim=True)
        else:
            saved.restore(claim=True)
            assert is_restored(saved.checkpoints)
            assert content(saved.path) == before
        assert (saved.checkpoints / UID / "metadata").exists()
        if not died:
            assert number > 20, "it was interrupted at each of its operations"
            return
    raise AssertionError("it never came to its end")


def stale(event: str, path: str) -> None:
    raise OSError(errno.ESTALE, "Stale file handle", path)


def test_a_savepoint_that_cannot_be_listed_now_is_not_damaged(tmp_path: Path) -> None:
    saved = Saved(tmp_path)

    def stale_state(event: str, path: str) -> None:
        if event == "os.scandir" and path.endswith("state"):
            stale(event, path)

    with observing(saved.path, stale_state), pytest.raises(Unavailable, match="Stale file handle"):
        saved.restore()
    saved.restore()


def test_whether_a_job_is_restored_is_not_known_where_its_checkpoints_cannot_be_reached(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    saved.checkpoints = tmp_path / ("x" * 300)  # the error is another one, and as raw as that of a stale mount
    for call in (saved.restore, lambda: is_restored(saved.checkpoints)):
        with pytest.raises(Unavailable, match="cannot be read: File name too long"):
            call()


def test_a_file_with_another_content_is_damage_and_nothing_is_restored(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    file = saved.path / "queries" / UID / "state/0/0/4.zip"
    data = file.read_bytes()
    file.unlink()  # not through the link
    file.write_bytes(data.replace(b"v1", b"v2"))
    saved.check()  # compares sizes only

    with pytest.raises(Invalid, match=r"state/0/0/4\.zip has another content than was saved"):
        saved.restore()
    assert not is_restored(saved.checkpoints)
    assert not (saved.checkpoints / UID).exists()


def test_a_savepoint_that_lacks_a_file_or_is_none_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (saved.path / "queries" / UID / "commits/3").unlink()
    with pytest.raises(Invalid, match="is damaged: queries/files-v1/commits/3 is missing"):
        saved.check()
    (saved.path / "_metadata.json").unlink()
    with pytest.raises(Invalid, match="is not a savepoint that the JobManager can read"):
        saved.check()


def test_a_savepoint_on_storage_that_cannot_be_read_now_is_not_taken_for_none(tmp_path: Path) -> None:
    """Else a job that is to be restored fails, and there is no way back from an upgrade."""
    saved = Saved(tmp_path)
    manifest = saved.path / "_metadata.json"
    manifest.unlink()
    manifest.symlink_to(manifest)  # an error of the file system that is not about a missing or a forbidden file
    with pytest.raises(Unavailable, match="cannot be read"):
        saved.check()


def test_state_that_no_query_takes_is_refused_unless_it_may_be_dropped(tmp_path: Path) -> None:
    saved = Saved(tmp_path, "a-v1", "b-v1")
    job = streaming_job("a-v1", out=tmp_path / "out")
    with pytest.raises(Invalid, match=r"no query of the job takes the state of 'b-v1'.*\(-n\)"):
        saved.check(job)
    saved.check(job, allow_unclaimed=True)


def test_a_sink_that_is_ahead_of_the_savepoint_or_behind_it_is_refused(tmp_path: Path) -> None:
    """Spark would skip the batches in between, or not read the output at all."""
    saved = Saved(tmp_path, "a-v1", "b-v1", "c-v1")
    saved.sink_log(2, 3, 4)
    saved.sink_log(1, 2, number=1)
    saved.sink_log(2, 3, number=2)

    with pytest.raises(Invalid) as refused:
        saved.check()
    ahead, behind = [*refused.value.problems]
    assert "a-v1: the files of step 's0' have batch 4, and the savepoint ends at batch 3" in ahead
    assert "b-v1: the files of step 's1' end at batch 2, and the savepoint at batch 3" in behind


def test_a_sink_on_another_file_system_is_refused(tmp_path: Path) -> None:
    """Whether it is ahead cannot be found out."""
    saved = Saved(tmp_path)
    with pytest.raises(Invalid, match="s3:///0 is ahead of the savepoint cannot be found out"):
        saved.check(streaming_job(out="s3://"))


def test_a_savepoint_of_a_newer_spark_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with pytest.raises(Invalid, match=r"made with Spark 4\.3\.0, and this cluster runs 4\.2\.9"):
        saved.check(spark="4.2.9")
