"""The guarantees to users, checked on a simulated cluster: one seed, one run, one verdict.

The checks know nothing of how the components work; they inspect the answers to clients, the files, and the stores.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Final

from msgspec import structs

from flintlock.config.options import INFRASTRUCTURE_ATTEMPTS
from flintlock.model.errors import FlintlockError, NotFound, Unavailable
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobQuery, JobSnapshot, ResultQuery
from flintlock.model.operations import Result, SaveMode, Sink
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind
from flintlock.testing.fakes.fake_spark import FILES_OF_A_SINK, ROWS_MISSING
from flintlock.testing.simulation.checks.timeout_checks import has_timed_out, timeout_problems
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.fault_draws import LONG_LEASE_S, draw_faults
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.situations import Situation, draw_situation
from flintlock.testing.simulation.users.clients import Clients
from flintlock.testing.simulation.users.disposals import DISPOSING_RUNS, DisposingUser
from flintlock.testing.simulation.users.listing_user import LISTING_RUNS, ListingUser
from flintlock.testing.simulation.users.operator import QuarantineOperator
from flintlock.testing.simulation.users.savepoints import draw_outage
from flintlock.testing.simulation.users.streaming import (
    RESCALE_FAILURES,
    STREAM_FAILURES,
    STREAMING_RUNS,
    draw_streaming_job,
)
from flintlock.testing.simulation.workload import VARIED_RUNS, ObservedJob, draw_job, vary_job
from flintlock.testing.virtual_time import Deadlock, VirtualTimeLoop, run_virtual

PATIENCE_S: Final = 1800.0  # in addition to one lease; the longest that was ever observed is a third of it
#: Processor time of one step of the loop. 50 ms hold on an idle machine. With a garbage collection in it, and six
#: processes for each core, the longest of 100 runs took 66 ms; half of all runs have none above 7 ms.
MAX_STEP_S: Final = 0.25
_INFRASTRUCTURE: Final = (FailureKind.ENGINE_LOST, FailureKind.TASK_MANAGER_LOST, FailureKind.MISSING_INPUT)
#: How often the disk is full in a run. It is drawn for itself: most runs have none, and are left as they are.
_FULL_DISKS: Final = (0, 0, 0, 1, 3)
#: How many graphs are damaged in a run with several leaders.
_DAMAGED_GRAPHS: Final = (0,) * 8 + (1, 3)
#: How many event loops are blocked in a run with several leaders.
_BLOCKED_LOOPS: Final = (0,) * 6 + (1, 3)
#: How many leaders one job blocks in a run in which graphs are damaged.
_BLOCKING_TIMES: Final = (0, 0, 3, 4)
#: How long ended jobs are retained in a run; most runs are over before anything is removed.
_RETENTIONS_S: Final = (None,) * 15 + (600.0,)
#: In how many runs the leader starts TaskManagers as it needs them, and in how many of these they are containers.
_ACTIVE_RUNS: Final = 0.08
_CONTAINER_RUNS: Final = 0.5
_EXPIRY_MARGIN_S: Final = 120.0
_HEARTBEAT_MARGIN_S: Final = 2.0
_COMPARISON_MS: Final = 500  # what a task takes to compare its inputs and to report what is missing
_RELEASE_S: Final = 120.0  # what it takes to release all workers, with those that were just started
_ENDING_S: Final = 120.0  # what it takes to end a runner that ignores its cancel
_RETURN_S: Final = 120.0  # what it takes beyond a lease until all slots are free
_RATE_MARGIN_S: Final = 0.5


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
    if not faults.leads_throughout:  # only another leader would read them
        faults = structs.replace(
            faults,
            damaged_graphs=Random(f"damage-{seed}").choice(_DAMAGED_GRAPHS),
            blocked_loops=Random(f"loops-{seed}").choice(_BLOCKED_LOOPS),
        )
        if faults.damaged_graphs:  # there is an operator who looks after the quarantine
            faults = structs.replace(faults, blocking_times=Random(f"blocking-{seed}").choice(_BLOCKING_TIMES))
    situation = draw_situation(seed)
    if situation is not None:
        faults = situation[1].faults
    run = _Run(seed, random, faults, jobs=random.randint(1, 6))
    if situation is not None:
        run.shape_jobs(*situation)
    try:
        run_virtual(run.main())
    except Deadlock as error:
        run.violations.append(f"every task waits: {error}")
    if run.violations:
        raise GuaranteeViolated(seed, run.violations, run.cluster.trace)
    return run.cluster.trace


def has_containers(seed: int, faults: Faults) -> bool:
    """Return whether the workers of a run are containers. Where leaders have to give way, others must stand by."""
    return not (faults.read_only_members or faults.broken_ports) and (
        Random(f"container-workers-{seed}").random() < _CONTAINER_RUNS
    )


class _Run:
    """One cluster, its clients, and the verdict."""

    def __init__(self, seed: int, random: Random, faults: Faults, jobs: int) -> None:
        self._varying = Random(f"variations-{seed}")  # its own: runs without variations are left as they are
        retention_s = self._varying.choice(_RETENTIONS_S)
        workers = self._varying.random() < _ACTIVE_RUNS
        if workers and has_containers(seed, faults):
            faults = structs.replace(faults, containers=True)
        self.cluster = SimulatedCluster(
            random,
            faults,
            job_managers=faults.job_managers or random.randint(1, 3),
            task_managers=faults.task_managers or random.randint(1, 2),
            workers=workers,
            retention_s=retention_s,
        )
        self.cluster.blocking_job.random = Random(f"blocking-job-{seed}")
        self._jobs = [draw_job(random, number, joins=faults.joins) for number in range(jobs)]
        if self._varying.random() < VARIED_RUNS:
            for job in self._jobs:
                vary_job(self._varying, job)
        self.cluster.spark.rescaling = Random(f"rescales-{seed}")
        self._add_streaming_jobs(Random(f"streams-{seed}"))
        self.cluster.savepoints.outage_s = draw_outage(Random(f"outage-{seed}"))
        self._clients = Clients(seed, random, self.cluster, self._jobs)
        self._lister = self._listing_user() if self._varying.random() < LISTING_RUNS else None
        self._operator = self._quarantine_operator() if faults.damaged_graphs else None
        self._disposer = self._disposing_user(Random(f"disposals-{seed}"))
        self.violations: list[str] = []

    def shape_jobs(self, random: Random, situation: Situation) -> None:
        """Make the jobs, but for streaming ones, such as the situation needs."""
        self.cluster.trace.append(f"a run about {situation.name}")
        for job in self._jobs:
            if job.graph.job_type is JobType.BATCH:
                situation.shape(random, job)

    def _add_streaming_jobs(self, random: Random) -> None:
        """Add streaming jobs in some runs. A job that is put back from the quarantine has lost its operations."""
        if random.random() < STREAMING_RUNS and not self.cluster.faults.damaged_graphs:
            self.cluster.spark.stream_failures = random.choice(STREAM_FAILURES)
            self.cluster.spark.rescale_failures = RESCALE_FAILURES
            first = len(self._jobs)
            self._jobs += [draw_streaming_job(random, first + number) for number in range(random.randint(1, 2))]

    def _quarantine_operator(self) -> QuarantineOperator:
        return QuarantineOperator(
            self._varying,
            self.cluster.durable.records,
            self.cluster.intact_graphs,
            self.cluster.blocking_job.last_lost,
            self._jobs,
            gateway=self._clients.gateway,
            try_another=self._clients.try_another,
            record=self.cluster.record,
        )

    def _disposing_user(self, random: Random) -> DisposingUser | None:
        if random.random() >= DISPOSING_RUNS:
            return None
        return DisposingUser(
            random,
            self.cluster.savepoints,
            gateway=self._clients.gateway,
            try_another=self._clients.try_another,
            record=self.cluster.record,
        )

    def _listing_user(self) -> ListingUser:
        return ListingUser(
            self._varying,
            self._jobs,
            gateway=self._clients.gateway,
            try_another=self._clients.try_another,
            is_faulty=self.cluster.faulty,
            forgets=lambda job: self.cluster.is_retention_over(job.alive_s),
        )

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
                    await self._use()
            except TimeoutError:
                self.violations.append(f"not over after {patience_s} s: {self._unfinished_jobs()}")
            else:
                await asyncio.sleep((self.cluster.retention_s or 0.0) / 2)  # all jobs that end now are still known then
                await self._check()
                await self._check_slots_returned()
                await self._check_workers()
                await self._check_retention()
            running.cancel()
        self._check_steps()

    def _check_steps(self) -> None:
        """No step of the loop may take long: heartbeats and requests of a real process would wait for it."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop) and loop.longest_step_s > MAX_STEP_S:
            self.violations.append(f"one step of the loop took {loop.longest_step_s:.1f} s: {loop.longest_step}")

    async def _use(self) -> None:
        """Let all users use the cluster until every job has ended and is cleaned up."""
        async with asyncio.TaskGroup() as tasks:
            clients = tasks.create_task(self._clients.run(), name="clients")
            if self._disposer is not None:
                tasks.create_task(self._disposer.run(), name="disposer")
            others = [
                tasks.create_task(user.run(), name=type(user).__name__)
                for user in (self._lister, self._operator)
                if user is not None
            ]
            await clients
            await self._wait_for_cleanup()
            for other in others:
                other.cancel()

    async def _wait_for_cleanup(self) -> None:
        """Wait until no job is being run or cleaned up."""
        while self._unfinished_jobs():  # noqa: ASYNC110 (the stores have no event to wait for)
            await asyncio.sleep(5.0)

    def _unfinished_jobs(self) -> list[str]:
        durable = self.cluster.durable.records
        dirty = [str(job_id) for job_id, entry in durable.results.items() if entry.dirty]
        return [*map(str, durable.graphs), *map(str, durable.quarantined), *map(str, durable.progress), *dirty]

    async def _check(self) -> None:
        for observed in self._jobs:
            if observed.acknowledged is None:
                continue
            try:
                job = await self._read_job(observed.acknowledged)
            except NotFound:
                if not self.cluster.is_retention_over(observed.alive_s):
                    self.violations.append(f"{observed.key}: acknowledged, but not known in the end")
                continue
            self.violations += self._outcome_problems(observed, job)
            self.violations += timeout_problems(self.cluster, observed, job)
            self.violations += self._repeated_losses(observed, job)
            self.violations += self._file_problems(observed, job)
            self.violations += await self._result_problems(observed, job)
            if observed.key in self._clients.streaming:
                self.violations += self._clients.streaming[observed.key].problems(
                    job, only_leaders_fail=self._only_leaders_fail()
                )
        for user in self._clients.upgrading:
            self.violations += await user.problems(only_leaders_fail=self._only_leaders_fail())
            self.violations += user.violations
        for user in (*self._clients.users, *([] if self._lister is None else [self._lister])):
            if user is self._lister or self.cluster.retention_s is None:  # operations are removed with their jobs
                await user.check()
            self.violations += user.violations
        if self._disposer is not None:
            await self._disposer.check()
            self.violations += self._disposer.violations
        self.violations += self._clients.violations
        self.violations += [] if self._operator is None else self._operator.violations
        await self._check_runners()
        self.violations += self.cluster.changes.violations
        self.violations += self.cluster.savepoints.violations
        self.violations += self.cluster.violations
        self.violations += self.cluster.spark.overlaps
        self.violations += self.cluster.unexplained_attempts.violations
        self.violations += self.cluster.leaders.violations
        self.violations += [f"{target} has a false success marker" for target in self.cluster.spark.false_markers]
        self.violations += self._late_starts()
        self.violations += self._restart_problems()
        self.violations += self._term_problems()
        has_to_lead = self.cluster.faults.leads_throughout and not self.cluster.gave_up
        if has_to_lead and self.cluster.durable.token.epoch > 1:
            self.violations.append("the leader changed, though it had no fault of its own")
        forced = tuple(place for job in self._jobs if job.forced for place in self._places(job))
        content = self.cluster.spark.files.content
        stray = [name for name in content if "/.flintlock-" in name or name.startswith("work")]
        stray = [name for name in stray if not name.startswith(forced)]  # their attempts may be given up
        if stray:
            self.violations.append(f"left over: {stray}")
        known = {str(job.acknowledged) for job in self._jobs}
        known |= {str(job_id) for user in self._clients.upgrading for job_id in user.job_ids}
        extra = [job_id for job_id in self.cluster.durable.records.ended if str(job_id) not in known]
        if extra:
            self.violations.append(f"jobs that were acknowledged to no client: {extra}")

    def _late_starts(self) -> list[str]:
        """Return which attempts began after the end of their jobs. A job that ends by force waits for no answer."""
        forced = {job.acknowledged for job in self._jobs if job.forced}
        late = [attempt for attempt in self.cluster.late_starts if attempt.job_id not in forced]
        return [f"{attempt} began after its job had ended" for attempt in late]

    async def _check_runners(self) -> None:
        """Check that no attempt is alive once all jobs have ended; what no JobMaster knows is ended by force."""
        if any(job.forced for job in self._jobs):
            return
        waited_s = 0.0
        while self.cluster.spark.running() and waited_s < _ENDING_S:
            await asyncio.sleep(5.0)
            waited_s += 5.0
        alive = self.cluster.spark.running()
        if alive:
            self.violations.append(f"alive after the end of all jobs: {alive}")

    async def _read_job(self, job_id: JobId) -> JobSnapshot:
        """Return a job as the present leader knows it. Raises NotFound."""
        while True:
            try:
                return await self._clients.gateway().job(JobQuery(job_id=job_id))
            except Unavailable:
                self._clients.try_another()
                await asyncio.sleep(0.5)

    async def _check_slots_returned(self) -> None:
        """Check that nothing is in use any more, whoever had it."""
        waited_s, held = 0.0, await self.cluster.unreturned_slots()
        while held and waited_s < self.cluster.faults.heartbeat_timeout_s + _RETURN_S:
            await asyncio.sleep(5.0)
            waited_s += 5.0
            held = await self.cluster.unreturned_slots()
        if held:
            self.violations.append(f"in use, though there is no job: {held}")

    async def _check_workers(self) -> None:
        """Check that every worker is released once it is idle, whichever leader has started it."""
        fleet, waited_s = self.cluster.fleet, 0.0
        if fleet is None:
            return
        while fleet.left_over() and waited_s < self.cluster.faults.heartbeat_timeout_s + _RELEASE_S:
            await asyncio.sleep(5.0)
            waited_s += 5.0
        if left := fleet.left_over():
            self.violations.append(f"not released, though there is no work: {left}")

    async def _check_retention(self) -> None:
        """Check that nothing is stored of jobs once their retention is over."""
        if self.cluster.retention_s is None:
            return
        await asyncio.sleep(self.cluster.retention_s * 1.1 + _EXPIRY_MARGIN_S)
        records = self.cluster.durable.records
        for kind in (records.ended, records.results, records.operations, records.histories, records.keys):
            if kind:
                self.violations.append(f"stored after the retention of all jobs: {list(kind)}")

    async def _result_problems(self, observed: ObservedJob, job: JobSnapshot) -> list[str]:
        """Check that a finished job has the rows of all results that it names."""
        if job.status is not JobStatus.FINISHED:
            return []
        while True:
            try:
                for name in job.result_names:
                    await self._clients.gateway().result(ResultQuery(job_id=job.graph.job_id, name=name))
            except Unavailable:
                self._clients.try_another()
                await asyncio.sleep(0.5)
            except FlintlockError as error:
                if isinstance(error, NotFound) and self.cluster.is_retention_over(observed.alive_s):
                    return []  # it was over while this was being checked
                return [f"{observed.key}: a result cannot be read: {error.public}"]
            else:
                return []

    def _repeated_losses(self, observed: ObservedJob, job: JobSnapshot) -> list[str]:
        """Check that all lost inputs of a task are computed again at once: it does not fail again for the same loss.

        Only while one leader leads: the next one does not know which results were lost.
        """
        faults = self.cluster.faults
        if not faults.leads_throughout or faults.clock_jumps or faults.late_messages:
            return []
        entries = sorted(
            (entry for root in job.exceptions for entry in (root, *root.concurrent) if entry.failure.missing),
            key=lambda entry: entry.timestamp_ms,
        )
        problems: list[str] = []
        for region in job.regions:
            failures = [entry for entry in entries if entry.region == region.id]
            for first, second in pairwise(failures):
                if set(first.failure.missing).isdisjoint(region.reads):
                    continue  # it had lost what it had materialised itself, and did not compare its inputs
                lost_ms = first.timestamp_ms - _COMPARISON_MS
                problems += [
                    f"{observed.key}: region {region.id} failed again, for the input {step} that was lost before"
                    for step in set(second.failure.missing) & set(region.reads)
                    if not self._was_lost(job, step, lost_ms, second.timestamp_ms)
                    and not self._was_lost_unseen(job, step, first.timestamp_ms, second.timestamp_ms)
                ]
        return problems

    def _was_lost(self, job: JobSnapshot, step: StepName, from_ms: int, to_ms: int) -> bool:
        """Return whether the blocking result of a step was lost in that time."""
        place = f"work/{job.graph.job_id}/{step}/"
        return any(
            from_ms <= at_ms <= to_ms and any(f"{path}/".startswith(place) for path in lost)
            for at_ms, lost in self.cluster.lost_results
        )

    def _was_lost_unseen(self, job: JobSnapshot, step: StepName, from_ms: int, to_ms: int) -> bool:
        """Return whether an attempt was accepted in that time whose blocking result had been lost before, or was then.

        The report of an attempt can be late, on a full disk for instance: its result is lost before it is known.
        """
        producers = {region.id for region in job.regions if step in region.materialises}
        places = {
            f"work/{job.graph.job_id}/{step}/{each.attempt}/"
            for each in job.executions
            if each.region in producers and from_ms <= each.timestamps.get(ExecutionState.FINISHED, 0) <= to_ms
        }
        return any(f"{path}/" in places for at_ms, lost in self.cluster.lost_results if at_ms <= to_ms for path in lost)

    def _restart_problems(self) -> list[str]:
        """Return the tasks that were started again, where only JobManagers die, for less than a lease: all are adopted.

        Cancelled jobs, and those whose client has left, are excluded: a leader that dies may have ended their tasks
        without a record of the cancel. So are those that were quarantined for a while.
        """
        if not self._only_leaders_fail():
            return []
        cancelled = {job.acknowledged for job in self._jobs if job.cancel_sent or self._may_be_detached(job)}
        if self.cluster.spark.stream_failures:
            cancelled |= {job.acknowledged for job in self._jobs if job.graph.job_type is JobType.STREAMING}
        rescaled = {key for key, user in self._clients.streaming.items() if user.rescaled}
        cancelled |= {job.acknowledged for job in self._jobs if job.key in rescaled}
        quarantined = {*self.cluster.intact_graphs, *self.cluster.blocking_job.last_lost}
        undisturbed = {job.acknowledged for job in self._jobs} - cancelled - quarantined
        starts = self.cluster.spark.starts.items()
        return [
            f"task {task} was not adopted, but started again"
            for task, count in starts
            if count > 1 and task[0] in undisturbed
        ]

    def _term_problems(self) -> list[str]:
        """Check that leaders were succeeded only after a death: JobManagers do not depose whom they never reached.

        A leader whose loop has stood still may end its own term.
        """
        faults, terms = self.cluster.faults, self.cluster.durable.token.epoch
        if not faults.closed_ports or terms <= 1 + self.cluster.crashes + faults.blocked_loops + faults.blocking_times:
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
            case JobStatus.FAILED if observed.dropped:
                return []
            case JobStatus.FINISHED if observed.acknowledged in observed.cancelled_ids:
                return [f"{observed.key} finished, though its cancel was accepted"]
            case JobStatus.FINISHED if self._untouched(observed) and _failures(job):
                return [f"{observed.key}: nothing of it failed, but its history says {_failures(job)[0].message}"]
            case JobStatus.FINISHED if observed.rate_s and (problem := self._rate_problem(observed, job)):
                return [problem]
            case JobStatus.FINISHED if failed > retries and not observed.rate_s:
                return [f"{observed.key} was restarted after {failed} failures; its strategy allows {retries}"]
            case JobStatus.FINISHED:
                expected = [vertex for vertex in observed.graph.vertices if isinstance(vertex.operation, Result)]
                stored = set(job.result_names)
                return [f"{observed.key}: the result {v.name} is missing" for v in expected if v.name not in stored]
            case JobStatus.CANCELED if observed.cancel_sent or self._may_be_detached(observed):
                return []
            case JobStatus.FAILED if observed.timeout_s and has_timed_out(job):
                return []
            case JobStatus.FAILED if failed > retries:
                return []
            case status:
                cause = job.exceptions[-1].failure.message if job.exceptions else "no cause"
                return [f"{observed.key} ended {status} ({cause}), without a reason"]

    def _rate_problem(self, observed: ObservedJob, job: JobSnapshot) -> str | None:
        """Return how a job failed more often in some time than its strategy allows, and was restarted all the same."""
        if self.cluster.faults.clock_jumps:
            return None
        entries = sorted(
            (each for root in job.exceptions for each in (root, *root.concurrent)), key=lambda each: each.timestamp_ms
        )
        span_ms, most = (observed.rate_s - _RATE_MARGIN_S) * 1000, observed.retries
        counted = [entry for entry in entries if entry.failure.kind not in _INFRASTRUCTURE]
        for first, last in zip(counted, counted[most:], strict=False):
            if last.timestamp_ms - first.timestamp_ms < span_ms:
                return f"{observed.key} failed more than {most} times within {observed.rate_s:g} s, and was restarted"
        return None

    def _untouched(self, observed: ObservedJob) -> bool:
        """Return whether nothing may fail a task of the job: no fault, no user."""
        cancelled = observed.cancel_sent or self._may_be_detached(observed)
        failing = observed.graph.job_type is JobType.STREAMING and self.cluster.spark.stream_failures > 0
        return self._only_leaders_fail() and not cancelled and not observed.restored and not failing

    def _may_be_detached(self, observed: ObservedJob) -> bool:
        """Return whether a job may be cancelled because its client is gone: it left, or its heartbeats did not arrive.

        A heartbeat says when it expires, and a wrong clock of the leader takes that for earlier.
        """
        timeout_s = observed.graph.client_timeout_s
        if timeout_s is None:
            return False
        unheard = observed.unheard_s > timeout_s - _HEARTBEAT_MARGIN_S
        return observed.left_s is not None or unheard or observed.restored or bool(self.cluster.faults.clock_jumps)

    def _file_problems(self, observed: ObservedJob, job: JobSnapshot) -> list[str]:
        """Check that each target has its former files, or all files of exactly one attempt with their marker."""
        files = self.cluster.spark.files
        problems: list[str] = []
        for vertex in observed.graph.vertices:
            if not isinstance(vertex.operation, Sink) or vertex.operation.path is None or vertex.query is not None:
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
            if (observed.forced or observed.dropped) and job.status is not JobStatus.FINISHED:
                continue  # a publication may have ended by force
            if not (published or (untouched and job.status is not JobStatus.FINISHED)):
                problems.append(f"{observed.key} ended {job.status}, but {target} holds {visible} of {attempts}")
            if any(ROWS_MISSING in content for content in attempts):
                problems.append(f"{observed.key}: {target} was computed from less than all rows: {attempts}")
        return problems

    def _places(self, observed: ObservedJob) -> list[str]:
        """Return where a job writes."""
        operations = [vertex.operation for vertex in observed.graph.vertices]
        return [
            f"work/{observed.acknowledged}/",
            *(f"{op.path}/" for op in operations if isinstance(op, Sink) and op.path is not None),
        ]

    def _targets(self) -> list[str]:
        vertices = [vertex for job in self._jobs for vertex in job.graph.vertices]
        operations = [vertex.operation for vertex in vertices if vertex.query is None]
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
