"""The way back from an upgrade: a batch that a function may have got is repeated, and never planned anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.model.graphs import graph, step
from tests.unit.savepoints.checkpoint_samples import UID, CheckpointSample, streaming_job
from tests.unit.savepoints.interruptions import Died, dying_at
from tests.unit.savepoints.test_writing import read

from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import ForeachBatch, Source
from flintlock.model.streaming.savepoints import MANIFEST
from flintlock.model.streaming.streams import StreamQuery
from flintlock.savepoints.going_back import way_back
from flintlock.savepoints.restoring import Restore, restore_job
from flintlock.savepoints.writing import write_savepoint

FUNCTION = "upsert-v1"


def calling(*paths: str) -> JobGraph:
    """Return a job whose function gets the rows of files."""
    sources = [step(f"in{at}", Source(format="json", paths=(path,), stream=True)) for at, path in enumerate(paths)]
    upsert = step("upsert", ForeachBatch(reference="lib:upsert"), *(source.name for source in sources))
    made = graph(*sources, structs.replace(upsert, query=StreamQuery(uid=FUNCTION)))
    return structs.replace(made, job_type=JobType.STREAMING)


class Upgraded:
    """A job that began from the savepoint of another one after its batch 3, and has failed."""

    def __init__(self, root: Path, job: JobGraph, uid: str) -> None:
        self.job, self.uid = job, uid
        CheckpointSample(root / "old" / uid).commit(4)
        self.savepoint = write_savepoint(
            job, checkpoints=root / "old", parent=root / "s", name="one", spark="4.3.0", now_ms=7, unique="1"
        )
        self.checkpoints = root / "failed"
        restore_job(job, Restore(path=self.savepoint, claim=True), checkpoints=self.checkpoints, new_id="0" * 36)
        self.again = root / "again"
        self.tries = 0

    def begin(self, batch: int = 4) -> None:
        """Plan a batch, and write a state for it, as Spark does before it is committed."""
        for name in (f"sources/0/{batch}", f"offsets/{batch}", f"state/0/0/{batch + 1}.zip"):
            (self.checkpoints / self.uid / name).write_text(f"of the failed job: {name}")
        (self.checkpoints / self.uid / f"offsets/.{batch}.tmp").touch()

    def back(self, former: JobGraph | None = None) -> Path | None:
        self.tries += 1
        return way_back(
            self.job,
            former or self.job,
            savepoint=self.savepoint,
            checkpoints=self.checkpoints,
            unique=str(self.tries),
        )

    def restored(self) -> Path:
        """Restore the former job from where it goes back to; return its checkpoint."""
        found = self.back()
        assert found is not None
        restore_job(self.job, Restore(path=found, claim=True), checkpoints=self.again, new_id="1" * 36)
        return self.again / self.uid


def test_a_job_that_has_begun_nothing_goes_back_to_its_savepoint(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path, calling("/in"), FUNCTION)
    assert upgraded.back() == upgraded.savepoint


def test_a_batch_that_a_function_may_have_got_is_repeated_with_the_same_rows(tmp_path: Path) -> None:
    """The function ignores its number from then on: what is planned anew under it would never arrive."""
    upgraded = Upgraded(tmp_path, calling("/in"), FUNCTION)
    upgraded.begin()
    before = read(upgraded.savepoint)

    checkpoint = upgraded.restored()

    for name in ("offsets/4", "sources/0/4"):
        assert (checkpoint / name).read_text() == f"of the failed job: {name}"
    assert (checkpoint / "sources/0/3").exists()
    assert not (checkpoint / "commits/4").exists()
    assert not (checkpoint / "state/0/0/5.zip").exists(), "the state is that of the former job"
    made = upgraded.back()
    assert made is not None
    assert read(made).queries[0].begun == 4
    assert read(upgraded.savepoint) == before, "it is only read"


def test_a_batch_that_only_a_file_sink_may_have_got_is_planned_anew(tmp_path: Path) -> None:
    """Its log says what it has got; in this one there is nothing."""
    upgraded = Upgraded(tmp_path, streaming_job(out=tmp_path / "out"), UID)
    upgraded.begin()
    assert upgraded.back() == upgraded.savepoint


@pytest.mark.parametrize("batch", [3, 4])
def test_a_batch_that_is_in_the_log_of_a_file_sink_counts_as_done(tmp_path: Path, batch: int) -> None:
    """It is not committed: another query would skip it all the same."""
    upgraded = Upgraded(tmp_path, streaming_job(out=tmp_path / "out"), UID)
    log = tmp_path / "out" / "0" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / str(batch)).write_text("v1")
    assert upgraded.back() == (upgraded.savepoint if batch == 3 else None)


@pytest.mark.parametrize("former", [calling("/elsewhere"), calling("/in", "/in2")])
def test_there_is_no_way_back_where_the_batch_would_be_read_from_other_sources(
    tmp_path: Path, former: JobGraph
) -> None:
    upgraded = Upgraded(tmp_path, calling("/in"), FUNCTION)
    assert upgraded.back(former) == upgraded.savepoint
    upgraded.begin()
    assert upgraded.back(former) is None


def test_there_is_no_way_back_where_the_first_batch_of_a_query_was_begun(tmp_path: Path) -> None:
    """It is not in the savepoint: the former graph would begin with its own batch 0."""
    upgraded = Upgraded(tmp_path, streaming_job(out=tmp_path / "out"), UID)
    both = structs.replace(upgraded.job, vertices=(*upgraded.job.vertices, *calling("/in").vertices))
    assert upgraded.back(both) == upgraded.savepoint
    (upgraded.checkpoints / FUNCTION / "offsets").mkdir(parents=True)
    (upgraded.checkpoints / FUNCTION / "offsets" / "0").touch()
    assert upgraded.back(both) is None


def test_a_savepoint_that_is_damaged_is_no_way_back(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path, calling("/in"), FUNCTION)
    upgraded.begin()
    (saved,) = upgraded.savepoint.glob("queries/*/commits/3")
    text = saved.read_text()
    saved.unlink()
    saved.write_text("x" * len(text))
    assert upgraded.back() is None
    (upgraded.savepoint / MANIFEST).unlink()
    assert upgraded.back() is None


def test_whoever_dies_while_the_batch_is_saved_leaves_a_way_back_that_is_whole_or_none(tmp_path: Path) -> None:
    for number in range(1, 400, 3):
        root = tmp_path / str(number)
        upgraded = Upgraded(root, calling("/in"), FUNCTION)
        upgraded.begin()
        died = False
        try:
            with dying_at(root, number):
                upgraded.back()
        except Died:
            died = True
        place = root / "s" / "one-begun-batch"
        if place.exists():
            assert read(place).queries[0].begun == 4
        assert upgraded.back() == place, "the next one completes it"
        assert not [*place.parent.glob(".*")]
        if not died:
            return
    raise AssertionError("it never came to its end")
