"""A restored state is compared with the steps that are to use it before their query is started."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.errors.exceptions.connect import StreamingQueryException
from tests.unit.savepoints.checkpoint_samples import CheckpointSample
from tests.unit.spark.streaming_harness import JOB, FakeQuery, FakeSpark, streaming, task_of
from tests.unit.spark.test_state_changes import MISSING, VALUE, raised

from flintlock.model.ids import AttemptId, RegionId
from flintlock.model.operations import Sink, Source
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.savepoints.restoring import RESTORED
from flintlock.spark.region.errors.failures import Interrupted, TaskError
from flintlock.spark.region.streaming.restored_states import compare_state

ALL = Trigger(kind=TriggerKind.AVAILABLE_NOW)


@pytest.fixture
def sample(tmp_path: Path) -> CheckpointSample:
    """The checkpoint of a query, restored from a savepoint after its third batch."""
    found = CheckpointSample(tmp_path / JOB / "files-v1")
    found.commit(3)
    (tmp_path / JOB / RESTORED).touch()
    return found


class Started:
    """Starts a query, and looks at the checkpoint that it was given."""

    def __init__(self, *outcomes: bool | BaseException) -> None:
        self.query = FakeQuery(*outcomes)
        self.offsets: dict[str, str] = {}
        self.commits: list[str] = []
        self.query_id = ""
        self.place: Path | None = None

    def __call__(self, checkpoint: str) -> Any:
        self.place = Path(checkpoint)
        self.offsets = {path.name: path.read_text() for path in (self.place / "offsets").iterdir()}
        self.commits = sorted(path.name for path in (self.place / "commits").iterdir())
        self.query_id = json.loads((self.place / "metadata").read_text())["id"]
        return self.query


def below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_batch_that_compares_has_no_rows_and_leaves_nothing(sample: CheckpointSample) -> None:
    before = below(sample.directory.parent)
    start = Started(False, True)
    compare_state(sample.directory, start, 1.0)

    assert start.commits == ["1", "2"]
    assert start.offsets["3"] == start.offsets["2"], "it ends where the last one has ended"
    assert start.query_id != json.loads((sample.directory / "metadata").read_text())["id"]
    assert below(sample.directory.parent) == {**before, ".files-v1.compared": b""}, "but that it was compared"


def test_a_state_that_does_not_fit_fails_before_a_batch_is_planned(sample: CheckpointSample) -> None:
    before = below(sample.directory.parent)

    with pytest.raises(StreamingQueryException, match="VALUE_SCHEMA_NOT_COMPATIBLE"):
        compare_state(sample.directory, Started(raised(VALUE)), 1.0)
    assert below(sample.directory.parent) == before


def test_steps_that_need_a_state_where_none_was_saved_fail_for_good(sample: CheckpointSample) -> None:
    """Only where the savepoint had none: elsewhere a directory may be missing because storage is not complete."""
    compare_state(sample.directory, Started(raised(MISSING)), 1.0)
    (sample.directory / "state").rename(sample.directory.parent / "state")

    with pytest.raises(TaskError, match="files-v1: the query was saved without a state"):
        compare_state(sample.directory, Started(raised(MISSING)), 1.0)


def test_another_error_is_left_to_the_query(sample: CheckpointSample) -> None:
    """It is restarted by the strategy of its job."""
    start = Started(raised("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred. SQLSTATE: 58030"))
    compare_state(sample.directory, start, 1.0)
    assert start.place is not None


def test_a_cancel_ends_the_comparison(sample: CheckpointSample) -> None:
    start = Started(False, Interrupted())

    with pytest.raises(Interrupted):
        compare_state(sample.directory, start, 1.0)
    assert start.query.stopped
    assert [*sample.directory.parent.glob(".files-v1.*")] == []


@pytest.mark.parametrize("death", [SystemExit(), StreamingQueryException("[UNAVAILABLE] the engine has died")])
def test_a_comparison_that_did_not_come_to_its_end_is_made_by_the_next_attempt(
    sample: CheckpointSample, death: BaseException
) -> None:
    """And by no attempt after that one."""
    with suppress(SystemExit):
        compare_state(sample.directory, Started(False, death), 1.0)
    with pytest.raises(StreamingQueryException, match="VALUE_SCHEMA_NOT_COMPATIBLE"):
        compare_state(sample.directory, Started(raised(VALUE)), 1.0)
    compare_state(sample.directory, Started(True), 1.0)

    last = Started()
    compare_state(sample.directory, last, 1.0)
    assert last.place is None


def test_a_batch_that_was_begun_is_not_run_by_the_comparison(sample: CheckpointSample) -> None:
    (sample.directory / "offsets" / "3").write_text("v1\n{}\n")
    start = Started(True)
    compare_state(sample.directory, start, 1.0)
    assert start.offsets["3"] == start.offsets["2"]


def test_only_a_restored_checkpoint_is_compared(sample: CheckpointSample) -> None:
    (sample.directory.parent / RESTORED).unlink()
    start = Started()
    compare_state(sample.directory, start, 1.0)
    assert start.place is None


def test_another_number_of_sources_fails_for_good(sample: CheckpointSample) -> None:
    """Spark counts them by its plan: one that two steps read may be two."""
    text = "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query."

    with pytest.raises(TaskError, match=r"files-v1: There are \[1\] sources .* now there are \[2\]\. The number"):
        compare_state(sample.directory, Started(StreamingQueryException(f"{text} Cannot continue.")), 1.0)


@pytest.mark.parametrize(("attempt", "form", "compared"), [(0, "json", True), (1, "json", True), (0, "socket", False)])
def test_the_first_attempt_after_a_restore_compares_the_state(  # noqa: PLR0917 - parameters and fixtures
    sample: CheckpointSample,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    attempt: int,
    form: str,
    compared: bool,
) -> None:
    """Also a later one whose predecessor died before. Rows of a socket would be taken from the query itself."""
    spark = FakeSpark(FakeQuery(True), FakeQuery(True)) if compared else FakeSpark(FakeQuery(True))
    query, activities = StreamQuery(uid="files-v1", trigger=ALL), list[str]()
    task = task_of(Sink(format="console"), query)
    source, sink = task.graph.vertices
    source = structs.replace(source, operation=Source(format=form, paths=("/in",), schema="n LONG", stream=True))
    task = structs.replace(
        task,
        attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=attempt),
        graph=structs.replace(task.graph, vertices=(source, sink), parallelism=4),
    )
    streaming(spark, query, activity=activities.append, checkpoint_dir=str(tmp_path / JOB), task=task).run()

    said = "the state of files-v1 keeps the partitions with which it was saved, 1; the job asks for 4"
    assert (said in capsys.readouterr().err) is (compared and not attempt), "once is enough"
    assert ("comparing the state of out with its steps" in activities) is compared
    assert ("format(noop)" in spark.calls) is compared
    assert spark.queries == []
