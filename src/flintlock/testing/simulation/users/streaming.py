"""Streaming jobs during faults: users save, rescale and stop them, and every promise about that is checked.

Promised is, beside what is promised of every operation: a job that was asked to stop ends, and is FINISHED only if it
was; each query has then completed the batch that it had begun, and the savepoint of the stop is of that batch; a job
that could not be saved keeps its checkpoints. A savepoint of a running job is of a committed batch. A rescale that has
completed without a failure has given every state the partitions that were wanted. No batch is missing
in a sink, whatever ended its query. A job is restarted exactly as often as its strategy allows, under all its leaders
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.commands import (
    JobOperation,
    RescaleJob,
    StopJob,
    TriggerOperation,
    TriggerSavepoint,
)
from flintlock.model.ids import JobId, StepName, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType, JobVertex, vertex_id
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import Sink, Source
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.streams import StreamQuery
from flintlock.testing.fakes.fake_spark import FakeSpark
from flintlock.testing.fakes.fake_streams import batches, checkpoint_of, latest, partitions_of, sink_of, written_by
from flintlock.testing.simulation.users.operations import FIRST_CHANGE, ObservedOperation, OperatingUser
from flintlock.testing.simulation.users.savepoints import CHECKPOINTS, SimulatedSavepoints
from flintlock.testing.simulation.workload import UNLIMITED, ObservedJob

#: In how many runs there are streaming jobs.
STREAMING_RUNS: Final = 0.3
#: How often a step of a query fails in such a run.
STREAM_FAILURES: Final = (0.0, 0.0, 0.02, 0.1)
#: How often the state of a query cannot be repartitioned.
RESCALE_FAILURES: Final = 0.2
_RETRIES: Final = (0, 1, 3, UNLIMITED, UNLIMITED)
_REFUSED_S: Final = 20.0  # how much longer a user waits each time that a job cannot be stopped: the disk may be full


def draw_streaming_job(random: Random, number: int) -> ObservedJob:
    """Draw a job with one or two queries. Without a strategy of its own it is restarted without a limit."""
    job_id = JobId(f"{number:032x}")
    retries = random.choice(_RETRIES)
    source = JobVertex(
        id=vertex_id(job_id, "events"),
        name=StepName("events"),
        operation=Source(format="json", paths=("in",), schema="n LONG", stream=True),
    )
    sinks = [
        JobVertex(
            id=vertex_id(job_id, f"files{query}"),
            name=StepName(f"files{query}"),
            operation=Sink(format="parquet", path=f"stream-out/{number}-{query}"),
            inputs=(StepName("events"),),
            query=StreamQuery(uid=f"files{query}-v1"),
        )
        for query in range(random.randint(1, 2))
    ]
    config: dict[str, str] = {}
    if retries != UNLIMITED or random.random() < 0.5:
        config = {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(retries),
            "restart-strategy.fixed-delay.delay": "200 ms",
        }
    graph = JobGraph(
        job_id=job_id,
        name=f"stream-{number}",
        job_type=JobType.STREAMING,
        vertices=(source, *sinks),
        parallelism=1,
        config=config,
    )
    return ObservedJob(key=f"key-{number}", graph=graph, retries=retries)


class StreamingUser(OperatingUser):
    """Saves and rescales one job some times while it runs, and stops it in the end, each until it is answered."""

    def __init__(
        self,
        random: Random,
        observed: ObservedJob,
        job_id: JobId,
        savepoints: SimulatedSavepoints,
        spark: FakeSpark,
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        super().__init__(random, job_id, gateway=gateway, try_another=try_another, record=record)
        self._observed: Final = observed
        self._savepoints: Final = savepoints
        self._spark: Final = spark
        self._rescaling: Final = Random(f"rescales-{job_id}")
        self._partitions = FIRST_CHANGE  # of the next rescale
        self.is_upgraded = False  # whether another job was to take its place: it is stopped for that one

    @property
    def rescaled(self) -> bool:
        """Whether a rescale was sent: its queries are then restarted, without a failure."""
        return any(isinstance(each.trigger.command, RescaleJob) for each in self._operations)

    async def run(self) -> None:
        """Save and rescale the job some times, and stop it; a stop that was refused is triggered again."""
        for _ in range(self._random.choice([0, 0, 1, 3])):
            await asyncio.sleep(self._random.uniform(0.0, 10.0))
            saving = TriggerSavepoint(job_id=self._job_id)
            if not await self._operate(saving, waits=self._random.random() < 0.5):
                break
        for _ in range(self._rescaling.choice([0, 0, 1, 2])):
            await asyncio.sleep(self._rescaling.uniform(0.0, 5.0))
            self._partitions += 1
            if not await self._operate(RescaleJob(job_id=self._job_id, parallelism=self._partitions), waits=True):
                break
        refused = 0
        while not self._observed.ended:
            await asyncio.sleep(self._random.uniform(0.0, self._random.choice([0.0, 1.0, 10.0, 30.0])))
            if refused > 2:
                await asyncio.sleep((refused - 2) * _REFUSED_S)
            refused += 1
            if not await self._operate(StopJob(job_id=self._job_id), waits=True):
                break
        for operation in self._operations:
            await self._await_outcome(operation)

    def problems(self, job: JobSnapshot, *, only_leaders_fail: bool) -> list[str]:
        """Return what is wrong with a job that has ended."""
        found = [problem for vertex in job.graph.vertices for problem in self._query_problems(job, vertex)]
        found += self._stop_problems(job)
        if only_leaders_fail:
            found += self._restart_problems(job)
        return found

    async def _operate(self, command: TriggerSavepoint | RescaleJob | StopJob, *, waits: bool) -> bool:
        """Trigger an operation, and wait for its outcome or not. Returns whether the job had not ended."""
        trigger_id = TriggerId(f"{self._random.getrandbits(128):032x}")
        operation = ObservedOperation(trigger=TriggerOperation(trigger_id=trigger_id, command=command))
        self._operations.append(operation)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._random.choice([1, 1, 2])):  # two processes of one user, with one trigger id
                tasks.create_task(self._trigger(operation), name="trigger")
        if waits:
            await self._await_outcome(operation)
        return operation.acknowledged is not None

    def _may_be_gone(self) -> bool:
        return self._observed.ended

    async def _check_outcome(self, answer: JobOperation, *, is_new: bool) -> None:
        """Check that a savepoint is there and of batches that sinks have, or that states have what was wanted."""
        if isinstance(answer.command, RescaleJob):
            if is_new:
                self._check_partitions(answer)
            return
        if answer.failure is not None:
            return
        if not self._savepoints.has(answer.location):
            self.violations.append(f"operation {answer.trigger_id} has completed, but {answer.location} is none")
            return
        for uid, saved in self._savepoints.batches(answer.location).items():
            written = latest(self._spark.files.content, self._sink(uid))
            if saved > written:
                self.violations.append(f"{uid} was saved after batch {saved}, but its sink has only {written}")

    def _check_partitions(self, answer: JobOperation) -> None:
        """Check the states when the outcome of a rescale is seen first: the user has sent no other one since."""
        queries = [vertex for vertex in self._observed.graph.vertices if vertex.query is not None]
        found = {partitions_of(self._spark.files.content, self._checkpoint(vertex)) for vertex in queries}
        if answer.failure is None and not self._observed.ended and found - {self._partitions, 0}:
            self.violations.append(f"rescale {answer.trigger_id} to {self._partitions} has completed with {found}")

    def _sink(self, uid: str) -> str:
        return next(sink_of(vertex) for vertex in self._observed.graph.vertices if vertex.uid == uid)

    @property
    def was_to_stop(self) -> bool:
        """Whether a stop of its job was acknowledged, whatever has come of it."""
        return any(each.acknowledged for each in self._operations if isinstance(each.trigger.command, StopJob))

    def _checkpoint(self, vertex: JobVertex) -> str:
        return checkpoint_of(f"{CHECKPOINTS}/{self._job_id}", vertex.uid)

    def _query_problems(self, job: JobSnapshot, vertex: JobVertex) -> list[str]:
        """Check that no batch of a sink is missing, and that a query that was stopped has completed its batch."""
        if vertex.query is None:
            return []
        content, what = self._spark.files.content, f"{self._observed.key}: {vertex.uid}"
        written, own = batches(content, sink_of(vertex)), written_by(content, sink_of(vertex), self._job_id)
        if written != list(range(len(written))):
            return [f"{what} has the batches {written}"]
        checkpoint = self._checkpoint(vertex)
        planned, committed = latest(content, f"{checkpoint}/offsets"), latest(content, f"{checkpoint}/commits")
        if job.status is JobStatus.FINISHED and planned != committed:
            return [f"{what} has finished before its batch {planned}"]
        removed = job.status in (JobStatus.FINISHED, JobStatus.CANCELED) and not self._kept(job)
        # Stopped for a job that was cancelled before this one could be saved: its checkpoints may be all that there is.
        unsaved = job.status is JobStatus.FINISHED and self.is_upgraded and not job.successor
        if planned >= 0 and removed and not unsaved and not self._observed.forced:
            return [f"{what} has left its checkpoint behind after {job.status}"]
        if not removed and planned < max(own, default=-1):
            return [f"{what} has lost its checkpoint after {job.status}"]
        return []

    def _stops(self) -> list[JobOperation]:
        """Return the stops with an outcome."""
        outcomes = [each.outcome for each in self._operations if isinstance(each.trigger.command, StopJob)]
        return [each for each in outcomes if each is not None]

    def _kept(self, job: JobSnapshot) -> bool:
        """Return whether a stop has said that the checkpoints are kept, or one for a successor left no savepoint."""
        if job.successor and not self._savepoints.has(self._savepoints.place(job.graph, TriggerId(job.successor))):
            return True
        failures = [each.failure.message for each in self._stops() if each.failure is not None]
        return job.status is JobStatus.FINISHED and any("its checkpoints are kept" in text for text in failures)

    def _stop_problems(self, job: JobSnapshot) -> list[str]:
        """Check that a job is FINISHED only by a stop, and that the savepoint of the stop has all of its batches."""
        key, problems = self._observed.key, list[str]()
        sent = any(isinstance(each.trigger.command, StopJob) for each in self._operations)
        if job.status is JobStatus.FINISHED and not sent and not self.is_upgraded:
            problems.append(f"{key} is FINISHED, though it was not stopped")
        for stop in self._stops():
            if stop.failure is not None:
                continue
            if job.status is not JobStatus.FINISHED:
                problems.append(f"{key} was stopped with the savepoint {stop.location}, and is {job.status}")
            for uid, saved in self._savepoints.batches(stop.location).items():
                written = written_by(self._spark.files.content, self._sink(uid), self._job_id)
                if any(batch > saved for batch in written) or saved > latest(
                    self._spark.files.content, self._sink(uid)
                ):
                    problems.append(f"{key}: {uid} was stopped after batch {saved}, and has written {written}")
        return problems

    def _restart_problems(self, job: JobSnapshot) -> list[str]:
        """Check the count of failures, where nothing but the queries fails, against the strategy.

        A query that fails while it is being cancelled, for a rescale or because another one has failed, was cancelled.
        """
        cancelled = {
            (each.region, each.attempt)
            for each in job.executions
            if each.state is ExecutionState.CANCELED and ExecutionState.CANCELING in each.timestamps
        }
        failures = [each for each in self._spark.stream_failed if each.job_id == self._job_id]
        failed = sum((each.region, each.attempt) not in cancelled for each in failures)
        allowed = self._observed.retries
        queries = sum(vertex.query is not None for vertex in job.graph.vertices)
        key = self._observed.key
        if job.status is JobStatus.FINISHED and failed > allowed:
            return [f"{key}: its queries failed {failed} times, and its strategy allows {allowed} restarts"]
        if job.status is JobStatus.FAILED and not allowed < failed <= allowed + queries:
            return [f"{key} is FAILED after {failed} failures of its queries; its strategy allows {allowed} restarts"]
        return []
