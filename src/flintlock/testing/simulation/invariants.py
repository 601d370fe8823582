"""The guarantees to users, checked on a simulated cluster: one seed, one run, one verdict.

The clients here behave as good clients do: they repeat a submission until it is answered, always under the same key.
The checks know nothing of how the components work; they inspect the answers to clients, the files, and the stores.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from msgspec import structs

from flintlock.config.options import INFRASTRUCTURE_ATTEMPTS
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.commands import CancelJob, PingTask
from flintlock.model.errors import Conflict, FlintlockError, InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import AttemptId, JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobQuery, JobSnapshot, JobSubmission
from flintlock.model.operations import Result, SaveMode, Sink
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind
from flintlock.testing.fake_spark import FILES_OF_A_SINK, ROWS_MISSING
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.fault_draws import LONG_LEASE_S, draw_faults
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.operations import RescalingUser
from flintlock.testing.simulation.workload import ObservedJob, draw_cancel_delay_s, draw_job, with_id
from flintlock.testing.virtual_time import Deadlock, VirtualTimeLoop, run_virtual

PATIENCE_S: Final = 1800.0  # in addition to one lease; the longest that was ever observed is a third of it
MAX_STEP_S: Final = 1.0  # CPU time of one step of the loop; a step takes milliseconds, the rest is for slow machines
_INFRASTRUCTURE: Final = (FailureKind.ENGINE_LOST, FailureKind.TASK_MANAGER_LOST, FailureKind.MISSING_INPUT)
#: How often the disk is full in a run. It is drawn for itself: most runs have none, and are left as they are.
_FULL_DISKS: Final = (0, 0, 0, 1, 3)
#: In how many runs users change what their jobs may use.
_CHANGING_RUNS: Final = 0.4


class GuaranteeViolated(AssertionError):
    """A run that violated guarantees to its users; `trace` has the events of the run."""

    def __init__(self, seed: int, violations: list[str], trace: list[str]) -> None:
        super().__init__(f"seed {seed}: " + "; ".join(violations))
        self.seed = seed
        self.violations = violations
        self.trace = trace


def check_seed(seed: int) -> list[str]:
    """Run one seed; return its trace, or raise GuaranteeViolated."""
    random = Random(seed)
    faults = structs.replace(draw_faults(random), full_disks=Random(f"disks-{seed}").choice(_FULL_DISKS))
    run = _Run(seed, random, faults, jobs=random.randint(1, 6))
    try:
        run_virtual(run.main())
    except Deadlock as error:
        run.violations.append(f"every task waits: {error}")
    if run.violations:
        raise GuaranteeViolated(seed, run.violations, run.cluster.trace)
    return run.cluster.trace


class _Run:
    """One cluster, its clients, and the verdict."""

    def __init__(self, seed: int, random: Random, faults: Faults, jobs: int) -> None:
        self._random = random
        self._operating = Random(f"operations-{seed}")  # its own: most runs have no operations and are left as they are
        self._changes_jobs = self._operating.random() < _CHANGING_RUNS
        self._users: list[RescalingUser] = []
        self.cluster = SimulatedCluster(
            random, faults, job_managers=random.randint(1, 3), task_managers=random.randint(1, 2)
        )
        self._leader = self.cluster.job_managers[0]  # where the clients send their calls; see _try_another
        self._jobs = [draw_job(random, number) for number in range(jobs)]
        self.violations: list[str] = []

    async def main(self) -> None:
        """Run clients against the cluster until every job has ended and is cleaned up, then check."""
        for target in self._targets():
            self.cluster.spark.files.content[f"{target}/old"] = "old"
            self.cluster.spark.files.content[f"{target}/_SUCCESS"] = ""
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.cluster.run(), name="cluster")
            faults = self.cluster.faults
            patience_s = faults.until_s + faults.heartbeat_timeout_s + PATIENCE_S
            try:
                async with asyncio.timeout(patience_s):
                    await self._clients()
                    await self._wait_for_cleanup()
            except TimeoutError:
                self.violations.append(f"not over after {patience_s} s: {self._unfinished_jobs()}")
            else:
                await self._check()
            running.cancel()
        self._check_steps()

    def _check_steps(self) -> None:
        """No step of the loop may take long: heartbeats and requests of a real process would wait for it."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop) and loop.longest_step_s > MAX_STEP_S:
            self.violations.append(f"one step of the loop took {loop.longest_step_s:.1f} s: {loop.longest_step}")

    def _gateway(self) -> DispatcherGateway:
        return self._client.connect(DispatcherGateway, self._leader)

    def _try_another(self) -> None:
        """Send the next call to a random JobManager: this one does not lead, or does not answer."""
        self._leader = self._random.choice(self.cluster.job_managers)

    async def _clients(self) -> None:
        self._client = self.cluster.network.process("client")
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                tasks.create_task(self._one_client(job), name=job.key)

    async def _one_client(self, observed: ObservedJob) -> None:
        await asyncio.sleep(self._random.uniform(0.0, min(20.0, self.cluster.faults.until_s)))
        twice, early = self._random.random() < 0.2, self._random.random() < 0.1
        cancel_delay_s = draw_cancel_delay_s(self._random)
        async with asyncio.TaskGroup() as tasks:
            submitting = tasks.create_task(self._submit(observed, observed.graph), name="submit")
            if twice:  # another process of the same user, under the same key, with a job id of its own
                again = with_id(observed.graph, JobId(f"{self._random.getrandbits(128):032x}"))
                tasks.create_task(self._submit(observed, again), name="submit-again")
            elif early:  # before the client knows whether the job was accepted
                tasks.create_task(self._cancel_early(observed, submitting), name="cancel-early")
        async with asyncio.TaskGroup() as tasks:
            if self._changes_jobs and observed.acknowledged is not None:
                tasks.create_task(self._change(observed.acknowledged), name="change")
            if cancel_delay_s is not None:
                await asyncio.sleep(cancel_delay_s)
                await self._cancel(observed)
            await self._watch(observed)

    async def _change(self, job_id: JobId) -> None:
        user = RescalingUser(
            self._operating,
            job_id,
            self.cluster.changes,
            gateway=self._gateway,
            try_another=self._try_another,
            record=self.cluster.record,
        )
        self._users.append(user)
        await user.run()

    async def _submit(self, observed: ObservedJob, graph: JobGraph) -> None:
        while True:
            try:
                answer = await self._gateway().submit_job(
                    JobSubmission(graph=graph, idempotency_key=observed.key, digest=observed.key)
                )
            except InvariantBroken as error:
                self.violations.append(f"{observed.key}: submission met a bug: {error.public}")
                return
            except FlintlockError as error:
                if not error.retryable:
                    self.violations.append(f"{observed.key}: submission refused: {error.public}")
                    return
                self._try_another()
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            if observed.acknowledged not in (None, answer.job_id):
                self.violations.append(f"{observed.key} is two jobs: {observed.acknowledged} and {answer.job_id}")
            observed.acknowledged = answer.job_id
            self.cluster.record(f"{observed.key} acknowledged as {answer.job_id}")
            return

    async def _cancel_early(self, observed: ObservedJob, submitting: asyncio.Task[None]) -> None:
        """Send cancels while the job is being submitted; it need not be known yet."""
        while not submitting.done():
            observed.cancel_sent = True
            try:
                await self._gateway().command(CancelJob(job_id=observed.graph.job_id))
            except FlintlockError:
                await asyncio.sleep(self._random.uniform(0.01, 0.3))
                continue
            observed.cancelled_ids.add(observed.graph.job_id)
            self.cluster.record(f"{observed.key} cancel accepted early")
            return

    async def _cancel(self, observed: ObservedJob) -> None:
        job_id = observed.acknowledged
        while job_id is not None:
            observed.cancel_sent = True
            try:
                await self._gateway().command(CancelJob(job_id=job_id))
            except Conflict:
                return  # it has ended, or is publishing
            except NotFound:
                self.violations.append(f"{observed.key}: acknowledged, but not known when cancelled")
                return
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(0.3)
                continue
            observed.cancelled_ids.add(job_id)
            self.cluster.record(f"{observed.key} cancel accepted")
            return

    async def _watch(self, observed: ObservedJob) -> None:
        """Poll the job until it has ended and the faults are over."""
        while observed.acknowledged is not None:
            try:
                job = await self._gateway().job(JobQuery(job_id=observed.acknowledged))
            except NotFound:
                self.violations.append(f"{observed.key}: acknowledged, but not known")
                return
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(0.5)
                continue
            if not observed.statuses or observed.statuses[-1] is not job.status:
                if observed.statuses and observed.statuses[-1].globally_terminal:
                    self.violations.append(f"{observed.key} was {observed.statuses[-1]}, and now is {job.status}")
                observed.statuses.append(job.status)
            if job.status.globally_terminal and not self.cluster.faulty():
                return
            if self._changes_jobs:
                await self._ping(job)
            await asyncio.sleep(1.0)

    async def _ping(self, job: JobSnapshot) -> None:
        """Query a running attempt. Whether it is answered depends on the faults; nothing may follow from it."""
        running = [each for each in job.executions if each.state is ExecutionState.RUNNING]
        if running:
            some = self._operating.choice(running)
            attempt = AttemptId(job_id=job.graph.job_id, region=some.region, attempt=some.attempt)
            try:
                await self._gateway().query_task(PingTask(attempt=attempt))
            except InvariantBroken as error:
                self.violations.append(f"a query of attempt {attempt} met a bug: {error.public}")
            except FlintlockError:
                return

    async def _wait_for_cleanup(self) -> None:
        """Wait until no job is being run or cleaned up."""
        while self._unfinished_jobs():  # noqa: ASYNC110 (the stores have no event to wait for)
            await asyncio.sleep(5.0)

    def _unfinished_jobs(self) -> list[str]:
        durable = self.cluster.durable.records
        dirty = [str(job_id) for job_id, entry in durable.results.items() if entry.dirty]
        return [*map(str, durable.graphs), *map(str, durable.progress), *dirty]

    async def _check(self) -> None:
        for observed in self._jobs:
            if observed.acknowledged is None:
                continue
            try:
                job = await self._read_job(observed.acknowledged)
            except NotFound:
                self.violations.append(f"{observed.key}: acknowledged, but not known in the end")
                continue
            self.violations += self._outcome_problems(observed, job)
            self.violations += self._file_problems(observed, job)
        for user in self._users:
            await user.check()
            self.violations += user.violations
        self.violations += self.cluster.changes.violations
        self.violations += self.cluster.violations
        self.violations += self.cluster.spark.overlaps
        self.violations += [f"{target} has a false success marker" for target in self.cluster.spark.false_markers]
        self.violations += self._restart_problems()
        self.violations += self._term_problems()
        if self.cluster.faults.leads_throughout and self.cluster.durable.token.epoch > 1:
            self.violations.append("the leader changed, though it had no fault of its own")
        stray = [name for name in self.cluster.spark.files.content if "/.flintlock-" in name or name.startswith("work")]
        if stray:
            self.violations.append(f"left over: {stray}")
        known = {str(job.acknowledged) for job in self._jobs}
        extra = [job_id for job_id in self.cluster.durable.records.ended if str(job_id) not in known]
        if extra:
            self.violations.append(f"jobs that were acknowledged to no client: {extra}")

    async def _read_job(self, job_id: JobId) -> JobSnapshot:
        """Return a job as the present leader knows it. Raises NotFound."""
        while True:
            try:
                return await self._gateway().job(JobQuery(job_id=job_id))
            except Unavailable:
                self._try_another()
                await asyncio.sleep(0.5)

    def _restart_problems(self) -> list[str]:
        """Return the tasks that were started again, where only JobManagers die, for less than a lease: all are adopted.

        Cancelled jobs are excluded: a leader that dies may have ended their tasks without a record of the cancel.
        """
        if not self._only_leaders_fail():
            return []
        uncancelled = {job.acknowledged for job in self._jobs if not job.cancel_sent}
        starts = self.cluster.spark.starts.items()
        return [
            f"task {task} was not adopted, but started again"
            for task, count in starts
            if count > 1 and task[0] in uncancelled
        ]

    def _term_problems(self) -> list[str]:
        """Check that leaders were succeeded only after a death: JobManagers do not depose whom they never reached."""
        faults, terms = self.cluster.faults, self.cluster.durable.token.epoch
        if not faults.closed_ports or terms <= 1 + self.cluster.crashes:
            return []
        return [f"{terms} terms have begun, but only {self.cluster.crashes} processes have died"]

    def _only_leaders_fail(self) -> bool:
        """Return whether running tasks are unaffected by every fault of this run."""
        faults = self.cluster.faults
        lasting = faults.heartbeat_timeout_s >= LONG_LEASE_S or faults.leads_throughout
        return faults.only_job_managers and lasting

    def _outcome_problems(self, observed: ObservedJob, job: JobSnapshot) -> list[str]:
        """Check that a job ends as its own work did, or as it was cancelled; never because a JobManager died."""
        failed, retries = _counted(_failures(job)), observed.retries
        match job.status:
            case JobStatus.FINISHED if observed.acknowledged in observed.cancelled_ids:
                return [f"{observed.key} finished, though its cancel was accepted"]
            case JobStatus.FINISHED if self._only_leaders_fail() and not observed.cancel_sent and _failures(job):
                return [f"{observed.key}: nothing of it failed, but its history says {_failures(job)[0].message}"]
            case JobStatus.FINISHED if failed > retries:
                return [f"{observed.key} was restarted after {failed} failures; its strategy allows {retries}"]
            case JobStatus.FINISHED:
                expected = [vertex for vertex in observed.graph.vertices if isinstance(vertex.operation, Result)]
                stored = set(job.result_names)
                return [f"{observed.key}: the result {v.name} is missing" for v in expected if v.name not in stored]
            case JobStatus.CANCELED if observed.cancel_sent:
                return []
            case JobStatus.FAILED if failed > retries:
                return []
            case status:
                cause = job.exceptions[-1].failure.message if job.exceptions else "no cause"
                return [f"{observed.key} ended {status} ({cause}), without a reason"]

    def _file_problems(self, observed: ObservedJob, job: JobSnapshot) -> list[str]:
        """Check that each target has its former files, or all files of exactly one attempt with their marker."""
        files = self.cluster.spark.files
        problems: list[str] = []
        for vertex in observed.graph.vertices:
            if not isinstance(vertex.operation, Sink) or vertex.operation.path is None:
                continue
            target, mode = vertex.operation.path, vertex.operation.mode
            visible = files.visible(target)
            new = [path for path in visible if not path.endswith("/old")]
            attempts = {files.content[path] for path in new}
            has_old, marked = f"{target}/old" in visible, f"{target}/_SUCCESS" in files.content
            untouched = has_old and not new and marked
            published = (
                len(new) == FILES_OF_A_SINK and len(attempts) == 1 and marked and has_old == (mode is SaveMode.APPEND)
            )
            if not (published or (untouched and job.status is not JobStatus.FINISHED)):
                problems.append(f"{observed.key} ended {job.status}, but {target} holds {visible} of {attempts}")
            if any(ROWS_MISSING in content for content in attempts):
                problems.append(f"{observed.key}: {target} was computed from less than all rows: {attempts}")
        return problems

    def _targets(self) -> list[str]:
        operations = [vertex.operation for job in self._jobs for vertex in job.graph.vertices]
        return [op.path for op in operations if isinstance(op, Sink) and op.path is not None]


def _failures(job: JobSnapshot) -> list[Failure]:
    """Return what failed under the leader that saw the job end."""
    return [entry.failure for root in job.exceptions for entry in (root, *root.concurrent)]


def _counted(failures: list[Failure]) -> int:
    """Return how many of them count against the job's strategy: the first losses of infrastructure do not.

    The end of one incarnation of a TaskManager counts once, whatever it ended.
    """
    lost = [failure.lost_instance for failure in failures if failure.lost_instance is not None]
    repeats = len(lost) - len(set(lost))
    losses = sum(failure.kind in _INFRASTRUCTURE for failure in failures) - repeats
    return len(failures) - repeats - min(losses, INFRASTRUCTURE_ATTEMPTS.default)
