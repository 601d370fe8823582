"""Leadership: FLINK_BEHAVIOURS L1-L6, and the gateway that REST keeps through changes of leader."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, outcome_of, settle, submission, until

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.leadership.leader_process import ClusterApplication, DispatcherLeaderProcess, LeaderState
from flintlock.dispatcher.leadership.members import JobManagers
from flintlock.dispatcher.leadership.runner import DispatcherRunner
from flintlock.dispatcher.services import DispatcherServices, TermServices
from flintlock.gateways.leader import LeaderLivenessProbe, StandbyAddresses
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.leader_info import LeaderAddresses, LeaderInfo
from flintlock.ha.protocols import Stores
from flintlock.model.application import ApplicationStatus, ShutDownCluster
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, Fenced, InvariantBroken, Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.model.jobs import AwaitJob, JobQuery, ResultQuery
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time


class JobManager:
    """A JobManager with a runner and the gateway of its leader; records which terms were opened and closed."""

    def __init__(self, cluster: MemoryCluster, holder: str = "jm", *, removes_ha_data: bool = False) -> None:
        self.harness = DispatcherHarness(cluster, holder=holder)
        self.current = CurrentDispatcher()
        self.events: list[str] = []
        listening = LeaderAddresses(rpc=f"{holder}:1", rest=f"http://{holder}")
        self.stopped_task_managers = 0
        self.application: ClusterApplication | None = None
        self.members = JobManagers(lambda: 7)
        self.runner = DispatcherRunner(
            self.harness.ha, self, self.current, listening, members=self.members, removes_ha_data=removes_ha_data
        )

    def create(self, token: FencingToken, stores: Stores) -> DispatcherLeaderProcess:
        return DispatcherLeaderProcess(token, stores, self.harness.services, self.open_term, self.application)

    async def stop_task_managers(self) -> None:
        self.stopped_task_managers += 1

    @asynccontextmanager
    async def open_term(self, token: FencingToken, stores: Stores) -> AsyncGenerator[TermServices]:
        self.events.append(f"open {token.epoch}")
        try:
            yield replace(self.harness.term(stores), stop_task_managers=self.stop_task_managers)
        finally:
            self.events.append(f"close {token.epoch}")


class Application:
    """A ClusterApplication that runs a function beside each Dispatcher, and records what is called."""

    def __init__(self, run: Callable[[Dispatcher], Awaitable[ApplicationStatus]]) -> None:
        self.calls: list[str] = []
        self._run = run

    def refuse(self, job_id: JobId) -> Conflict | None:
        return None

    async def prepare(self, stores: Stores, services: DispatcherServices, gate: LeaderGate) -> None:
        self.calls.append("prepared")

    async def run(self, dispatcher: Dispatcher) -> ApplicationStatus:
        self.calls.append("begun")
        try:
            return await self._run(dispatcher)
        finally:
            self.calls.append("ended")


class Listener:
    """A LeadershipListener that calls back on confirmation."""

    def __init__(self, confirm: Callable[[Dispatcher], None] = lambda _: None) -> None:
        self._confirm = confirm

    def confirm(self, dispatcher: Dispatcher) -> None:
        self._confirm(dispatcher)

    def withdraw(self) -> None:
        pass

    async def shut_down(self, status: ApplicationStatus) -> None:
        pass


@asynccontextmanager
async def running() -> AsyncGenerator[JobManager]:
    """A JobManager that contends."""
    manager = JobManager(MemoryCluster())
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        yield manager
        contending.cancel()


async def lead(manager: JobManager) -> None:
    manager.harness.cluster.grant("jm")
    await until(lambda: manager.current.leading == manager.harness.cluster.token)


@virtual_time
async def test_without_a_leader_every_call_is_unavailable() -> None:
    current = CurrentDispatcher()
    for call in (
        current.gateway.submit_job(submission()),
        current.gateway.job_counts(),
        current.gateway.job(JobQuery(job_id=A)),
        current.gateway.await_job(AwaitJob(job_id=A, wait_s=60)),
        current.gateway.command(CancelJob(job_id=A)),
        current.gateway.result(ResultQuery(job_id=A, name="top")),
    ):
        with pytest.raises(Unavailable, match="no JobManager leads"):
            await call


@virtual_time
async def test_calls_are_forwarded_from_grant_to_revocation() -> None:
    async with running() as manager:
        assert manager.current.leading is None
        await lead(manager)
        await manager.current.gateway.submit_job(submission())
        await settle()

        manager.harness.cluster.revoke()
        await settle()

        assert manager.current.leading is None
        with pytest.raises(Unavailable):
            await manager.current.gateway.job_counts()
        assert manager.harness.runner().suspended
        assert manager.harness.cluster.graphs.keys() == {A}
        assert manager.events == ["open 1", "close 1"]


@virtual_time
async def test_job_submitted_before_the_change_of_leader_is_recovered() -> None:
    async with running() as manager:
        await lead(manager)
        await manager.current.gateway.submit_job(submission())
        manager.harness.cluster.revoke()
        await settle()
        await lead(manager)
        await settle()

        assert (await manager.current.gateway.job(JobQuery(job_id=A))).status is JobStatus.RUNNING
        assert manager.events == ["open 1", "close 1", "open 2"]


@virtual_time
async def test_leadership_is_confirmed_only_when_recovery_is_done() -> None:
    async with running() as manager:
        listed = manager.harness.faults.hold("graphs.ids:after")
        manager.harness.cluster.grant("jm")
        await asyncio.sleep(60)
        assert manager.events == ["open 1"]
        assert manager.current.leading is None

        listed.set()
        await settle()

        assert manager.current.leading == FencingToken(Epoch(1), "jm-1")


@virtual_time
async def test_term_lost_during_recovery_never_has_a_dispatcher() -> None:
    async with running() as manager:
        listed = manager.harness.faults.hold("graphs.ids:after")
        manager.harness.cluster.grant("jm")
        await settle()
        manager.harness.cluster.revoke()
        await settle()
        listed.set()
        await asyncio.sleep(60)

        assert manager.current.leading is None
        assert manager.events == ["open 1", "close 1"]
        assert not [name for name in manager.harness.faults.seen if name.startswith("ended.expire")]


@virtual_time
async def test_grant_waits_until_the_earlier_term_has_ended_completely() -> None:
    async with running() as manager:
        await lead(manager)
        (await manager.harness.submitted(manager.current.gateway)).stops_in_s = 30.0
        first = manager.harness.runner()

        manager.harness.cluster.grant("jm")
        await asyncio.sleep(29)
        assert manager.events == ["open 1"]
        assert manager.current.leading is None
        await asyncio.sleep(2)

        assert first.suspended
        assert manager.events == ["open 1", "close 1", "open 2"]


@virtual_time
async def test_of_several_changes_the_last_waits_for_all() -> None:
    async with running() as manager:
        await lead(manager)
        (await manager.harness.submitted(manager.current.gateway)).stops_in_s = 30.0
        first = manager.harness.runner()

        for _ in range(3):
            manager.harness.cluster.grant("jm")
            await asyncio.sleep(1)
        assert manager.events == ["open 1"]
        assert manager.current.leading is None
        await asyncio.sleep(30)

        assert first.suspended
        assert manager.events == ["open 1", "close 1", "open 2"]
        assert manager.current.leading == manager.harness.cluster.token


@virtual_time
async def test_slow_jobmaster_of_an_older_term_in_another_process_does_not_delay_the_new_leader() -> None:
    cluster = MemoryCluster()
    slow, other = JobManager(cluster), JobManager(cluster, "other")
    async with asyncio.TaskGroup() as tasks:
        contending = [tasks.create_task(manager.runner.run()) for manager in (slow, other)]
        await settle()
        await lead(slow)
        (await slow.harness.submitted(slow.current.gateway)).stops_in_s = 3600.0

        cluster.grant("other")
        await until(lambda: other.current.leading is not None)
        await settle()

        assert (await other.current.gateway.job(JobQuery(job_id=A))).status is JobStatus.RUNNING
        assert not slow.harness.runner().suspended
        for task in contending:
            task.cancel()


@virtual_time
async def test_leader_with_an_outdated_token_steps_down_when_a_store_fences_it() -> None:
    cluster = MemoryCluster()
    old = JobManager(cluster)
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(old.runner.run())
        await settle()
        await lead(old)
        runner = await old.harness.submitted(old.current.gateway)
        old.harness.stores()  # a newer epoch; the old leader is not notified

        runner.finish()
        await settle()

        assert old.current.leading is None
        assert old.events == ["open 1", "close 1"]
        assert cluster.results == {}
        assert not contending.done()
        contending.cancel()


@virtual_time
async def test_dispatcher_that_ends_unexpectedly_is_fatal() -> None:
    manager = JobManager(MemoryCluster())
    manager.harness.faults.failing["results.create_dirty:before"] = OSError("disk full")
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager.runner.run())
            await settle()
            await lead(manager)
            (await manager.harness.submitted(manager.current.gateway)).finish()
            await asyncio.sleep(60)
    assert manager.current.leading is None
    assert manager.events == ["open 1", "close 1"]


@virtual_time
async def test_lifecycle_of_a_leader_process() -> None:
    manager = JobManager(MemoryCluster())
    stores = manager.harness.stores()
    token = manager.harness.cluster.token
    process = DispatcherLeaderProcess(token, stores, manager.harness.services, manager.open_term)
    states = [process.state]

    async with asyncio.TaskGroup() as tasks:
        leading = tasks.create_task(process.run(Listener(lambda _: states.append(process.state))))
        await settle()
        leading.cancel()
    states.append(process.state)

    assert states == [LeaderState.CREATED, LeaderState.RUNNING, LeaderState.STOPPED]
    with pytest.raises(InvariantBroken):
        await process.run(Listener())


@virtual_time
async def test_recovered_jobs_run_under_the_cause_of_the_recovery() -> None:
    manager = JobManager(MemoryCluster())
    async with manager.harness.leading() as dispatcher:
        await manager.harness.submitted(dispatcher)
    stores, token = manager.harness.stores(), manager.harness.cluster.token
    process = DispatcherLeaderProcess(token, stores, manager.harness.services, manager.open_term)
    async with asyncio.TaskGroup() as tasks:
        leading = tasks.create_task(process.run(Listener()))
        await settle()
        assert manager.harness.runner().cause == f"recovery-{token.epoch}"
        leading.cancel()


@virtual_time
async def test_term_lost_before_it_starts_never_has_a_dispatcher() -> None:
    """Not even where the stores answer so fast that recovery never pauses."""

    async def instantly(_: str) -> None:
        pass

    manager = JobManager(MemoryCluster())
    token = FencingToken(Epoch(1), "jm-1")
    stores = MemoryHaServices(manager.harness.cluster, "jm", instantly).stores(token)
    process = DispatcherLeaderProcess(token, stores, manager.harness.services, manager.open_term)
    confirmed: list[Dispatcher] = []

    async def too_late() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await process.run(Listener(confirmed.append))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(too_late())

    assert confirmed == []
    assert process.state is LeaderState.STOPPED


@virtual_time
async def test_calls_of_a_superseded_leader_process_are_ignored() -> None:
    harness = DispatcherHarness()
    current = CurrentDispatcher()
    old, new = FencingToken(Epoch(1), "a"), FencingToken(Epoch(2), "b")
    async with harness.leading() as dispatcher:
        current.confirm(new, dispatcher)
        current.confirm(old, CurrentDispatcher().gateway)
        current.withdraw(old)

        assert current.leading == new
        assert (await all_jobs(current.gateway)) == ()
        current.withdraw(new)
        current.withdraw(new)
        assert current.leading is None


@virtual_time
async def test_waiting_for_a_leader() -> None:
    async with running() as manager, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(manager.current.wait_for_leader())
        await settle()
        assert not waiting.done()

        await lead(manager)

        assert await waiting == manager.harness.cluster.token
        assert await manager.current.wait_for_leader() == manager.harness.cluster.token


@virtual_time
async def test_waiting_for_the_end_of_a_leaders_term() -> None:
    current = CurrentDispatcher()
    first, second = FencingToken(Epoch(1), "a"), FencingToken(Epoch(2), "b")
    await current.wait_until_over(first)  # it does not lead
    current.confirm(first, CurrentDispatcher().gateway)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(current.wait_until_over(first))
        await settle()
        assert not waiting.done()

        current.withdraw(first)
        current.confirm(second, CurrentDispatcher().gateway)  # before the waiter had its turn

        await waiting
    assert current.leading == second


@virtual_time
async def test_calls_in_progress_fail_when_leadership_is_lost() -> None:
    async with running() as manager, asyncio.TaskGroup() as tasks:
        await lead(manager)
        await manager.harness.submitted(manager.current.gateway)
        manager.harness.faults.hold("graphs.put:before")
        calls = [
            tasks.create_task(outcome_of(manager.current.gateway.await_job(AwaitJob(job_id=A, wait_s=3600)))),
            tasks.create_task(outcome_of(manager.current.gateway.submit_job(submission(B)))),
        ]
        await settle()

        manager.harness.cluster.revoke()

        for call in calls:
            assert isinstance(await call, Unavailable)


@virtual_time
async def test_addresses_are_published_when_a_term_begins_and_again_when_it_serves() -> None:
    async with running() as manager:
        listed = manager.harness.faults.hold("graphs.ids:after")
        manager.harness.cluster.grant("jm")
        await settle()
        token = manager.harness.cluster.token
        early = LeaderInfo(token=token, rpc="jm:1", rest="http://jm", confirmed=False)
        assert manager.harness.cluster.info == early

        listed.set()
        await settle()
        assert manager.harness.cluster.info == structs.replace(early, confirmed=True)

        manager.harness.cluster.revoke()
        await settle()
        assert manager.harness.cluster.info is None


@virtual_time
async def test_publishing_addresses_is_retried_without_delaying_the_term() -> None:
    async with running() as manager:
        manager.harness.faults.failing["leader.publish:before"] = Unavailable("out of reach")
        await lead(manager)
        await asyncio.sleep(1)
        assert manager.harness.cluster.info is None

        del manager.harness.faults.failing["leader.publish:before"]
        await asyncio.sleep(1)
        assert manager.harness.cluster.info is not None
        assert manager.harness.cluster.info.confirmed
        assert manager.events == ["open 1"]


@virtual_time
async def test_a_liveness_call_is_answered_when_the_term_is_over_or_never_was() -> None:
    async with running() as manager, asyncio.TaskGroup() as tasks:
        await lead(manager)
        token = manager.harness.cluster.token
        await manager.runner.watch_liveness(LeaderLivenessProbe(token=FencingToken(Epoch(7), "other")))
        watching = tasks.create_task(manager.runner.watch_liveness(LeaderLivenessProbe(token=token)))
        await asyncio.sleep(100)
        assert not watching.done()
        assert manager.runner.is_in(token)

        manager.harness.cluster.revoke()
        await watching
        assert not manager.runner.is_in(token)


@virtual_time
async def test_disconnected_leader_answers_no_call_and_continues_when_it_is_connected_in_time() -> None:
    harness, token = DispatcherHarness(), FencingToken(Epoch(1), "a")
    pauses: dict[FencingToken, str] = {}
    current = CurrentDispatcher(pauses.get)
    async with harness.leading() as dispatcher:
        current.confirm(token, dispatcher)
        assert current.acting() == token

        pauses[token] = "the connection is lost"
        with pytest.raises(Unavailable, match="the connection is lost"):
            await current.gateway.job_counts()
        with pytest.raises(Unavailable, match="does not know whether it still leads"):
            current.acting()
        assert current.leading == token, "it has not stepped down"

        del pauses[token]
        assert (await all_jobs(current.gateway)) == ()
        current.withdraw(token)
        assert current.acting() is None


@virtual_time
async def test_shut_down_suspends_jobs_then_ends_standbys_then_task_managers() -> None:
    manager = JobManager(MemoryCluster())
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        await lead(manager)
        await manager.current.gateway.submit_job(submission())
        await settle()
        token = manager.harness.cluster.token
        standby = tasks.create_task(manager.runner.watch_liveness(LeaderLivenessProbe(token=token)))

        await manager.current.gateway.shut_down_cluster(ShutDownCluster(status=ApplicationStatus.CANCELED))
        await manager.current.gateway.shut_down_cluster(ShutDownCluster(status=ApplicationStatus.FAILED))  # too late
        with pytest.raises(Unavailable, match="shutting down"):
            await manager.current.gateway.submit_job(submission(B))

        assert (await standby).shut_down is ApplicationStatus.CANCELED
        assert manager.harness.runner().suspended
        assert manager.current.leading is None
        assert manager.events == ["open 1"]  # it leads until the others have read the outcome
        assert not manager.stopped_task_managers
        assert await contending is ApplicationStatus.CANCELED
    assert manager.stopped_task_managers == 1
    assert manager.events == ["open 1", "close 1"]
    assert manager.harness.cluster.graphs.keys() == {A}, "a session cluster keeps its jobs"
    assert not manager.runner.is_in(token)


@pytest.mark.parametrize("status", ApplicationStatus)
@virtual_time
async def test_data_of_a_cluster_that_ended_for_good_is_removed_where_the_mode_says_so(
    status: ApplicationStatus,
) -> None:
    manager = JobManager(MemoryCluster(), removes_ha_data=True)
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        await lead(manager)
        await manager.current.gateway.submit_job(submission())
        await manager.current.gateway.shut_down_cluster(ShutDownCluster(status=status))
        assert await contending is status
    assert manager.harness.cluster.graphs.keys() == (set() if status.is_final else {A})


@virtual_time
async def test_data_that_cannot_be_removed_does_not_keep_the_cluster_from_ending() -> None:
    manager = JobManager(MemoryCluster(), removes_ha_data=True)
    manager.harness.faults.failing["cleanup:before"] = Unavailable("out of reach")
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        await lead(manager)
        await manager.current.gateway.shut_down_cluster(ShutDownCluster())
        assert await contending is ApplicationStatus.SUCCEEDED


@virtual_time
async def test_term_that_is_lost_in_the_middle_of_a_shut_down_ends_nothing_else() -> None:
    """The next leader finds all jobs; the client of the shut-down asks again."""
    async with running() as manager:
        await lead(manager)
        (await manager.harness.submitted(manager.current.gateway)).stops_in_s = 30.0
        await manager.current.gateway.shut_down_cluster(ShutDownCluster())
        await asyncio.sleep(10)  # its JobMaster is still being suspended
        manager.harness.cluster.revoke()
        await asyncio.sleep(30)
        assert manager.stopped_task_managers == 0

        await lead(manager)
        await settle()

        assert (await manager.current.gateway.job(JobQuery(job_id=A))).status is JobStatus.RUNNING


@virtual_time
async def test_an_application_runs_beside_the_dispatcher_of_each_term_and_decides_how_the_cluster_ends() -> None:
    manager = JobManager(MemoryCluster())

    async def run(dispatcher: Dispatcher) -> ApplicationStatus:
        if application.calls.count("begun") == 1:
            await asyncio.Event().wait()
        await dispatcher.submit_job(submission())
        await dispatcher.await_job(AwaitJob(job_id=A, wait_s=60))
        return ApplicationStatus.CANCELED

    application = manager.application = Application(run)
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        await lead(manager)
        await settle()
        manager.harness.cluster.revoke()
        await settle()
        assert application.calls == ["prepared", "begun", "ended"]

        await lead(manager)
        await settle()
        manager.harness.runner().finish()

        assert await contending is ApplicationStatus.CANCELED
    assert application.calls == ["prepared", "begun", "ended"] * 2


@virtual_time
async def test_a_runner_that_is_cancelled_while_it_is_fenced_ends() -> None:
    """A TaskGroup whose task raises drops the cancellation: without a check the runner would contend for ever."""

    async def fenced_when_cancelled(dispatcher: Dispatcher) -> ApplicationStatus:
        try:
            return await dispatcher.wait_for_shut_down()
        except asyncio.CancelledError:
            raise Fenced("epoch 2 has begun") from None

    manager = JobManager(MemoryCluster())
    manager.application = Application(fenced_when_cancelled)
    async with asyncio.TaskGroup() as tasks:
        contending = tasks.create_task(manager.runner.run())
        await settle()
        await lead(manager)
        contending.cancel()
        await settle()
        assert contending.cancelled()


@virtual_time
async def test_a_leader_lists_the_standbys_that_watch_it_and_none_that_has_gone() -> None:
    """A standby whose connection ends is no longer listed; one that connects twice is listed once."""
    async with running() as manager:
        assert manager.members.current() == (), "it does not lead"
        await lead(manager)
        token = manager.harness.cluster.token
        assert token is not None
        standby = StandbyAddresses(rest="http://other", rpc="other:1", host="there")
        probe = LeaderLivenessProbe(token=token, standby=standby)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(manager.runner.watch_liveness(probe)) for _ in range(2)]
            unnamed = tasks.create_task(manager.runner.watch_liveness(LeaderLivenessProbe(token=token)))
            await settle()
            leader, *standbys = manager.members.current()
            assert (leader.rest, leader.epoch, leader.since_ms) == ("http://jm", token.epoch, 7)
            assert [(info.rest, info.host, info.epoch) for info in standbys] == [("http://other", "there", 0)]
            for call in (*watching, unnamed):
                call.cancel()
            await settle()
            assert [info.rest for info in manager.members.current()] == ["http://jm"]
        manager.harness.cluster.revoke()
        await until(lambda: manager.members.current() == ())
