"""The checkpoints of a job that has failed are what another one can begin from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.savepoints.checkpoint_samples import UID, CheckpointSample, streaming_job
from tests.unit.savepoints.test_restoring import query_id
from tests.unit.savepoints.test_writing import content

from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import JobGraph
from flintlock.savepoints.restoring import Restore, check_restore, restore_job

NEW_ID = "22222222-2222-2222-2222-222222222222"
JOB_ID = "ab" * 16


class Kept:
    """The checkpoints that a job has left, and the place where another one begins from them."""

    def __init__(self, root: Path, *uids: str) -> None:
        self.root = root
        self.path = root / JOB_ID
        self.samples = {uid: CheckpointSample(self.path / uid) for uid in uids or (UID,)}
        for sample in self.samples.values():
            sample.commit(4)
            (sample.directory / "offsets" / ".3.crc").write_text("crc")
        self.job = streaming_job(*uids, out=root / "out")
        self.checkpoints = root / "new"

    def begin(self, uid: str = UID) -> None:
        """Plan batch 4, as a query does that fails in it."""
        sample = self.samples[uid]
        entry = ["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps({"logOffset": 4})]
        (sample.directory / "offsets" / "4").write_text("\n".join(entry))
        (sample.directory / "sources" / "0" / "4").write_text("v1\n/in/4.json")
        sample.snapshot("state/0/0/6.zip")

    def sink_log(self, *batches: int) -> None:
        log = self.root / "out" / "0" / "_spark_metadata"
        log.mkdir(parents=True)
        for batch in batches:
            (log / str(batch)).touch()

    def restore(self, path: Path | None = None, job: JobGraph | None = None, *, claim: bool = False) -> None:
        restore = Restore(path=path or self.path, claim=claim)
        check_restore(job or self.job, restore, "4.3.0")
        restore_job(job or self.job, restore, checkpoints=self.checkpoints, new_id=NEW_ID)


def test_a_job_begins_where_the_query_of_the_other_one_would_have_been_restarted(tmp_path: Path) -> None:
    """With the batch that it had begun: a function, or a file sink, may have that already, by its number."""
    kept = Kept(tmp_path)
    kept.begin()
    kept.sink_log(3, 4)
    before = content(kept.path)
    kept.restore()

    restored = kept.checkpoints / UID
    assert query_id(restored).startswith("22222222-2222")
    assert sorted(path.name for path in (restored / "offsets").iterdir()) == ["2", "3", "4"]
    assert sorted(path.name for path in (restored / "commits").iterdir()) == ["2", "3"]
    assert [path.name for path in (restored / "state" / "0" / "0").glob("*.zip")] == ["4.zip"]
    assert (restored / "sources" / "0" / "4").exists()
    assert content(kept.path) == before


@pytest.mark.parametrize("named", ["", UID])
def test_the_path_that_rest_shows_names_the_checkpoints_of_the_job(tmp_path: Path, named: str) -> None:
    """It is that of one query."""
    kept = Kept(tmp_path, UID, "other-v1")
    kept.restore(kept.path / named, claim=True)

    assert {path.name for path in kept.checkpoints.iterdir()} == {UID, "other-v1", "_restored"}
    assert query_id(kept.checkpoints / UID) == query_id(kept.path / UID)


def test_a_sink_beyond_the_batch_that_was_begun_is_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.begin()
    kept.sink_log(4, 5)

    with pytest.raises(Invalid, match="have batch 5, and the savepoint ends at batch 3"):
        kept.restore()


def test_state_that_no_query_takes_is_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path, UID, "other-v1")
    with pytest.raises(Invalid, match="no query of the job takes the state of 'other-v1'"):
        kept.restore(job=structs.replace(streaming_job(UID, out=tmp_path / "out")))


def test_a_query_without_a_batch_begins_from_the_beginning(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    CheckpointSample(kept.path / "other-v1")
    (kept.path / "other-v1" / "offsets").mkdir()
    kept.restore(job=streaming_job(UID, "other-v1", out=tmp_path / "out"))

    assert {path.name for path in kept.checkpoints.iterdir()} == {UID, "_restored"}


def test_checkpoints_that_lack_a_file_are_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    (kept.path / UID / "state/0/0/4.zip").unlink()
    with pytest.raises(Invalid, match="files-v1 is not complete: state of version 4 is missing"):
        kept.restore()


def test_a_checkpoint_that_a_rescale_has_not_put_into_its_place_is_not_left_out(tmp_path: Path) -> None:
    """Its query would begin from the beginning."""
    kept = Kept(tmp_path, UID, "other-v1")
    (kept.path / "other-v1").rename(kept.path / ".other-v1.replaced")
    with pytest.raises(Invalid, match=r"a rescale has not put \.other-v1\.replaced into its place"):
        kept.restore()


def test_a_directory_without_checkpoints_is_no_savepoint(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match="is not a savepoint that the JobManager can read"):
        kept.restore(tmp_path / "empty")
