"""Clusters that end with their job or program, simulated: whatever fails, it runs once and ends once.

JobManagers that have ended are started again all the same, as by a supervisor that knows nothing of the end. Operators
shut clusters down in any state, which suspends their jobs. Half of the clusters start their TaskManagers themselves,
half of these in containers of YARN, where the cluster's end is the application's: no other JobManager is started then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from msgspec import structs

from flintlock.dispatcher.cluster_job import ClusterEnd, ClusterJob, ProgramJobs
from flintlock.dispatcher.leadership.leader_process import ApplicationLeaderProcessFactory
from flintlock.entrypoints.components import DeploymentMode
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.application import STATUS_OF_JOB, ApplicationStatus, ShutDownCluster, program_key
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, FlintlockError, KeyReused
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobSubmission
from flintlock.model.tasks import DeployTask
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.fault_draws import draw_faults
from flintlock.testing.simulation.silence import silence_simulation
from flintlock.testing.simulation.workers import UNREGISTERED_S
from flintlock.testing.simulation.workload import draw_job, with_id
from flintlock.testing.virtual_time import run_virtual

SEEDS: Final = 24
_LONGEST_S: Final = 4 * 3600.0
_AFTERWARDS_S: Final = 60.0  # in which nothing may begin again


class Disk:
    """What outlives the HA data: the job, and the record of its end. Some writes fail."""

    def __init__(self, job: JobGraph, random: Random) -> None:
        self._job: Final = job
        self._random: Final = random
        self.ends: Final[list[ClusterEnd]] = []

    @property
    def job_id(self) -> JobId:
        return self._job.job_id

    async def load(self) -> JobGraph:
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        return self._job

    async def read(self) -> ApplicationStatus | None:
        await asyncio.sleep(self._random.uniform(0.0, 0.2))
        return self.ends[0].status if self.ends else None

    async def write(self, end: ClusterEnd) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 1.0))
        if self._random.random() < 0.3:
            raise OSError("no space left: simulated")
        self.ends.append(end)


class Program:
    """A run of the user's program: submits its jobs in order, until it is refused because the program has ended."""

    def __init__(
        self, name: str, random: Random, cluster: SimulatedCluster, program: JobId, jobs: list[JobGraph]
    ) -> None:
        self._random: Final = random
        self._cluster: Final = cluster
        self._program: Final = program
        self._jobs: Final = jobs
        self._process: Final = cluster.network.process(name)
        self.answers: Final[dict[int, JobId]] = {}
        self.violations: Final[list[str]] = []

    async def run(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 20.0))
        for number, job in enumerate(self._jobs, 1):
            graph = with_id(job, JobId(f"{self._random.getrandbits(128):032x}"))
            key = program_key(self._program, number)
            digest = f"{self._random.random()}"  # it differs from run to run
            if not await self._submit(number, JobSubmission(graph=graph, idempotency_key=key, digest=digest)):
                return

    async def _submit(self, number: int, message: JobSubmission) -> bool:
        while not self._cluster.shut_downs:
            gateway = self._process.connect(DispatcherGateway, self._random.choice(self._cluster.job_managers))
            try:
                self.answers[number] = (await gateway.submit_job(message)).job_id
            except KeyReused as error:
                self.violations.append(f"submission {number}: {error.public}")
                return False
            except Conflict:
                return False
            except FlintlockError:
                await asyncio.sleep(self._random.uniform(0.1, 1.0))
            else:
                return True
        return False


async def cancel(cluster: SimulatedCluster, random: Random, job_id: JobId) -> None:
    """Cancel the job at any time."""
    process = cluster.network.process("user")
    await asyncio.sleep(random.uniform(0.0, 40.0))
    while not cluster.shut_downs:
        gateway = process.connect(DispatcherGateway, random.choice(cluster.job_managers))
        try:
            await gateway.command(CancelJob(job_id=job_id))
        except FlintlockError as error:
            if not error.retryable:
                return
            await asyncio.sleep(random.uniform(0.1, 1.0))
        else:
            return


async def suspend(cluster: SimulatedCluster, random: Random) -> None:
    """Shut the cluster down at any time, as DELETE /cluster does, and again: it is started again each time."""
    process = cluster.network.process("operator")
    for _ in range(random.randint(1, 3)):
        await asyncio.sleep(random.uniform(0.0, 30.0))
        gateway = process.connect(DispatcherGateway, random.choice(cluster.job_managers))
        with suppress(FlintlockError):
            await gateway.shut_down_cluster(ShutDownCluster())


async def simulate(seed: int) -> list[str]:
    """Return what was violated."""
    random = Random(f"job-cluster-{seed}")
    faults = structs.replace(draw_faults(random), unrecorded_attempts=0)
    is_program = seed % 2 == 1
    disk = Disk(draw_job(random, 1).graph, random)

    def mode() -> DeploymentMode:
        application = ClusterJob(
            source=disk,
            record=disk,
            result_timeout_s=random.choice([0.0, 5.0]),
            program_jobs=ProgramJobs(disk.job_id) if is_program else None,
        )
        return DeploymentMode(
            name="simulated",
            leader_processes=lambda services, term: ApplicationLeaderProcessFactory(services, term, application),
            removes_ha_data=True,
        )

    others_random = Random(f"job-cluster-workers-{seed}")
    has_workers = others_random.random() < 0.5  # TaskManagers that leaders start, take over and end
    if has_workers and Random(f"job-cluster-containers-{seed}").random() < 0.5:
        faults = structs.replace(faults, containers=True)
    cluster = SimulatedCluster(
        random,
        faults,
        job_managers=random.choice([1, 2]),
        task_managers=1 if has_workers else 2,
        workers=has_workers,
        mode=mode,
    )
    violations: list[str] = []
    begun = cluster.spark.on_start

    def check_start(task: DeployTask) -> None:
        begun(task)
        if disk.ends:
            violations.append(f"{task.attempt} began after the end of the cluster's job was recorded")

    cluster.spark.on_start = check_start
    others = [draw_job(random, number).graph for number in (2, 3)] if is_program else []
    programs = [Program(f"main-{number}", random, cluster, disk.job_id, others) for number in range(2)]

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.run(), name="cluster")
        users = [tasks.create_task(program.run(), name="program") for program in programs if is_program]
        if random.random() < 0.3:
            users.append(tasks.create_task(cancel(cluster, random, disk.job_id), name="cancel"))
        if others_random.random() < 0.5:
            users.append(tasks.create_task(suspend(cluster, others_random), name="suspend"))
        try:
            async with asyncio.timeout(_LONGEST_S):
                while not cluster.shut_downs:  # noqa: ASYNC110 (virtual time)
                    await asyncio.sleep(1.0)
        except TimeoutError:
            violations.append("the cluster has not ended")
        # A worker that the request to end has not reached ends by itself.
        await asyncio.sleep(_AFTERWARDS_S + (UNREGISTERED_S if has_workers else 0.0))
        for task in (running, *users):
            task.cancel()
    violations += cluster.violations
    violations += [problem for program in programs for problem in program.violations]
    violations += problems_at_the_end(cluster, disk, programs)
    return violations


def problems_at_the_end(cluster: SimulatedCluster, disk: Disk, programs: list[Program]) -> list[str]:
    """Return what is wrong when all is over."""
    records, problems = cluster.durable.records, list[str]()
    statuses = {end.status for end in disk.ends}
    if len(statuses) != 1 or {*cluster.shut_downs} != statuses:
        problems.append(f"recorded was {statuses}, and the cluster ended with {cluster.shut_downs}")
    if disk.ends and not disk.ends[0].jobs and {STATUS_OF_JOB[disk.ends[0].snapshot.status]} != statuses:
        problems.append(f"the job is {disk.ends[0].snapshot.status}, and the cluster {statuses}")
    if records.graphs or records.results or records.progress or records.ended:
        problems.append("the HA data was not removed")
    if cluster.fleet is not None and (left := cluster.fleet.left_over()):
        problems.append(f"workers outlive their cluster: {sorted(left)}")
    acknowledged = [program.answers for program in programs]
    for number in {number for answers in acknowledged for number in answers}:
        found = {answers[number] for answers in acknowledged if number in answers}
        if len(found) > 1:
            problems.append(f"submission {number} is {len(found)} jobs")
        listed = {job.job_id for end in disk.ends for job in end.jobs}
        if not found <= listed:
            problems.append(f"submission {number} was acknowledged, and has no end")
    return problems


def test_a_job_or_program_of_its_own_cluster_runs_once_whatever_fails() -> None:
    silence_simulation()
    failed = {seed: found for seed in range(SEEDS) if (found := run_virtual(simulate(seed)))}
    assert failed == {}
