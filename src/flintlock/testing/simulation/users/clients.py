"""The clients of a simulated run: they submit jobs, change, cancel and watch them, and remember the answers.

They behave as good clients do: they repeat a submission until it is answered, always under the same key. Some stay
attached to their job and send heartbeats, and some of those leave; some cancel by force, or as an operation.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.commands import CancelJob, OperationQuery, OperationStatus, PingTask, TriggerOperation
from flintlock.model.errors import Conflict, FlintlockError, InvariantBroken, NotFound
from flintlock.model.ids import AttemptId, JobId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import AwaitJob, ClientHeartbeat, JobQuery, JobSnapshot, JobSubmission
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.testing.simulation.checks.durations import duration_problems
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.users.operations import RescalingUser
from flintlock.testing.simulation.users.streaming import StreamingUser
from flintlock.testing.simulation.users.upgrades import UPGRADED, UpgradingUser
from flintlock.testing.simulation.workload import CancelKind, ObservedJob, draw_cancel_delay_s, with_id

#: In how many runs users change what their jobs may use.
_CHANGING_RUNS: Final = 0.4
#: How long a job may go on, in addition to its client's timeout, once its client has left and a leader leads: it has to
#: be recovered, and messages may be late.
_CANCEL_MARGIN_S: Final = 25.0
_NOT_ENDING: Final = (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RECONCILING)


class Clients:
    """All clients of one run, in one process."""

    def __init__(self, seed: int, random: Random, cluster: SimulatedCluster, jobs: list[ObservedJob]) -> None:
        self.violations: Final[list[str]] = []
        self.users: Final[list[RescalingUser | StreamingUser]] = []
        self.streaming: Final[dict[str, StreamingUser]] = {}  # the users of streaming jobs, by the keys of these
        self.upgrading: Final[list[UpgradingUser]] = []
        self._stopping: Final = Random(f"stops-{seed}")
        self._upgrading: Final = Random(f"upgrades-{seed}")
        self._random: Final = random
        self._operating: Final = Random(f"operations-{seed}")  # its own: runs without operations are left as they are
        draws_changes = self._operating.random() < _CHANGING_RUNS
        # A job that is put back from the quarantine has lost its operations: an operator decides again.
        self._changes_jobs: Final = draws_changes and not cluster.faults.damaged_graphs
        self._cluster: Final = cluster
        self._jobs: Final = jobs
        self._leader = cluster.job_managers[0]  # where the calls are sent; see try_another

    async def run(self) -> None:
        """Submit all jobs, and watch each until it has ended and the faults are over."""
        self._process = self._cluster.network.process("client")
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                tasks.create_task(self._one_client(job), name=job.key)

    def gateway(self) -> DispatcherGateway:
        """Return the Dispatcher, at the JobManager that is taken for the leader."""
        return self._process.connect(DispatcherGateway, self._leader)

    def try_another(self) -> None:
        """Send the next call to a random JobManager: this one does not lead, or does not answer."""
        self._leader = self._random.choice(self._cluster.job_managers)

    async def _one_client(self, observed: ObservedJob) -> None:
        await asyncio.sleep(self._random.uniform(0.0, min(20.0, self._cluster.faults.until_s)))
        twice, early = self._random.random() < 0.2, self._random.random() < 0.1
        cancel_delay_s = draw_cancel_delay_s(self._random, self._cluster.faults)
        async with asyncio.TaskGroup() as tasks:
            submitting = tasks.create_task(self._submit(observed, observed.graph), name="submit")
            if twice:  # another process of the same user, under the same key, with a job id of its own
                again = with_id(observed.graph, JobId(f"{self._random.getrandbits(128):032x}"))
                tasks.create_task(self._submit(observed, again), name="submit-again")
            elif early:  # before the client knows whether the job was accepted
                tasks.create_task(self._cancel_early(observed, submitting), name="cancel-early")
        async with asyncio.TaskGroup() as tasks:
            if observed.acknowledged is not None and observed.graph.job_type is JobType.STREAMING:
                user = self._streaming_user(observed, self._stopping)
                tasks.create_task(user.run(), name="save-and-stop")
                if self._upgrading.random() < UPGRADED:
                    tasks.create_task(self._upgrade(observed, user), name="upgrade")
            elif self._changes_jobs and observed.acknowledged is not None:
                tasks.create_task(self._change(observed.acknowledged), name="change")
            if observed.graph.client_timeout_s is not None:
                tasks.create_task(self._stay_attached(observed, observed.graph.client_timeout_s), name="attached")
            if cancel_delay_s is not None:
                await asyncio.sleep(cancel_delay_s)
                await self._cancel(observed)
            await self._watch(observed)

    async def _change(self, job_id: JobId) -> None:
        user = RescalingUser(
            self._operating,
            job_id,
            self._cluster.changes,
            self._cluster.savepoints,
            gateway=self.gateway,
            try_another=self.try_another,
            record=self._cluster.record,
        )
        self.users.append(user)
        await user.run()

    def _streaming_user(self, observed: ObservedJob, random: Random) -> StreamingUser:
        """Return the user of an acknowledged streaming job."""
        if observed.key in self.streaming:
            return self.streaming[observed.key]
        user = StreamingUser(
            random,
            observed,
            observed.acknowledged or observed.graph.job_id,
            self._cluster.savepoints,
            self._cluster.spark,
            gateway=self.gateway,
            try_another=self.try_another,
            record=self._cluster.record,
        )
        self.users.append(user)
        self.streaming[observed.key] = user
        return user

    async def _upgrade(self, observed: ObservedJob, user: StreamingUser) -> None:
        upgrading = UpgradingUser(
            self._upgrading,
            self._cluster.spark,
            use=self._use_upgraded,
            user_of=lambda job: self._streaming_user(job, self._upgrading),
            gateway=self.gateway,
            try_another=self.try_another,
            record=self._cluster.record,
        )
        self.upgrading.append(upgrading)
        await upgrading.run(observed, user)

    async def _use_upgraded(self, observed: ObservedJob, cancel_delay_s: float | None) -> None:
        """Save, rescale, stop and watch a job that has taken the place of another one, and cancel it in some cases."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._streaming_user(observed, self._upgrading).run(), name="save-and-stop")
            if cancel_delay_s is not None:
                await asyncio.sleep(cancel_delay_s)
                await self._cancel(observed)
            await self._watch(observed)

    async def _submit(self, observed: ObservedJob, graph: JobGraph) -> None:
        if observed.submitted_s is None:
            observed.submitted_s = _now_s()
        while True:
            try:
                answer = await self.gateway().submit_job(
                    JobSubmission(graph=graph, idempotency_key=observed.key, digest=observed.key)
                )
            except InvariantBroken as error:
                self.violations.append(f"{observed.key}: submission met a bug: {error.public}")
                return
            except FlintlockError as error:
                if not error.retryable:
                    self.violations.append(f"{observed.key}: submission refused: {error.public}")
                    return
                self.try_another()
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            if observed.acknowledged not in (None, answer.job_id):
                self.violations.append(f"{observed.key} is two jobs: {observed.acknowledged} and {answer.job_id}")
            observed.acknowledged = answer.job_id
            observed.acknowledged_s = observed.alive_s = _now_s()
            self._cluster.record(f"{observed.key} acknowledged as {answer.job_id}")
            return

    async def _stay_attached(self, observed: ObservedJob, timeout_s: float) -> None:
        """Send heartbeats until the job has ended, or until the client leaves."""
        leaves_s = _now_s() + observed.attached_s
        # When the latest heartbeat that was answered was sent: the job may run since its first submission was sent.
        heard_s = _now_s() if observed.submitted_s is None else observed.submitted_s
        while observed.acknowledged is not None and not observed.ended:
            sent_s = _now_s()
            if sent_s >= leaves_s:
                observed.left_s = sent_s
                self._cluster.record(f"{observed.key} has no client any more")
                return
            message = ClientHeartbeat(job_id=observed.acknowledged)
            try:
                await self.gateway().client_heartbeat(message)
            except FlintlockError:
                self.try_another()
                await asyncio.sleep(0.3)
            else:
                observed.unheard_s = max(observed.unheard_s, _now_s() - heard_s)
                heard_s = sent_s
                await asyncio.sleep(timeout_s / 5)
        observed.unheard_s = max(observed.unheard_s, _now_s() - heard_s)

    async def _cancel_early(self, observed: ObservedJob, submitting: asyncio.Task[None]) -> None:
        """Send cancels while the job is being submitted; it need not be known yet."""
        while not submitting.done():
            observed.cancel_sent = True
            try:
                await self.gateway().command(CancelJob(job_id=observed.graph.job_id))
            except FlintlockError:
                await asyncio.sleep(self._random.uniform(0.01, 0.3))
                continue
            observed.cancelled_ids.add(observed.graph.job_id)
            self._cluster.record(f"{observed.key} cancel accepted early")
            return

    async def _cancel(self, observed: ObservedJob) -> None:
        if observed.cancel_kind is CancelKind.OPERATION and not self._cluster.faults.damaged_graphs:
            await self._cancel_by_operation(observed)
            return
        force = observed.cancel_kind is CancelKind.FORCE
        while (job_id := observed.acknowledged) is not None:
            observed.cancel_sent = True
            observed.forced = observed.forced or force
            try:
                await self.gateway().command(CancelJob(job_id=job_id, force=force))
            except Conflict as error:  # it has ended, or is publishing
                if force and "is publishing" in error.public:
                    self.violations.append(f"{observed.key}: a cancel by force was refused: {error.public}")
                return
            except NotFound:
                self.violations.append(f"{observed.key}: acknowledged, but not known when cancelled")
                return
            except FlintlockError:
                self.try_another()
                await asyncio.sleep(0.3)
                continue
            observed.cancelled_ids.add(job_id)
            self._cluster.record(f"{observed.key} cancel accepted")
            return

    async def _cancel_by_operation(self, observed: ObservedJob) -> None:
        """Trigger a cancel until it is acknowledged, and poll its outcome; nothing else is promised before that."""
        trigger_id, acknowledged = TriggerId(f"{self._operating.getrandbits(128):032x}"), False
        while (job_id := observed.acknowledged) is not None:
            observed.cancel_sent = True
            try:
                if not acknowledged:
                    await self.gateway().trigger(
                        TriggerOperation(trigger_id=trigger_id, command=CancelJob(job_id=job_id))
                    )
                    acknowledged = True
                operation = await self.gateway().operation(OperationQuery(job_id=job_id, trigger_id=trigger_id))
            except Conflict:
                return  # it has ended
            except NotFound as error:
                self.violations.append(f"{observed.key}: not known when cancelled by an operation: {error.public}")
                return
            except FlintlockError:
                self.try_another()
                await asyncio.sleep(0.3)
                continue
            if operation.status is OperationStatus.COMPLETED:
                if operation.failure is None:
                    observed.cancelled_ids.add(job_id)
                    self._cluster.record(f"{observed.key} cancelled by an operation")
                return
            await asyncio.sleep(0.3)

    async def _watch(self, observed: ObservedJob) -> None:
        """Poll the job until it has ended and the faults are over."""
        while observed.acknowledged is not None:
            asked_s = _now_s()
            try:
                job = await self._read(observed, observed.acknowledged)
            except NotFound:
                if not self._cluster.is_retention_over(observed.alive_s):
                    self.violations.append(f"{observed.key}: acknowledged, but not known")
                observed.ended = True
                return
            except FlintlockError:
                self.try_another()
                await asyncio.sleep(0.5)
                continue
            if job.status in _NOT_ENDING:
                observed.working_s = asked_s
            self._check_status(observed, job)
            self._check_durations(job)
            if job.status.globally_terminal and not self._cluster.faulty():
                return
            if self._changes_jobs:
                await self._ping(job)
            await asyncio.sleep(1.0)

    async def _read(self, observed: ObservedJob, job_id: JobId) -> JobSnapshot:
        if observed.await_s and not observed.ended:
            return await self.gateway().await_job(AwaitJob(job_id=job_id, wait_s=observed.await_s))
        return await self.gateway().job(JobQuery(job_id=job_id))

    def _check_durations(self, job: JobSnapshot) -> None:
        """Check that no duration is negative where a clock may be set back."""
        if self._cluster.faults.clock_jumps:
            problems = duration_problems(job, self._cluster.wall_ms(self._leader))
            self.violations.extend(problem for problem in problems if problem not in self.violations)

    def _check_status(self, observed: ObservedJob, job: JobSnapshot) -> None:
        if not observed.statuses or observed.statuses[-1] is not job.status:
            if observed.statuses and observed.statuses[-1].globally_terminal and not observed.restored:
                self.violations.append(f"{observed.key} was {observed.statuses[-1]}, and now is {job.status}")
            observed.statuses.append(job.status)
        if job.status.globally_terminal and not observed.ended:
            observed.ended_s = _now_s()
        observed.ended = job.status.globally_terminal
        if not observed.ended:
            observed.alive_s = _now_s()
        elif not observed.restored and not self._cluster.is_end_durable(job.graph.job_id, observed.alive_s):
            self.violations.append(f"{observed.key} is shown as {job.status}, which is not durable")
        timeout_s = observed.graph.client_timeout_s
        if observed.left_s is None or timeout_s is None or job.status not in _NOT_ENDING or job.publishing is not None:
            return
        if _now_s() > max(observed.left_s, self._cluster.settled_s()) + timeout_s + _CANCEL_MARGIN_S:
            self.violations.append(f"{observed.key} is {job.status}, though its client left at {observed.left_s:.1f} s")

    async def _ping(self, job: JobSnapshot) -> None:
        """Query a running attempt. Whether it is answered depends on the faults; nothing may follow from it."""
        running = [each for each in job.executions if each.state is ExecutionState.RUNNING]
        if running:
            some = self._operating.choice(running)
            attempt = AttemptId(job_id=job.graph.job_id, region=some.region, attempt=some.attempt)
            try:
                await self.gateway().query_task(PingTask(attempt=attempt))
            except InvariantBroken as error:
                self.violations.append(f"a query of attempt {attempt} met a bug: {error.public}")
            except FlintlockError:
                return


def _now_s() -> float:
    return asyncio.get_running_loop().time()
