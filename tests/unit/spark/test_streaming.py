"""A streaming task: how its query is started, followed and stopped, on a Spark that only records its calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from pyspark.errors.exceptions.connect import AnalysisException, StreamingQueryException
from tests.unit.spark.streaming_harness import (
    FILES,
    JOB,
    OTHER_WORDS,
    Clock,
    FakeProgress,
    FakeQuery,
    FakeSpark,
    concurrent,
    streaming,
    task_of,
)

from flintlock.model.operations import ForeachBatch, Sink
from flintlock.model.streaming.checkpoints import (
    MAX_BATCHES,
    MAX_OFFSET,
    BatchFigures,
    QueryProgress,
)
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.streaming.streams import OutputMode, StreamQuery, Trigger, TriggerKind
from flintlock.model.tasks import FailureKind
from flintlock.savepoints.restoring import RESTORED
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.errors.failures import Interrupted, TaskError
from flintlock.spark.region.session_config import session_config
from flintlock.spark.region.streaming.query import PREDECESSOR_S, StreamingTask, latest_batch
from flintlock.spark.region.streaming.query_progress import figures_of, with_batch
from flintlock.spark.region.streaming.sink_log import begin_sink_log


def test_the_query_has_the_checkpoint_of_its_uid() -> None:
    """Whatever the step is called: the next attempt, and a renamed step, find it again."""
    spark = FakeSpark(FakeQuery(False, True))
    trigger = Trigger(kind=TriggerKind.AVAILABLE_NOW)
    done = streaming(spark, StreamQuery(uid="files-v1", trigger=trigger)).run()

    assert [output.step for output in done.finished.outputs] == ["out"]
    assert f"option(checkpointLocation, /checkpoints/{JOB}/files-v1)" in spark.calls
    assert spark.calls[-5:] == [
        f"option(checkpointLocation, /checkpoints/{JOB}/files-v1)",
        "trigger(availableNow=True)",
        "options()",
        "format(parquet)",
        "start(/no-such-directory/out)",
    ]


def test_the_source_is_read_as_a_stream_with_its_watermark() -> None:
    """The one path, with the schema that the step gives."""
    spark = FakeSpark(FakeQuery(Interrupted()))

    with pytest.raises(Interrupted):
        streaming(spark).run()
    assert spark.calls[:6] == [
        "readStream", "options()", "format(json)", "schema(n LONG)", "load(/in)", "withWatermark(ts, 1 minute)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trigger", "call"),
    [
        (Trigger(interval="10 seconds"), "trigger(processingTime=10 seconds)"),
        (Trigger(kind=TriggerKind.REAL_TIME, interval="5 minutes"), "trigger(realTime=5 minutes)"),
    ],
)
def test_triggers_and_output_modes_are_passed_on(trigger: Trigger, call: str) -> None:
    """As Spark's writer takes them."""
    spark = FakeSpark(FakeQuery(Interrupted()))
    query = StreamQuery(uid="u", output_mode=OutputMode.UPDATE, trigger=trigger)

    with pytest.raises(Interrupted):
        streaming(spark, query, Sink(format="console")).run()
    assert call in spark.calls
    assert "outputMode(update)" in spark.calls


def test_a_cancel_stops_the_query() -> None:
    """The task ends after its query, not the other way round."""
    query = FakeQuery(False, False, Interrupted("cancelled"))
    activities: list[str] = []

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), activity=activities.append).run()
    assert query.stopped
    assert activities == ["analysing", "starting out", "streaming into out", "stopping out"]


@pytest.mark.parametrize(
    ("offsets", "commits", "repeated"), [((0, 1), (0,), True), ((0, 1), (0, 1), False), ((), (), False)]
)
def test_a_drained_query_completes_the_batch_that_it_has_begun_and_finishes(
    tmp_path: Path, offsets: tuple[int, ...], commits: tuple[int, ...], repeated: bool
) -> None:
    """A stop interrupts a batch, which may be in the sink already: Spark repeats it, with the same id."""
    first, last = FakeQuery(False, False), FakeQuery(True)
    spark = FakeSpark(first, last)
    asked = iter((False, True))
    for log, batches in (("offsets", offsets), ("commits", commits)):
        (tmp_path / JOB / "files-v1" / log).mkdir(parents=True)
        for batch in batches:
            (tmp_path / JOB / "files-v1" / log / str(batch)).touch()

    sink = Sink(format="parquet", path=str(tmp_path / "out"))
    streaming(spark, sink=sink, checkpoint_dir=str(tmp_path / JOB), drain=lambda: next(asked)).run()

    assert first.stopped
    assert ("trigger(once=True)" in spark.calls, spark.queries == []) == (repeated, repeated)


def test_a_query_that_was_stopped_from_another_thread_to_be_drained_is_not_a_failure(tmp_path: Path) -> None:
    """The batch that it had begun is completed, and what completes it is not stopped by a request that comes late."""
    (tmp_path / JOB / "files-v1" / "offsets").mkdir(parents=True)
    (tmp_path / JOB / "files-v1" / "offsets" / "0").touch()
    first, last = FakeQuery(False, True), FakeQuery(False, True)
    spark = FakeSpark(first, last)
    drained: list[bool] = []

    def report(progress: QueryProgress) -> None:
        del progress
        task.begin_drain()
        drained.append(True)

    def activity(text: str) -> None:
        if "after its batch" in text:
            task.begin_drain()

    sink = Sink(format="parquet", path=str(tmp_path / "out"))
    asked = iter((False, True, True))
    task = streaming(
        spark,
        sink=sink,
        checkpoint_dir=str(tmp_path / JOB),
        report=report,
        activity=activity,
        drain=lambda: next(asked),
    )
    task.run()

    assert drained
    assert first.stopped
    assert "trigger(once=True)" in spark.calls
    assert not last.stopped
    task.begin_drain()
    assert not last.stopped


def test_a_batch_that_fails_while_its_query_is_drained_fails_the_task(tmp_path: Path) -> None:
    (tmp_path / JOB / "files-v1" / "offsets").mkdir(parents=True)
    (tmp_path / JOB / "files-v1" / "offsets" / "0").touch()
    failing = FakeQuery(ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        streaming(FakeSpark(FakeQuery(False), failing), checkpoint_dir=str(tmp_path / JOB), drain=lambda: True).run()


@pytest.mark.parametrize("raised", [True, False])
def test_a_batch_that_the_stop_of_a_drained_query_has_interrupted_is_completed(tmp_path: Path, raised: bool) -> None:
    """A function for batches may fail when Spark interrupts it: the stop surfaces as a failure of the query."""
    (tmp_path / JOB / "files-v1" / "offsets").mkdir(parents=True)
    (tmp_path / JOB / "files-v1" / "offsets" / "0").touch()
    interrupted = StreamingQueryException("java.lang.InterruptedException")
    first, last = FakeQuery(interrupted if raised else True), FakeQuery(True)
    first.failure = None if raised else interrupted
    spark = FakeSpark(first, last)

    sink = Sink(format="parquet", path=str(tmp_path / "out"))
    streaming(spark, sink=sink, checkpoint_dir=str(tmp_path / JOB), drain=lambda: True).run()
    assert "trigger(once=True)" in spark.calls
    assert spark.queries == []

    failing = FakeSpark(FakeQuery(interrupted), FakeQuery(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        streaming(failing, sink=sink, checkpoint_dir=str(tmp_path / JOB), drain=lambda: True).run()
    assert failing.queries == []


def test_a_drained_query_whose_predecessor_is_alive_waits_for_it(tmp_path: Path) -> None:
    """The batch of the predecessor is not completed yet: what is saved would lack it."""
    activities: list[str] = []
    spark = FakeSpark(FakeQuery(concurrent()), FakeQuery(False))
    streaming(spark, checkpoint_dir=str(tmp_path / JOB), activity=activities.append, drain=lambda: True).run()

    assert activities.count("waiting for the end of another query of files-v1") == 1
    assert spark.queries == []


def test_a_query_that_ends_without_our_stop_is_a_failure() -> None:
    """Spark stops a query without an exception in some cases; its job must not seem to have finished."""
    with pytest.raises(TaskError, match="ended without an exception, and was not stopped by its job") as caught:
        streaming(FakeSpark(FakeQuery(False, True))).run()
    assert caught.value.kind is FailureKind.SPARK_TASK


def test_a_failed_query_fails_its_task() -> None:
    """With Spark's own exception."""
    with pytest.raises(AnalysisException, match="no such column"):
        streaming(FakeSpark(FakeQuery(False, AnalysisException("no such column")))).run()


def test_a_query_waits_for_the_end_of_its_predecessor() -> None:
    """`CONCURRENT_STREAM_LOG_UPDATE` uses up no attempt: another query of this uid is alive, and will end."""
    last = FakeQuery(False, Interrupted())
    spark = FakeSpark(FakeQuery(concurrent()), FakeQuery(False, concurrent()), last)
    activities: list[str] = []

    with pytest.raises(Interrupted):
        streaming(spark, activity=activities.append).run()
    assert last.stopped
    assert activities.count("waiting for the end of another query of files-v1") == 2


@pytest.mark.parametrize("text", OTHER_WORDS)
def test_a_query_waits_for_a_predecessor_that_spark_reports_in_other_words(text: str) -> None:
    """In the same engine it is found by the id of the query, and both may write the same batch into a file sink."""
    spark = FakeSpark(FakeQuery(concurrent(text)), FakeQuery(False, Interrupted()))
    activities: list[str] = []

    with pytest.raises(Interrupted):
        streaming(spark, activity=activities.append).run()
    assert activities.count("waiting for the end of another query of files-v1") == 1


def test_the_batches_of_a_query_that_fails_soon_are_reported() -> None:
    """They are committed, whether it was looked at since or not."""
    query, reported = FakeQuery(StreamingQueryException("a batch has failed")), list[QueryProgress]()
    query.progress = [FakeProgress(1)]

    with pytest.raises(StreamingQueryException):
        streaming(FakeSpark(query), report=reported.append).run()
    assert [batch.batch for batch in reported[-1].batches] == [1]


@pytest.mark.parametrize(("continues", "config"), [(True, {}), (False, {"execution.state-recovery.path": "/s/one"})])
def test_a_query_does_not_start_over_where_its_checkpoint_is_missing(
    tmp_path: Path, config: dict[str, str], *, continues: bool
) -> None:
    """Another attempt may find it; a checkpoint that is there is enough."""
    query = StreamQuery(uid="files-v1", trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW))
    task = structs.replace(task_of(Sink(format="console"), query, config), continues=continues)
    spark = FakeSpark(FakeQuery(True), FakeQuery(True))

    with pytest.raises(TaskError, match="is not on the machine of this TaskManager") as missing:
        streaming(spark, query, checkpoint_dir=str(tmp_path / JOB), task=task).run()
    assert missing.value.kind is FailureKind.SPARK_TASK
    (tmp_path / JOB / "files-v1" / "offsets").mkdir(parents=True)
    (tmp_path / JOB / "files-v1" / "offsets" / "0").touch()
    (tmp_path / JOB / RESTORED).touch()
    streaming(spark, query, checkpoint_dir=str(tmp_path / JOB), task=task).run()


def test_a_query_does_not_wait_forever_for_its_predecessor() -> None:
    """The failure says what is wrong, and is retried by the strategy."""
    queries = [FakeQuery(concurrent()) for _ in range(int(PREDECESSOR_S) + 1)]

    with pytest.raises(TaskError, match=f"another query uses the checkpoint /checkpoints/{JOB}/files-v1") as caught:
        streaming(FakeSpark(*queries)).run()
    assert caught.value.kind is FailureKind.SPARK_TASK


def test_a_query_waits_for_its_predecessor_for_as_long_as_a_lease_may_last() -> None:
    """With a long `heartbeat.timeout`, a frozen TaskManager legally has the checkpoint for longer than by default."""
    queries = [*(FakeQuery(concurrent()) for _ in range(300)), FakeQuery(Interrupted())]
    task = structs.replace(task_of(FILES, StreamQuery(uid="files-v1")), lease_s=300.0)

    with pytest.raises(Interrupted):
        streaming(FakeSpark(*queries), task=task).run()


@pytest.mark.parametrize(
    ("sink_log", "offsets", "message"),
    [
        (
            ["0", "1"],
            [],
            "written by another streaming query, up to its batch 1, and this one starts from the beginning",
        ),
        (["9.compact", "10"], ["8", "9"], "has batch 10, but the checkpoint .* ends at batch 9"),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_file_sink_that_is_ahead_is_refused(
    tmp_path: Path, scheme: str, sink_log: list[str], offsets: list[str], message: str
) -> None:
    """Spark would skip the batches that the sink's log has, and lose their rows; no restart can help."""
    task = on_files(tmp_path, FakeSpark(), sink_log, offsets, scheme)

    with pytest.raises(TaskError, match=message) as caught:
        task.run()
    assert caught.value.kind is FailureKind.CONFIGURATION


@pytest.mark.parametrize(("sink_log", "offsets"), [([], []), ([], ["0"]), (["0", "1"], ["0", "1"])])
def test_a_file_sink_that_is_not_ahead_is_continued(tmp_path: Path, sink_log: list[str], offsets: list[str]) -> None:
    """Also one that has the batch that was planned and not committed."""
    task = on_files(tmp_path, FakeSpark(FakeQuery(Interrupted())), sink_log, offsets)

    with pytest.raises(Interrupted):
        task.run()


def on_files(
    directory: Path, spark: FakeSpark, sink_log: list[str], offsets: list[str], scheme: str = ""
) -> StreamingTask:
    """Return a task whose sink and checkpoint have these entries in their logs."""
    out, checkpoints = directory / "out", directory / JOB
    for log, names in ((out / "_spark_metadata", sink_log), (checkpoints / "files-v1" / "offsets", offsets)):
        for name in names:
            log.mkdir(parents=True, exist_ok=True)
            (log / name).touch()
    sink = Sink(format="parquet", path=f"{scheme}{out}")
    return streaming(spark, sink=sink, checkpoint_dir=f"{scheme}{checkpoints}")


@pytest.mark.parametrize(
    ("committed", "log"),
    [(0, {"0"}), (4, {"0", "1", "2", "3", "4"}), (9, {"9.compact"}), (21, {"19.compact", "20", "21"})],
)
def test_a_new_sink_of_a_restored_query_gets_the_log_that_spark_expects(
    tmp_path: Path, committed: int, log: set[str]
) -> None:
    """Spark reads the log from its last compact entry on: none between may be missing."""
    begin_sink_log(f"file://{tmp_path}/out", committed, 10)

    found = tmp_path / "out" / "_spark_metadata"
    assert {path.name for path in found.iterdir()} == log
    assert {path.read_text() for path in found.iterdir()} == {"v1"}
    assert [path.name for path in found.parent.iterdir()] == ["_spark_metadata"]


def test_a_new_sink_of_a_restored_query_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOB / "files-v1" / "commits").mkdir(parents=True)
    (tmp_path / JOB / "files-v1" / "commits" / "4").touch()
    (tmp_path / "out").touch()
    sink = Sink(format="parquet", path=f"{tmp_path}/out/more")

    with pytest.raises(TaskError, match="out/more cannot be written to: Not a directory") as caught:
        streaming(FakeSpark(), sink=sink, checkpoint_dir=str(tmp_path / JOB)).run()
    assert caught.value.kind is FailureKind.CONFIGURATION


def test_the_latest_batch_of_a_log() -> None:
    """Compacted entries count; temporary files do not."""
    assert latest_batch(["1", "19.compact", "20", "x", ".21.tmp"]) == 20
    assert latest_batch([]) is None


def test_a_function_for_batches_is_found_in_the_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls it with the batch and its id; one that cannot be loaded is an error of user code."""
    (tmp_path / "upserts_of_a_test.py").write_text("def upsert(batch, batch_id): batch.append(batch_id)")
    monkeypatch.syspath_prepend(tmp_path)
    spark = FakeSpark(FakeQuery(Interrupted()))
    query = StreamQuery(uid="u")

    each = streaming(spark, query, ForeachBatch(reference="upserts_of_a_test:upsert"), artifacts=Artifacts(tmp_path))
    with pytest.raises(Interrupted):
        each.run()
    batch: list[int] = []
    spark.functions[0](batch, 7)
    assert batch == [7]

    missing = ForeachBatch(reference="not_there_at_all:upsert")
    failing = streaming(FakeSpark(), query, missing, artifacts=Artifacts(tmp_path))
    with pytest.raises(ImportError):
        failing.run()
    assert failing.in_user_code


def test_no_job_can_have_its_queries_stopped_by_another_one() -> None:
    """With Spark's default a copy of a checkpoint stops the original query, without an exception."""
    key = "spark.sql.streaming.stopActiveRunOnRestart"
    order = task_of(FILES, StreamQuery(uid="u"), {key: "true"})

    assert session_config(order, 2)[key] == "false"


def test_committed_batches_are_reported_with_sparks_figures() -> None:
    """Triggers without a batch are not; a batch that came and went between two observations is."""
    query = FakeQuery(False, False, False, Interrupted())
    query.progress = [FakeProgress(0), FakeProgress(1, idle=True), FakeProgress(2), FakeProgress(3)]
    reports: list[QueryProgress] = []

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), report=reports.append).run()

    assert [[batch.batch for batch in report.batches] for report in reports] == [[], [0], [0, 2, 3]]
    assert reports[0].restored is None
    assert reports[1].batches[0] == BatchFigures(
        batch=0,
        started_ms=1767225601500,
        duration_ms=40,
        input_rows=5,
        state_rows=8,
        state_bytes=1024,
        offsets=('{"logOffset":0}',),
        watermark="2026-01-01T00:00:00.000Z",
    )


def test_a_batch_that_runs_is_shown_before_it_is_committed() -> None:
    """What has not changed is not shown again."""
    query = FakeQuery(False, False, False, False, False, Interrupted())
    query.busy = [False, True, True, True, False]
    query.progress = [FakeProgress(0)]
    shown: list[QueryFigures] = []

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), watch=shown.extend).run()

    assert [(figures.batch, figures.running_since_ms > 0) for figures in shown] == [(0, False), (0, True), (0, False)]


def test_a_batch_that_hangs_is_shown_as_behind_and_its_time_grows() -> None:
    """Also the first one, of which there is no progress; with a message when it becomes late, then every 10 s."""
    clock, seconds = Clock(), 90
    query = FakeQuery(*[False] * seconds, Interrupted())
    query.waited, query.busy = clock.wait, [True] * seconds
    shown: list[QueryFigures] = []
    every = StreamQuery(uid="files-v1", trigger=Trigger(interval="5 seconds"))

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), every, watch=shown.extend, clock=clock).run()

    assert [figures.behind_ms for figures in shown] == [0, *(1000 * (6 + 10 * number) for number in range(9))]
    assert [figures.falls_behind for figures in shown] == [False] * 7 + [True] * 3
    assert {figures.batch for figures in shown} == {-1}


@pytest.mark.parametrize("interval", ["5 seconds", ""])
def test_a_query_without_data_and_one_whose_batches_come_in_time_are_not_behind(interval: str) -> None:
    """The time of a batch that has ended is not that of the next one; a query without an interval is never late."""
    clock = Clock()
    query = FakeQuery(*[False] * 80, Interrupted())
    query.waited, query.busy = clock.wait, [True] * 40 if interval else [True] * 80
    query.progress = [FakeProgress(second // 4) for second in range(40)]
    shown: list[QueryFigures] = []
    every = StreamQuery(uid="files-v1", trigger=Trigger(interval=interval))

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), every, watch=shown.extend, clock=clock).run()

    assert {figures.behind_ms for figures in shown} == {0}
    assert len(shown) == 10 + 2 * bool(interval), "one for each batch, when there is no data any more, and 10 s later"
    assert bool(shown[-1].running_since_ms) is not bool(interval)
    assert bool(shown[-1].idle_since_ms) is bool(interval)


def test_a_query_is_idle_until_its_next_batch() -> None:
    clock, quiet = Clock(), 15
    query = FakeQuery(*[False] * (quiet + 3), Interrupted())
    query.waited, query.busy = clock.wait, [False] * quiet + [True] * 3
    query.progress = [*[FakeProgress(0)] * quiet, *[FakeProgress(1)] * 3]
    shown: list[QueryFigures] = []

    with pytest.raises(Interrupted):
        streaming(FakeSpark(query), watch=shown.extend, clock=clock).run()

    states = [(each.batch, each.idle_since_ms > 0) for each in shown]
    assert list(dict.fromkeys(states)) == [(0, False), (0, True), (1, False)]


def test_the_size_of_a_state_is_that_of_its_files_if_its_store_says_it() -> None:
    """RocksDB does; the files that it has written are those that are new."""
    progress = FakeProgress(0)
    custom = {"rocksdbSstFileSize": 5000, "rocksdbBytesCopied": 300}
    progress["stateOperators"] = [{"memoryUsedBytes": 7, "customMetrics": custom}] * 2 + [{"customMetrics": None}]

    figures = figures_of(progress)

    assert figures is not None
    assert (figures.file_bytes, figures.written_bytes, figures.state_bytes) == (10_000, 600, 14)


def test_a_report_has_the_latest_batches_only() -> None:
    """Its size is bounded."""
    progress = QueryProgress(checkpoint="/c")
    for batch in (*range(30), 7):
        progress = with_batch(progress, figures_of(FakeProgress(batch)))

    assert [batch.batch for batch in progress.batches] == list(range(30 - MAX_BATCHES, 30))
    assert [bool(batch.offsets) for batch in progress.batches] == [False] * (MAX_BATCHES - 1) + [True]
    long = FakeProgress(40)
    long["sources"] = [{"endOffset": "x" * 9000}]
    assert [len(text) for text in with_batch(progress, figures_of(long)).batches[-1].offsets] == [MAX_OFFSET]


def test_an_attempt_reports_the_batch_that_it_continues_after(tmp_path: Path) -> None:
    """The last one that was committed."""
    commits = tmp_path / "files-v1" / "commits"
    commits.mkdir(parents=True)
    (commits / "4").touch()
    reports: list[QueryProgress] = []

    with pytest.raises(Interrupted):
        streaming(
            FakeSpark(FakeQuery(Interrupted())),
            sink=Sink(format="parquet", path=str(tmp_path / "out")),
            report=reports.append,
            checkpoint_dir=str(tmp_path),
        ).run()
    assert [report.restored for report in reports] == [4]


@pytest.mark.parametrize(("log", "gone_on"), [("4", False), ("5", True)])
def test_a_query_that_fails_reports_whether_its_sink_has_a_batch_of_it(tmp_path: Path, log: str, gone_on: bool) -> None:
    """Spark's figures have a batch only when it is committed, and after the next poll."""
    for name in ("files-v1/commits/4", "files-v1/offsets/5", f"out/_spark_metadata/{log}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    reports: list[QueryProgress] = []

    with pytest.raises(AnalysisException):
        streaming(
            FakeSpark(FakeQuery(False, AnalysisException("no such column"))),
            sink=Sink(format="parquet", path=str(tmp_path / "out")),
            report=reports.append,
            checkpoint_dir=str(tmp_path),
        ).run()
    assert reports[-1].gone_on is gone_on
