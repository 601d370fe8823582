"""The ResourceManager as TaskManagers and JobMasters meet it, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.unit.resourcemanager.test_core import A, B, beat, offer, wants

from flintlock.config.configuration import Configuration
from flintlock.model.causes import CauseId, caused_by
from flintlock.model.diagnostics import ListProcessLogs
from flintlock.model.errors import Fenced, NotFound, Refused, Unavailable
from flintlock.model.ids import AttemptId, JobId, RegionId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.log_events import TASKMANAGER_FOLLOWS_HIGHER_EPOCH, TASKMANAGER_REFUSED
from flintlock.model.slots import (
    AttemptSlots,
    DeployedTasks,
    Heartbeat,
    NoResources,
    RegistrationAnswer,
    SlotGrant,
    TaskManagerLost,
    TaskManagerRegistration,
    UnwantedTasks,
)
from flintlock.model.tasks import LoggedJobsQuery, LogQuery, RemoveFiles, RemoveLogs
from flintlock.resourcemanager.endpoint import ResourceManager
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.testing.fakes.fake_jobmaster import FakeJobMaster
from flintlock.testing.fakes.fake_taskmanager import FakeTaskManagers
from flintlock.testing.fakes.fake_workers import FakeWorkers
from flintlock.testing.samples import TOKEN, VERSIONS
from flintlock.testing.virtual_time import now_ms, virtual_time


class ResourceManagerHarness:
    """A ResourceManager and the fakes around it."""

    def __init__(
        self,
        workers: FakeWorkers | None = None,
        jobs: FakeJobMaster | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.jobs = jobs or FakeJobMaster()
        self.machines = FakeTaskManagers()
        self.workers = workers or FakeWorkers()
        self.registry = CollectorRegistry()
        self.manager = ResourceManager(
            job_masters=self.jobs,
            task_managers=self.machines,
            liveness_connector=self.machines,
            clock_ms=now_ms,
            token=TOKEN,
            versions=VERSIONS,
            configuration=Configuration({"heartbeat.interval": "3 s", "heartbeat.timeout": "50 s", **(settings or {})}),
            workers=workers,
            metrics=ResourceManagerMetrics(self.registry),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ResourceManager]:
        """Serve for a term."""
        async with asyncio.TaskGroup() as scope:
            task = scope.create_task(self.manager.run(), name="resourcemanager")
            await settle()
            yield self.manager
            task.cancel()


async def settle() -> None:
    """Let everything that can happen now happen."""
    await asyncio.sleep(0.001)


async def enter(manager: ResourceManager, registration: TaskManagerRegistration) -> RegistrationAnswer:
    """Register, receive the answer, send the first heartbeat."""
    answer = await manager.register_task_manager(registration)
    assert (await manager.heartbeat(Heartbeat(id=registration.id, instance=registration.instance))).known
    return answer


def attempt(job: JobId = A) -> AttemptId:
    """Some attempt."""
    return AttemptId(job_id=job, region=RegionId(0), attempt=0)


@virtual_time
async def test_a_registered_task_manager_gets_the_leaders_token() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        answer = await enter(manager, offer())
    assert answer.token == TOKEN
    assert (answer.heartbeat_interval_s, answer.heartbeat_timeout_s) == (3.0, 50.0)


@virtual_time
async def test_messages_to_jobmasters_carry_the_cause_of_each() -> None:
    """Also where one waits behind the other; a TaskManager that is silent for too long is a cause of its own."""
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        with caused_by(CauseId("first")):
            await manager.declare_requirements(wants(A, first=1))
        await enter(manager, offer())
        with caused_by(CauseId("second")):
            await manager.declare_requirements(wants(A, first=1, second=1))
        await settle()
        granted, harness.jobs.causes = harness.jobs.causes, []
        await asyncio.sleep(60)
    assert granted == [None, "second"]  # the first was granted by the registration
    assert len(harness.jobs.losses) == 1
    assert all(cause and cause.startswith(f"resourcemanager-timeout-{TOKEN.epoch}-") for cause in harness.jobs.causes)


@virtual_time
async def test_a_member_of_an_incompatible_version_is_refused_with_the_reason_in_the_log_here_too() -> None:
    harness = ResourceManagerHarness()
    other = Versions(flintlock="9.9.9", python="3.11", pyspark="4.3.0")
    with capture_logs() as logs:
        async with harness.running() as manager:
            with pytest.raises(Refused, match=r"it runs Flintlock 9\.9\.9") as refusal:
                await manager.register_task_manager(offer(versions=other))
    assert [line["reason"] for line in logs if line["event"] == TASKMANAGER_REFUSED] == [refusal.value.public]


@virtual_time
async def test_grants_reach_the_job_master() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        await manager.declare_requirements(wants(A, r=1))
        await settle()
    (grant,) = harness.jobs.grants
    assert (grant.job_id, grant.task_manager, grant.address) == (A, "tm-1", "tm-1:1")


@virtual_time
async def test_silence_costs_slots() -> None:
    """A TaskManager that is silent for a whole timeout is lost, and its jobs are notified."""
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await asyncio.sleep(33)
        await enter(manager, offer())
        await manager.declare_requirements(wants(A, r=1))
        await asyncio.sleep(30)
        assert (await manager.heartbeat(beat())).known
        await asyncio.sleep(50)
        assert harness.jobs.losses == []

        await asyncio.sleep(0.1)
        assert [loss.job_id for loss in harness.jobs.losses] == [A]
        assert (await manager.overview()).task_managers == ()
        assert not (await manager.heartbeat(beat())).known


@virtual_time
async def test_a_task_manager_that_reports_is_never_lost() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        for _ in range(100):
            await asyncio.sleep(10)
            assert (await manager.heartbeat(beat())).known
    assert harness.jobs.received == []


@virtual_time
async def test_an_unregistration_is_reported_immediately() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        await manager.declare_requirements(wants(A, r=1))
        await manager.unregister_task_manager(beat())
        await settle()
        assert [loss.reason for loss in harness.jobs.losses] == ["it has shut down"]


@virtual_time
async def test_a_loss_is_reported_before_the_grant_that_follows_from_it() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        await manager.declare_requirements(wants(A, r=1))
        await settle()
        harness.jobs.fail_with = Unavailable("busy")
        await enter(manager, offer(incarnation=2))
        await asyncio.sleep(1)
        harness.jobs.fail_with = None
        await asyncio.sleep(6)
    assert [type(effect) for effect in harness.jobs.received] == [SlotGrant, TaskManagerLost, SlotGrant]
    reported = [effect.instance for effect in harness.jobs.received if not isinstance(effect, NoResources)]
    assert reported == ["tm-1-1", "tm-1-1", "tm-1-2"]


@virtual_time
async def test_a_grant_that_was_withdrawn_while_it_waited_is_not_sent() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        harness.jobs.fail_with = Unavailable("busy")
        await enter(manager, offer())
        await manager.declare_requirements(wants(A, r=1))
        await settle()
        await manager.declare_requirements(wants(A))
        harness.jobs.fail_with = None
        await asyncio.sleep(6)
    assert harness.jobs.received == []


@virtual_time
async def test_a_grant_whose_job_master_is_gone_is_withdrawn() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer(slots=1))
        harness.jobs.fail_with = NotFound("no JobMaster runs it")
        await manager.declare_requirements(wants(A, r=1))
        await settle()
        harness.jobs.fail_with = None
        await manager.declare_requirements(wants(B, r=1))
        await settle()
        assert [grant.job_id for grant in harness.jobs.grants] == [B]
        assert (await manager.overview()).waiting == ()


@virtual_time
async def test_what_is_asked_before_the_term_runs_is_answered_when_it_does() -> None:
    harness = ResourceManagerHarness()
    await enter(harness.manager, offer())
    await harness.manager.declare_requirements(wants(A, r=1))
    assert harness.jobs.received == []
    async with harness.running():
        assert len(harness.jobs.grants) == 1


@virtual_time
async def test_after_its_term_every_call_is_refused() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
    for call in (
        harness.manager.register_task_manager(offer(incarnation=2)),
        harness.manager.heartbeat(beat()),
        harness.manager.unregister_task_manager(beat()),
        harness.manager.declare_requirements(wants(A, r=1)),
        harness.manager.overview(),
        harness.manager.remove_files(RemoveFiles(job_id=A, directories=("/x",))),
        harness.manager.read_log(LogQuery(task_manager=TaskManagerId("tm-1"), attempt=attempt())),
        harness.manager.query_task_manager(ListProcessLogs(task_manager=TaskManagerId("tm-1"))),
    ):
        with pytest.raises(Unavailable):
            await call
    assert harness.jobs.received == []


@virtual_time
async def test_one_that_does_not_fit_is_refused() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        with pytest.raises(Refused):
            await manager.register_task_manager(offer(slots=0))


@virtual_time
async def test_a_log_is_read_where_it_is() -> None:
    harness = ResourceManagerHarness()
    harness.machines("tm-2:1").logs[str(attempt())] = b"hello"
    async with harness.running() as manager:
        await enter(manager, offer("tm-1"))
        await enter(manager, offer("tm-2"))
        chunk = await manager.read_log(LogQuery(task_manager=TaskManagerId("tm-2"), attempt=attempt(), offset=1))
        assert (chunk.data, chunk.size) == (b"ello", 5)
        with pytest.raises(NotFound):
            await manager.read_log(LogQuery(task_manager=TaskManagerId("tm-1"), attempt=attempt()))


@virtual_time
async def test_a_log_of_a_task_manager_that_is_gone_is_read_from_another_one_that_has_it() -> None:
    harness = ResourceManagerHarness()
    harness.machines("tm-2:1").logs[str(attempt())] = b"hello"
    gone = LogQuery(task_manager=TaskManagerId("tm-9"), attempt=attempt())
    async with harness.running() as manager:
        await enter(manager, offer("tm-1"))
        with pytest.raises(NotFound, match="no TaskManager has the output"):
            await manager.read_log(gone)
        await enter(manager, offer("tm-2"))
        assert (await manager.read_log(gone)).data == b"hello"


@virtual_time
async def test_logs_of_forgotten_jobs_are_removed_at_every_task_manager() -> None:
    harness = ResourceManagerHarness()
    harness.machines("tm-1:1").logged = [A]
    harness.machines("tm-2:1").logged = [A, B]
    harness.machines("tm-3:1").fail_with = Unavailable("no answer")
    async with harness.running() as manager:
        for name in ("tm-3", "tm-1", "tm-2"):
            await enter(manager, offer(name))
        assert (await manager.logged_jobs(LoggedJobsQuery())).job_ids == (A, B)
        assert (await manager.logged_jobs(LoggedJobsQuery(limit=1))).job_ids == (A,)
        assert (await manager.logged_jobs(LoggedJobsQuery(after=A))).job_ids == (B,)
        await manager.remove_logs(RemoveLogs(job_ids=(A,)))

        assert (await manager.logged_jobs(LoggedJobsQuery())).job_ids == (B,)


@virtual_time
async def test_a_query_about_a_process_is_answered_by_that_task_manager() -> None:
    harness = ResourceManagerHarness()
    query = ListProcessLogs(task_manager=TaskManagerId("tm-2"))
    async with harness.running() as manager:
        await enter(manager, offer("tm-1"))
        await enter(manager, offer("tm-2"))
        await manager.query_task_manager(query)

        assert (harness.machines("tm-1:1").process_queries, harness.machines("tm-2:1").process_queries) == ([], [query])
        with pytest.raises(NotFound, match="'tm-9' is not registered"):
            await manager.query_task_manager(ListProcessLogs(task_manager=TaskManagerId("tm-9")))


@virtual_time
async def test_files_are_removed_by_the_first_task_manager_that_can() -> None:
    harness = ResourceManagerHarness()
    order = RemoveFiles(job_id=A, directories=("/work/a",))
    async with harness.running() as manager:
        with pytest.raises(Unavailable, match="no TaskManager is registered"):
            await manager.remove_files(order)
        await enter(manager, offer("tm-1"))
        await enter(manager, offer("tm-2"))
        harness.machines("tm-1:1").fail_with = Unavailable("no engine")
        await manager.remove_files(order)
        assert harness.machines("tm-2:1").removed == [order]

        harness.machines("tm-2:1").fail_with = Unavailable("no engine either")
        with pytest.raises(Unavailable, match="no engine either"):
            await manager.remove_files(order)
        harness.machines("tm-2:1").fail_with = Fenced("epoch 1 is over")
        with pytest.raises(Fenced):
            await manager.remove_files(order)


@virtual_time
async def test_files_are_not_removed_while_an_attempt_runs_that_no_jobmaster_claims() -> None:
    """It would write after the removal: its job was quarantined, and dropped."""
    harness = ResourceManagerHarness()
    order = RemoveFiles(job_id=A, directories=("/work/a",))
    async with harness.running() as manager:
        await manager.register_task_manager(offer("tm-1"))
        await manager.heartbeat(reporting(of(A, 0)))
        with pytest.raises(Unavailable, match="has not ended yet on TaskManager 'tm-1'"):
            await manager.remove_files(order)
        await manager.heartbeat(reporting())
        await manager.remove_files(order)
        assert harness.machines("tm-1:1").removed == [order]


@virtual_time
async def test_the_overview_shows_the_queue_with_its_times() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer(slots=1))
        await manager.declare_requirements(wants(A, r=1))
        await asyncio.sleep(5)
        since_ms = now_ms()
        await manager.declare_requirements(wants(B, r=1))
        await asyncio.sleep(5)
        overview = await manager.overview()
    (shown,) = overview.waiting
    assert (shown.job_id, shown.since_ms) == (B, since_ms)
    assert now_ms() - overview.task_managers[0].last_heartbeat_ms >= 10_000


# Reconciliation of a TaskManager's attempts with their JobMasters


def reporting(*attempts: AttemptId, name: str = "tm-1") -> Heartbeat:
    """A heartbeat with these attempts, which occupy no slots."""
    return structs.replace(beat(name), attempts=tuple(AttemptSlots(attempt=attempt) for attempt in attempts))


def of(job: JobId, number: int) -> AttemptId:
    return AttemptId(job_id=job, region=RegionId(0), attempt=number)


@virtual_time
async def test_the_attempts_of_a_task_manager_are_reconciled_with_their_job_masters() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        harness.jobs.unwanted = {of(A, 0), of(B, 3)}
        running = (of(A, 0), of(B, 2), of(A, 1), of(B, 3))
        answer = await manager.heartbeat(reporting(*running))
    assert answer.unwanted == (of(A, 0), of(B, 3))
    assert [(message.job_id, message.instance, message.attempts) for message in harness.jobs.reconciled] == [
        (A, "tm-1-1", (of(A, 0), of(A, 1))),
        (B, "tm-1-1", (of(B, 2), of(B, 3))),
    ]


@virtual_time
async def test_no_job_master_is_asked_when_nothing_runs_or_the_task_manager_is_unknown() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        assert (await manager.heartbeat(beat())).unwanted == ()
        unknown = await manager.heartbeat(reporting(attempt(), name="tm-9"))
    assert (unknown.known, unknown.unwanted) == (False, ())
    assert harness.jobs.tries == 0


@virtual_time
async def test_attempts_of_a_job_without_a_job_master_are_unwanted() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        harness.jobs.fail_with = NotFound("no JobMaster runs it")
        answer = await manager.heartbeat(reporting(attempt()))
    assert answer.unwanted == (attempt(),)


@virtual_time
async def test_attempts_of_an_unreachable_job_master_continue() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        harness.jobs.fail_with = Unavailable("it is starting")
        answer = await manager.heartbeat(reporting(attempt()))
    assert (answer.known, answer.unwanted) == (True, ())


class SlowJobMaster(FakeJobMaster):
    """Takes for ever over job A."""

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Wait, or answer."""
        if message.job_id == A:
            await asyncio.get_running_loop().create_future()
        return UnwantedTasks(attempts=message.attempts)


@virtual_time
async def test_a_job_master_that_hangs_does_not_delay_the_lease() -> None:
    harness = ResourceManagerHarness(jobs=SlowJobMaster())
    async with harness.running() as manager:
        await enter(manager, offer())
        begun_s = asyncio.get_running_loop().time()
        answer = await manager.heartbeat(reporting(of(B, 0), of(A, 0)))
        assert asyncio.get_running_loop().time() - begun_s <= 3.0
    assert (answer.known, answer.unwanted) == (True, (of(B, 0),))


@virtual_time
async def test_metrics_of_a_task_manager_are_shown_as_it_last_sent_them() -> None:
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        await enter(manager, offer())
        await manager.heartbeat(structs.replace(beat(), metrics={"engine.heap.used": 1.0}))
        await manager.heartbeat(structs.replace(beat(), metrics={"engine.heap.used": 2.0}))
        (info,) = (await manager.overview()).task_managers
    assert info.metrics == {"engine.heap.used": 2.0}


# Unservable requests


@virtual_time
async def test_an_unservable_request_is_reported_once_the_start_up_time_is_over() -> None:
    harness = ResourceManagerHarness(settings={"resourcemanager.standalone.start-up-time": "20 s"})
    async with harness.running() as manager:
        await enter(manager, offer(slots=2))
        await manager.declare_requirements(wants(A, r=3))
        await asyncio.sleep(19.9)
        assert harness.jobs.received == []
        await asyncio.sleep(0.2)
        (reported,) = harness.jobs.received
        assert isinstance(reported, NoResources)
        await manager.declare_requirements(wants(A))
        await manager.declare_requirements(wants(B, r=3))
        await settle()
        assert [effect.job_id for effect in harness.jobs.received] == [A, B]


@virtual_time
async def test_a_request_that_a_loss_makes_unservable_is_reported_after_the_start_up_time() -> None:
    harness = ResourceManagerHarness(settings={"resourcemanager.standalone.start-up-time": "20 s"})
    async with harness.running() as manager:
        await enter(manager, offer("tm-1", 2))
        await enter(manager, offer("tm-2", 4))
        await asyncio.sleep(30)
        await manager.heartbeat(beat("tm-1"))
        await manager.declare_requirements(wants(A, r=4))
        await settle()
        await manager.unregister_task_manager(beat("tm-2"))
        await asyncio.sleep(19.9)
        assert [type(effect) for effect in harness.jobs.received] == [SlotGrant, TaskManagerLost]
        await asyncio.sleep(0.2)
        assert isinstance(harness.jobs.received[-1], NoResources)


# Metrics


@virtual_time
async def test_slots_the_queue_losses_and_late_heartbeats_are_measured() -> None:
    harness = ResourceManagerHarness()

    def value(name: str) -> float | None:
        return harness.registry.get_sample_value(f"flintlock_resourcemanager_{name}")

    async with harness.running() as manager:
        await enter(manager, offer("tm-1", 2))
        await enter(manager, offer("tm-2", 2))
        await manager.declare_requirements(wants(A, r=1, s=2, t=2))
        assert [value(name) for name in ("taskmanagers", "slots", "free_slots", "waiting_requests")] == [2, 4, 1, 1]
        await asyncio.sleep(3.4)
        await manager.heartbeat(beat("tm-1"))
        assert value("heartbeat_lag_seconds_count") == 1
        assert round(value("heartbeat_lag_seconds_sum") or 0, 3) == 0.4
        assert value("lost_taskmanagers_total") == 0
        await manager.unregister_task_manager(beat("tm-2"))
        assert value("lost_taskmanagers_total") == 1
        assert value("taskmanagers") == 1
    assert value("taskmanagers") == 0


@virtual_time
async def test_a_task_manager_that_follows_a_higher_epoch_is_warned_of_once() -> None:
    """Operators see in the JobManager's log that the store was removed, or restored from an older backup."""
    harness = ResourceManagerHarness()
    async with harness.running() as manager:
        with capture_logs() as logs:
            for followed in (None, TOKEN.epoch, TOKEN.epoch + 2, TOKEN.epoch + 2):
                await manager.register_task_manager(structs.replace(offer(), followed_epoch=followed))

    warnings = [line for line in logs if line["event"] == TASKMANAGER_FOLLOWS_HIGHER_EPOCH]
    assert [(line["log_level"], line["followed"]) for line in warnings] == [("warning", TOKEN.epoch + 2)]
