"""Runs a streaming region: starts its query in the checkpoint directory of its uid, and follows it to its end.

A query runs in the engine and not here. It ends by a cancel of its task, by a failure, or by itself if its trigger is
`availableNow`; that it ended otherwise is a failure, too, also without an exception. When this process dies, the
TaskManager releases the Spark session of the attempt, which stops the query before another attempt starts it again.

Before it starts, the log of a file sink is compared with the checkpoint. Spark skips each batch that the log has
already, without a message: a query that starts from the beginning, or from an older point, would lose the rows of those
batches.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import structs

from flintlock.config.options import RESTORE_PATH
from flintlock.model.ids import StepName
from flintlock.model.operations import ForeachBatch, Sink, Source
from flintlock.model.regions import region_outputs
from flintlock.model.streaming.checkpoints import QueryProgress, StateRescale, StateRescaled, latest_batch
from flintlock.model.streaming.query_figures import QueryFigures, interval_ms
from flintlock.model.streaming.savepoints import streaming_sources
from flintlock.model.streaming.streams import StreamQuery, TriggerKind
from flintlock.model.tasks import Analysis, DeployTask, FailureKind, StepOutput, TaskFinished
from flintlock.savepoints.checkpoints import planned_batch
from flintlock.savepoints.restoring import is_restored
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.backend import SparkBackend
from flintlock.spark.region.batch import StepFailed, analyze, resolve
from flintlock.spark.region.errors.failures import Interrupted, TaskError
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.plan import StepFrames
from flintlock.spark.region.programs.lasting_tables import LastingTables
from flintlock.spark.region.streaming.query_figures import QueryObserver
from flintlock.spark.region.streaming.query_progress import figures_of, with_batch
from flintlock.spark.region.streaming.query_start import start_comparison, start_query
from flintlock.spark.region.streaming.rescaling import CheckpointInUse, RescaledCheckpoint, RescaleFailed
from flintlock.spark.region.streaming.restored_states import compare_state, note_partitions
from flintlock.spark.region.streaming.sink_log import SinkLog, local_directory, names_in
from flintlock.spark.region.streaming.state_schemas import adopt_schemas
from flintlock.spark.runner_messages import Worked

#: How often the query is observed.
POLL_S: Final = 1.0
#: How long a query waits for the end of another one on its checkpoint, if no lease is longer: by default none is.
PREDECESSOR_S: Final = 120.0
#: How much longer than a lease: engine and runners of a frozen TaskManager are killed, then Spark finds out.
_AFTER_LEASE_S: Final = 30.0
#: How Spark says that another query uses the checkpoint: in its log, in that of a source, in that of a file sink into
#: which both write the same batch, or in the same engine, by the id of the query.
CONCURRENT: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming jobs detected for",  # the same, of a query that has failed: without its error class
    "Multiple streaming queries are concurrently using",
    "Race while writing batch",
    "CONCURRENT_QUERY",
    "another query with same id is already active",
)
_IDLE: Final = "Waiting"  # how Spark's status of a query begins that has looked for rows, and has found none
_ENDED: Final = "StreamingQueryException"  # Spark's error of a query that has failed, and does not run any more
_COMPACT_INTERVAL: Final = 10  # every so many entries of a sink's log, Spark writes one that has all before it


class StreamingTask:
    """One attempt to run one query."""

    def __init__(
        self,
        task: DeployTask,
        backend: SparkBackend,
        frames: StepFrames,
        artifacts: Artifacts,
        *,
        config: Mapping[str, str],
        activity: Callable[[str], None],
        report: Callable[[QueryProgress], None] = lambda _: None,
        watch: Callable[[tuple[QueryFigures, ...]], None] = lambda _: None,
        drain: Callable[[], bool] = lambda: False,
        repartition: Callable[[str, int], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._task: Final = task
        self._backend: Final = backend
        self._frames: Final = frames
        self._artifacts: Final = artifacts
        self._config: Final = config
        self._activity: Final = activity
        self._report: Final = report
        self._watch: Final = watch
        self._drain: Final = drain  # whether the query is to end after the batch that it has begun
        self._repartition: Final = repartition  # a state, to so many partitions; raises RescaleFailed
        self._rescaled: StateRescaled | None = None  # set before the query starts, if it was to be rescaled
        self._now_s: Final = now_s
        self._wait: Final = wait or threading.Event().wait
        self._vertex: Final = region_outputs(task.graph, task.region)[0]
        self._query: Final = self._vertex.query or StreamQuery()
        place = local_directory(self.checkpoint) if task.checkpoint_dir else None
        self._place: Final = place  # of the checkpoint; None: it is not on a file system of this machine
        self._files: Final = None if place is None else RescaledCheckpoint(place)
        self._sink_log: Final = SinkLog(self._vertex, self.checkpoint)
        self._progress: QueryProgress | None = None  # set when the query is started
        every = self._query.trigger.interval if self._query.trigger.kind is TriggerKind.PROCESSING_TIME else ""
        self._figures = QueryFigures(name=str(self._vertex.name), interval_ms=interval_ms(every))
        self._observer: Final = QueryObserver(now_s=now_s)
        self._running: Any = None  # the query, from its start until it is stopped or has ended
        self.in_user_code = False  # the function for batches was being loaded when something failed

    @property
    def checkpoint(self) -> str:
        """The checkpoint directory of the query."""
        return f"{self._task.checkpoint_dir.rstrip('/')}/{self._vertex.uid}"

    @property
    def _patience_s(self) -> float:
        """How long another query on the checkpoint may be a predecessor whose lease has not ended."""
        return max(PREDECESSOR_S, self._task.lease_s + _AFTER_LEASE_S)

    def find_failed_step(self, error: BaseException) -> tuple[StepName | None, BaseException]:
        """Return the step that caused an error, as far as resolving schemas again shows it, and its own error."""
        if isinstance(error, StepFailed):
            return error.step, error.cause
        if self._frames.current_step is not None:
            return self._frames.current_step, error
        return self._frames.find_failed_step(self._vertex.inputs[0], error) or (self._vertex.name, error)

    def begin_drain(self) -> None:
        """Stop the query, from another thread than that of `run`, which then need not wait until it looks again."""
        query = self._running
        if query is not None:
            with suppress(Exception):  # `run` stops it, too
                query.stop()

    def run(self) -> Worked:
        """Run the query to its end. Raises Interrupted when it was stopped, TaskError, or what user code raises."""
        if not self._task.checkpoint_dir:
            raise TaskError(FailureKind.INTERNAL, "the task has no checkpoint directory", self._vertex.name)
        self._check_table()
        self._activity("analysing")
        if self._task.analysis is Analysis.WHOLE:
            analyze(self._frames, self._task.graph, self._config)
        else:
            resolve(self._frames, self._vertex, self._config)
        if self._files is not None:
            self._files.recover()
        self._check_place()
        self._adopt_schemas()
        self._sink_log.check(self._compact_interval())
        self._compare_state()
        give_up_s = self._now_s() + self._patience_s
        while True:
            try:
                if self._task.rescale is not None and self._rescaled is None:
                    self._rescaled = self._rescale(self._task.rescale)
                    self._sink_log.check(self._compact_interval())
                self._run_query()
            except Exception as error:
                if not _is_concurrent(error):
                    if self._reverted(error):
                        continue
                    raise
                if self._now_s() >= give_up_s:
                    raise self._another_query() from error
            else:
                break
            self._activity(f"waiting for the end of another query of {self._vertex.uid}")
            self._wait(POLL_S)
        return Worked(finished=TaskFinished(outputs=(StepOutput(step=self._vertex.name),)))

    def _check_place(self) -> None:
        """Raise TaskError if the checkpoint that an attempt or a restore has made is not on this machine.

        A query without one would start from the beginning. Another attempt may run where it is.
        """
        if self._place is None:
            return
        made = bool(self._task.graph.config.get(RESTORE_PATH.key)) and not is_restored(self._place.parent)
        if made or (self._task.continues and planned_batch(self._place) is None):
            raise TaskError(
                FailureKind.SPARK_TASK,
                f"the checkpoint {self.checkpoint} of this query is not on the machine of this TaskManager, and the"
                " query would start from the beginning: all TaskManagers, and the JobManagers, have to share the"
                " directory state.checkpoints.dir",
                self._vertex.name,
            )

    def _check_table(self) -> None:
        """Raise TaskError if the sink would write a table that does not last."""
        operation = self._vertex.operation
        if isinstance(operation, Sink) and operation.table is not None:
            LastingTables(self._backend.setting).check(operation.table, self._vertex.name)

    def _compact_interval(self) -> int:
        found = self._backend.setting("spark.sql.streaming.fileSink.log.compactInterval") or ""
        return int(found) if found.isdecimal() and int(found) > 0 else _COMPACT_INTERVAL

    def _rescale(self, wanted: StateRescale) -> StateRescaled:
        """Give the state of the query the partitions that are wanted; return what came of it.

        A query without state only had to be restarted. Raises Interrupted, CheckpointInUse, or what the query's pending
        batch raises.
        """
        files, failure = self._files, ""
        if files is None:
            return StateRescaled(
                trigger_id=wanted.trigger_id,
                failure=f"{self.checkpoint} is not a directory that the TaskManager reaches: its state stays as it is",
            )
        if files.partitions in (0, wanted.partitions):
            return StateRescaled(trigger_id=wanted.trigger_id, partitions=files.partitions)
        try:
            failure = files.given_up(wanted)
            if not failure:
                self._run_pending_batch()
                self._activity(f"repartitioning the state of {self._vertex.name}")
                files.rescale(wanted, self._repartition_state)
        except RescaleFailed as error:
            failure = str(error)
        return StateRescaled(trigger_id=wanted.trigger_id, partitions=files.partitions, failure=failure)

    def _repartition_state(self, checkpoint: str, partitions: int) -> None:
        if self._repartition is None:
            raise RescaleFailed("this runner has no engine that repartitions a state")
        self._repartition(checkpoint, partitions)

    def _reverted(self, error: Exception) -> bool:
        """Give a query that has failed on its new state the former one, if it has planned no batch; return whether."""
        wanted, files = self._task.rescale, self._files
        if wanted is None or files is None or not _has_ended(error) or not files.may_revert:
            return False  # one that may still run must not lose its directory
        batch = latest_batch(names_in(f"{self.checkpoint}/offsets"))
        if batch is not None and not self._sink_log.forget(batch):
            return False
        failure = f"the query failed on the repartitioned state: {SparkError(error).message}"
        files.give_up(wanted, failure)
        files.revert()
        self._rescaled = StateRescaled(trigger_id=wanted.trigger_id, partitions=files.partitions, failure=failure)
        return True

    def _run_query(self) -> None:
        """Start the query and follow it until it ends by itself."""
        self._activity(f"starting {self._vertex.name}")
        restored = latest_batch(names_in(f"{self.checkpoint}/commits"))
        query: Any = self._start()
        self._running = query
        self._progress = QueryProgress(
            checkpoint=self.checkpoint,
            restored=restored,
            started_ms=int(time.time() * 1000),
            rescaled=self._rescaled if self._rescaled is not None and self._rescaled.failure else None,
        )
        self._report(self._progress)
        self._activity(f"streaming into {self._vertex.name}")
        drained = False
        try:
            while not drained and not query.awaitTermination(POLL_S):
                self._observe(query)
                if self._goes_on(query):
                    self._report_rescaled()
                drained = self._drain()
            if not drained and (error := query.exception()) is not None:
                raise error
        except Interrupted:
            self._activity(f"stopping {self._vertex.name}")
            with suppress(Exception):  # the TaskManager releases the session, which stops it, too
                query.stop()
            raise
        except Exception as error:
            # A batch that the stop has interrupted may fail; if it fails by itself, it does so again when completed.
            drained = not _is_concurrent(error) and self._drain()
            if not drained:
                if _has_ended(error):
                    with suppress(Exception):  # the batches that it has committed since it was observed last
                        self._observe(query)
                self._report_gone_on()
                raise
        finally:
            self._running = None
        if drained:
            self._complete_batch(query)
            return
        self._observe(query)
        self._report_rescaled()
        if self._drain():
            self._complete_batch(query)
        elif not self._query.ends:
            raise TaskError(
                FailureKind.SPARK_TASK,
                "the query ended without an exception, and was not stopped by its job",
                self._vertex.name,
            )

    def _goes_on(self, query: Any) -> bool:
        """Return whether the query has committed a batch since it was started, or has none to begin.

        Before that it may fail on the state that it was given. Of one without rows, the engine has read the state.
        """
        if self._progress is None or self._progress.rescaled == self._rescaled or self._progress.batches:
            return True
        return str(query.status["message"]).startswith(_IDLE)

    def _report_rescaled(self) -> None:
        """Report that the query was rescaled, once it goes on: one that fails before may get its former state back."""
        if self._progress is not None and self._progress.rescaled != self._rescaled:
            self._progress = structs.replace(self._progress, rescaled=self._rescaled)
            self._report(self._progress)

    def _report_gone_on(self) -> None:
        """Report whether the query that has failed has gone on before that: Spark's figures may not say it yet.

        If it has not, and its job takes the place of another one, that one runs again.
        """
        if self._progress is not None and self._sink_log.has_gone_on(self._progress.restored):
            self._progress = structs.replace(self._progress, gone_on=True)
            self._report(self._progress)

    def _complete_batch(self, query: Any) -> None:
        """Stop the query, and complete the batch that was planned and not committed: nothing is begun after it.

        A stop interrupts a batch, which may be in the sink already. Run once, Spark repeats just that batch.
        """
        self._running = None  # what runs now must not be stopped
        self._activity(f"stopping {self._vertex.name} after its batch")
        query.stop()
        self._run_pending_batch()

    def _run_pending_batch(self) -> None:
        """Complete a batch that was planned and not committed; nothing is begun after it."""
        planned = latest_batch(names_in(f"{self.checkpoint}/offsets"))
        committed = latest_batch(names_in(f"{self.checkpoint}/commits"))
        if planned is None or planned == committed:
            return
        self._activity(f"completing batch {planned} of {self._vertex.name}")
        last: Any = self._start(once=True)
        try:
            while not last.awaitTermination(POLL_S):
                self._observe(last)
        except Interrupted:
            with suppress(Exception):
                last.stop()
            raise
        error = last.exception()
        if error is not None:
            raise error
        self._observe(last)

    def _observe(self, query: Any) -> None:
        """Report how the query is doing, and the batches that it has committed since it was observed last."""
        figures, last = self._observer.observe(self._figures, query)
        if figures is not self._figures:
            self._figures = figures
            self._watch((figures,))
        known = self._progress or QueryProgress(checkpoint=self.checkpoint)
        progress = known if last is None else _with_batches(known, query, last)
        if progress != known:
            self._progress = progress
            self._report(progress)
        if progress.batches != known.batches and self._files is not None and self._rescaled is not None:
            self._files.recover()  # the former checkpoint is not needed any more

    def _start(self, *, once: bool = False) -> Any:
        frame, operation, function = self._frames.output(self._vertex), self._vertex.operation, None
        if isinstance(operation, ForeachBatch):
            self.in_user_code = True
            function = self._artifacts.batch_function(operation)
            self.in_user_code = False
        self._adopt_schemas()
        return start_query(frame, self._vertex, self.checkpoint, function, once=once)

    def _adopt_schemas(self) -> None:
        """Have the state name its own files: it may have come from a savepoint, or from the copy of a rescale."""
        if self._place is not None:
            adopt_schemas(self._place)

    def _compare_state(self) -> None:
        """Raise what Spark raises if the state that was restored is not that of these steps; once after a restore."""
        if self._place is None or self._reads_a_socket():
            return
        if not self._task.attempt.attempt:
            note_partitions(self._task, self._vertex.uid, self._place)

        def start(copy: str) -> Any:
            self._activity(f"comparing the state of {self._vertex.name} with its steps")
            return start_comparison(self._frames.output(self._vertex), self._vertex, copy)

        compare_state(self._place, start, POLL_S)

    def _reads_a_socket(self) -> bool:
        """Return whether a source gives its rows to whoever connects: a query that is only tried would take them."""
        steps = (self._task.graph.vertex(name) for name in streaming_sources(self._task.graph, self._vertex))
        return any(isinstance(step.operation, Source) and step.operation.format == "socket" for step in steps)

    def _another_query(self) -> TaskError:
        return TaskError(
            FailureKind.SPARK_TASK,
            f"another query uses the checkpoint {self.checkpoint}, for more than {self._patience_s:g} s: one that"
            " an earlier attempt left, or one outside of this cluster",
            self._vertex.name,
        )


def _with_batches(known: QueryProgress, query: Any, last: Any) -> QueryProgress:
    """Return the progress with the batches that the query has committed since, the last one of which is given."""
    latest = known.batches[-1].batch if known.batches else -1 if known.restored is None else known.restored
    # Several batches since then: their progress is still remembered by Spark.
    reported = query.recentProgress if int(last["batchId"]) > latest + 1 else [last]
    with suppress(KeyError, TypeError, ValueError):  # figures in a form that is not known fail no query
        for one in reported:
            known = with_batch(known, figures_of(json.loads(one.json)))
    return known


def _has_ended(error: Exception) -> bool:
    """Return whether an error says that the query has failed, and does not run any more."""
    return any(kind.__name__ == _ENDED for kind in type(error).__mro__)


def _is_concurrent(error: Exception) -> bool:
    """Return whether an error says that another query uses the checkpoint."""
    return isinstance(error, CheckpointInUse) or any(text in SparkError(error).message for text in CONCURRENT)
