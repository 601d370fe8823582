"""The TaskManager as a whole, on virtual time: engines die, leaders change, the TaskManager itself stops."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import Struct, structs
from structlog.testing import capture_logs
from tests.unit.taskmanager.harness import WARM_UP_S, TaskManagerHarness, until
from tests.unit.taskmanager.orders import attempt_id, order

from flintlock.model.application import ShutDownCluster
from flintlock.model.causes import CauseId, add_cause, caused_by
from flintlock.model.commands import CancelTask
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Refused, Unauthenticated, Unavailable
from flintlock.model.files.staging import staging_directory
from flintlock.model.ids import (
    AttemptId,
    BlobKey,
    Epoch,
    FencingToken,
    InstanceId,
    JobId,
    RegionId,
    StepName,
    TaskManagerId,
    session_of,
)
from flintlock.model.log_events import (
    CLUSTER_CHANGED,
    EPOCH_WENT_BACK,
    FOREIGN_FILES_REFUSED,
    REGISTRATION_FAILED,
    TASK_DEPLOYED,
)
from flintlock.model.slots import AttemptSlots, RegistrationAnswer
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    LoggedJobsQuery,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    RemoveLogs,
    SinkFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskRunning,
)
from flintlock.taskmanager.lease import YIELD_PART
from flintlock.taskmanager.task_logs import OUTPUT_TAIL_BYTES, read_log, with_output_tail
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.testing.virtual_time import virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)


@pytest.fixture
def harness(tmp_path: Path) -> TaskManagerHarness:
    return TaskManagerHarness(tmp_path / "log")


def why(news: TaskNews) -> tuple[FailureKind, str]:
    assert isinstance(news, TaskFailed)
    return news.failure.kind, news.failure.message


def in_order(recorded: list[str], *events: str) -> bool:
    """Return whether these happened, one after the other."""
    places = [recorded.index(event) for event in events]
    return places == sorted(places)


@virtual_time
async def test_slots_are_offered_once_the_engine_is_warm(harness: TaskManagerHarness) -> None:
    """The engine is warmed up before its slots are announced; from then on it reports what it runs."""
    async with harness.running() as task_manager:
        (offer,) = harness.resource_manager.registered
        assert (offer.id, offer.instance, offer.slots) == ("tm", "instance-1", 2)
        assert asyncio.get_running_loop().time() >= WARM_UP_S
        assert harness.guard.token == harness.resource_manager.token

        await task_manager.deploy(order(A))
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats + 1)

    assert {beat.instance for beat in harness.resource_manager.heartbeats} == {"instance-1"}
    assert harness.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)


@virtual_time
async def test_an_attempt_runs_and_its_messages_are_reported(harness: TaskManagerHarness, tmp_path: Path) -> None:
    """Running and result, each with its incarnation; artifacts are at the paths that the runner is given."""
    harness.blobs[BlobKey("blob-of-lib.zip")] = tmp_path / "lib"
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0, artifacts=("lib.zip",)))
        runner = await harness.runner(A)
        runner.send(TaskRunning(), TaskFinished())
        await until(lambda: "release 0: True" in harness.events)

        assert harness.news(A) == [TaskRunning(), TaskFinished()]
        assert {(report.task_manager, report.instance) for report in harness.job_masters.reports} == {
            ("tm", "instance-1")
        }
        assert runner.artifacts == {"lib.zip": str(tmp_path / "lib")}
        assert runner.killed


@virtual_time
async def test_reports_of_an_attempt_carry_the_cause_of_its_deployment(harness: TaskManagerHarness) -> None:
    async with harness.running() as task_manager:
        with caused_by(CauseId("order-17")), capture_logs(processors=[add_cause]) as logs:
            await task_manager.deploy(order(A, 0))
        (await harness.runner(A)).send(TaskRunning(), TaskFinished())
        await until(lambda: len(harness.job_masters.reports) == 2)

    assert harness.job_masters.causes == ["order-17", "order-17"]
    assert [(line["event"], line["cause"]) for line in logs] == [(TASK_DEPLOYED, "order-17")]


@virtual_time
async def test_a_crash_of_the_engine_fails_its_tasks_with_the_cause(harness: TaskManagerHarness) -> None:
    """Tasks fail with that cause, the TaskManager unregisters, and another engine registers as a new instance."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        (await harness.runner(A)).send(TaskRunning())
        await harness.runner(B)
        harness.engine.die("exit code 137")
        await until(lambda: len(harness.resource_manager.registered) == 2)

        for attempt in (A, B):
            assert why(harness.news(attempt)[-1]) == (FailureKind.ENGINE_LOST, "the Spark engine died: exit code 137")
        assert [beat.attempts for beat in harness.resource_manager.unregistered] == [()]
        assert [offer.instance for offer in harness.resource_manager.registered] == ["instance-1", "instance-2"]
        assert len(harness.engines) == 2

        later = attempt_id(7)
        await task_manager.deploy(order(later, 0, instance="instance-2"))
        (await harness.runner(later)).send(TaskFinished())
        await until(lambda: harness.news(later) == [TaskFinished()])


@virtual_time
async def test_nothing_of_an_attempt_is_left_when_its_failure_is_reported(harness: TaskManagerHarness) -> None:
    """Runners are killed and the engine is gone before reports are sent, and these before it unregisters."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.engine.die("exit code 137")
        await until(lambda: "registered instance-2" in harness.events)

    assert in_order(
        harness.events,
        "engine dies",
        "kill 0",
        "engine gone",
        "report 0: TaskFailed",
        "unregistered instance-1",
        "registered instance-2",
    )
    assert harness.events.count("report 0: TaskFailed") == 1


@virtual_time
async def test_without_an_engine_nothing_is_taken(harness: TaskManagerHarness) -> None:
    """Until the next engine is warm, deployments are refused as retryable."""
    async with harness.running() as task_manager:
        harness.engine.die("exit code 137")
        await until(lambda: "engine gone" in harness.events)

        with pytest.raises(Unavailable, match="no Spark engine"):
            await task_manager.deploy(order(A))
        with pytest.raises(Unavailable, match="no Spark engine"):
            await task_manager.command(CancelTask(attempt=A))


@virtual_time
async def test_an_engine_that_cannot_start_is_tried_again_with_growing_pauses(harness: TaskManagerHarness) -> None:
    """It is retried for ever, with a backoff."""
    harness.no_engine = ["no Java"] * 9
    async with harness.running():
        pauses = [later - sooner for sooner, later in pairwise(harness.starts_s)]

    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])


@virtual_time
async def test_a_leader_that_does_not_know_the_task_manager_is_shown_what_runs(harness: TaskManagerHarness) -> None:
    """It continues meanwhile, in the same incarnation and in its slots."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(A)
        await harness.runner(B)
        beats = len(harness.resource_manager.heartbeats)
        harness.resource_manager.lead(epoch=2)
        await until(lambda: len(harness.resource_manager.registered) == 2)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats + 1)

        again, beat = harness.resource_manager.registered[-1], harness.resource_manager.heartbeats[-1]
        assert (again.instance, again.busy) == ("instance-1", True)
        assert {held.attempt: held.slots for held in beat.attempts} == {A: (0,), B: (1,)}
        assert not [line for line in harness.events if line.startswith(("kill", "release"))]
        assert harness.guard.token == harness.resource_manager.token


@virtual_time
async def test_a_leader_that_refuses_what_runs_finds_nothing_running(harness: TaskManagerHarness) -> None:
    """Everything is ended, and then the next incarnation registers."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await harness.runner(A)
        harness.resource_manager.refuse_busy = True
        harness.resource_manager.lead(epoch=2)
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")

        assert in_order(harness.events, "kill 0", "release 0: True", "registered instance-2")
        assert harness.resource_manager.heartbeats[-1].attempts == ()
        assert len(harness.engines) == 1


@virtual_time
async def test_an_idle_taskmanager_whose_incarnation_is_over_registers_as_another(harness: TaskManagerHarness) -> None:
    """A leader that could not connect to it has given that incarnation up, and never accepts it again."""
    async with harness.running():
        harness.resource_manager.over.add(InstanceId("instance-1"))
        harness.resource_manager.lead(epoch=2)
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")

        assert in_order(harness.events, "registered instance-1", "registered instance-2")
        assert len(harness.engines) == 1


@virtual_time
async def test_the_lease_is_not_renewed_by_a_registration_with_work(harness: TaskManagerHarness) -> None:
    """Only an answered heartbeat confirms that its JobMasters want the work: until then the old lease applies."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await harness.runner(A)
        await until(lambda: len(harness.resource_manager.heartbeats) == 3)
        answered_s = asyncio.get_running_loop().time()
        harness.resource_manager.lead(epoch=2)
        harness.resource_manager.deaf = True
        await until(lambda: "release 0: True" in harness.events)
        ended_s = asyncio.get_running_loop().time()
        harness.resource_manager.deaf = False
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")

        assert harness.resource_manager.registered[1].busy
        lease_s = 10 * harness.resource_manager.heartbeat_interval_s
        assert ended_s - answered_s < YIELD_PART * lease_s + 1.0, "the registration came two seconds later"


@virtual_time
async def test_a_fenced_heartbeat_means_that_the_leader_changed(harness: TaskManagerHarness) -> None:
    """What runs is ended, and the TaskManager registers again, as another instance."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.fail_with = Fenced("epoch 1 is over")
        await until(lambda: "release 0: True" in harness.events)
        harness.resource_manager.fail_with = None
        await until(lambda: len(harness.resource_manager.registered) == 2)

        assert harness.resource_manager.registered[-1].instance == "instance-2"


@virtual_time
async def test_a_silent_leader_costs_nothing(harness: TaskManagerHarness) -> None:
    """While the lease lasts, work continues; a leader that is back in time finds it running."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.fail_with = Unavailable("no answer")
        await asyncio.sleep(13)
        harness.resource_manager.fail_with = None
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats)

        assert harness.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)
        assert len(harness.resource_manager.registered) == 1


@virtual_time
async def test_a_deployment_for_an_earlier_incarnation_is_refused(harness: TaskManagerHarness) -> None:
    """A late deployment does not start in slots that are no longer those that it was granted."""
    async with harness.running() as task_manager:
        harness.resource_manager.fail_with = Unavailable("no leader")
        await asyncio.sleep(60)
        harness.resource_manager.fail_with = None
        await until(lambda: len(harness.resource_manager.registered) == 2)

        with pytest.raises(Refused, match="meant for an earlier incarnation"):
            await task_manager.deploy(order(A, 0, instance="instance-1"))
        await task_manager.deploy(order(B, 0, instance="instance-2"))
        await harness.runner(B)


@pytest.mark.parametrize("error", [Unavailable("no leader"), Refused("too many slots"), NotFound("who?")])
def test_registration_is_retried_until_it_is_accepted(harness: TaskManagerHarness, error: FlintlockError) -> None:
    """After any error."""

    @virtual_time
    async def run_scenario() -> None:
        harness.resource_manager.fail_with = error
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(harness.task_manager.run(), name="taskmanager")
            await asyncio.sleep(30)
            assert harness.resource_manager.registered == []
            harness.resource_manager.fail_with = None
            await until(lambda: bool(harness.resource_manager.heartbeats))
            run.cancel()

    run_scenario()


@virtual_time
async def test_a_registration_that_fails_in_the_same_way_again_is_logged_once(harness: TaskManagerHarness) -> None:
    """However long there is no leader; another reason is logged."""
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            harness.resource_manager.fail_with = Unavailable("no leader")
            run = tasks.create_task(harness.task_manager.run(), name="taskmanager")
            await asyncio.sleep(600)
            harness.resource_manager.fail_with = Unavailable("no answer")
            await asyncio.sleep(600)
            harness.resource_manager.fail_with = None
            await until(lambda: bool(harness.resource_manager.heartbeats))
            run.cancel()

    failed = [entry["reason"] for entry in logs if entry["event"] == REGISTRATION_FAILED]
    assert failed == ["no leader", "no answer"]


@virtual_time
async def test_an_answer_of_an_outdated_leader_is_ignored(harness: TaskManagerHarness) -> None:
    """A newer leader became known while the registration was on its way: it is retried."""
    harness.guard.check(FencingToken(Epoch(5), "newer"))
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(harness.task_manager.run(), name="taskmanager")
        await until(lambda: len(harness.resource_manager.registered) > 2)
        assert harness.guard.token == FencingToken(Epoch(5), "newer")
        assert harness.resource_manager.heartbeats == []

        harness.resource_manager.lead(epoch=6)
        await until(lambda: bool(harness.resource_manager.heartbeats))
        run.cancel()

    assert harness.guard.token == harness.resource_manager.token


@virtual_time
async def test_a_taskmanager_that_stops_leaves_nothing_behind(harness: TaskManagerHarness) -> None:
    """Runners and engine are gone before it unregisters; their attempts are not reported as failed."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(A)
        await harness.runner(B)

    assert in_order(harness.events, "kill 0", "engine gone", "unregistered instance-1")
    assert in_order(harness.events, "kill 1", "engine gone", "unregistered instance-1")
    assert harness.job_masters.reports == []


@virtual_time
async def test_a_taskmanager_of_a_cluster_that_shuts_down_ends_as_one_that_is_stopped(
    harness: TaskManagerHarness,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(harness.task_manager.run(), name="taskmanager")
        await until(lambda: bool(harness.resource_manager.heartbeats))
        await harness.task_manager.deploy(order(A, 0))
        await harness.runner(A)

        await harness.task_manager.shut_down(ShutDownCluster())
        await harness.task_manager.shut_down(ShutDownCluster())
        await run

    assert in_order(harness.events, "kill 0", "engine gone", "unregistered instance-1")
    assert harness.job_masters.reports == []


@virtual_time
async def test_a_taskmanager_stops_without_any_answer(harness: TaskManagerHarness) -> None:
    """Undelivered reports and an absent leader do not delay it."""
    harness.job_masters.fail_with = Unavailable("no answer")
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        (await harness.runner(A)).send(TaskRunning())
        await task_manager.deploy(order(B, 1))
        (await harness.runner(B)).send(TaskFinished())
        await until(lambda: harness.job_masters.tries > 2)
        harness.resource_manager.fail_with = Unavailable("no answer")
        stopped_s = asyncio.get_running_loop().time()

    assert asyncio.get_running_loop().time() - stopped_s < 5
    assert "engine gone" in harness.events


@virtual_time
async def test_a_crash_is_survived_without_a_leader(harness: TaskManagerHarness) -> None:
    """The next engine starts soon, even if the failures cannot be delivered."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await harness.runner(A)
        harness.job_masters.fail_with = harness.resource_manager.fail_with = Unavailable("no answer")
        harness.job_masters.delay_s = 1000
        harness.engine.die("exit code 137")
        died_s = asyncio.get_running_loop().time()
        await until(lambda: len(harness.engines) == 2)

        assert asyncio.get_running_loop().time() - died_s < 10


@virtual_time
async def test_a_deployment_sent_again_runs_once(harness: TaskManagerHarness) -> None:
    """A duplicate is harmless, during and after."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(TaskFinished())
        await until(lambda: "release 0: True" in harness.events)
        await task_manager.deploy(order(A))
        await asyncio.sleep(10)

    assert harness.events.count("run 0") == 1
    assert harness.news(A) == [TaskFinished()]


@virtual_time
async def test_a_cancel_that_comes_before_its_deployment_wins(harness: TaskManagerHarness) -> None:
    """Reported CANCELED, and never started."""
    async with harness.running() as task_manager:
        await task_manager.command(CancelTask(attempt=A))
        await task_manager.deploy(order(A))
        await asyncio.sleep(10)

    assert harness.news(A) == [TaskCanceled()]
    assert harness.runners == {}


@virtual_time
async def test_files_are_removed_by_the_engine(harness: TaskManagerHarness) -> None:
    """Directories of an ended job go through Spark's own file systems."""
    async with harness.running() as task_manager:
        own = (f"work/{A.job_id}", staging_directory("out", A))
        await task_manager.remove_files(RemoveFiles(job_id=A.job_id, directories=own))

        assert harness.engine.removed == [own]


OTHER_JOB = JobId("f" * 32)
TRAVERSAL = AttemptId(job_id=JobId("../../../etc"), region=RegionId(0), attempt=0)
FOREIGN: dict[str, tuple[str, Struct]] = {
    "a log of something that is no job": ("read_log", LogQuery(task_manager=TaskManagerId("tm"), attempt=TRAVERSAL)),
    "a deployment of something that is no job": ("deploy", structs.replace(order(A), attempt=TRAVERSAL)),
    "a deployment of another job's graph": (
        "deploy",
        structs.replace(order(A), attempt=structs.replace(A, job_id=OTHER_JOB)),
    ),
    "a work directory of another job": ("deploy", structs.replace(order(A), work_dir=f"work/{OTHER_JOB}")),
    "a directory of nobody": ("remove_files", RemoveFiles(job_id=A.job_id, directories=("/home",))),
    "another job's staging": (
        "remove_files",
        RemoveFiles(job_id=OTHER_JOB, directories=(staging_directory("out", A),)),
    ),
    "all staging": ("remove_files", RemoveFiles(job_id=A.job_id, directories=("out/.flintlock-*",))),
    "a way up": ("remove_files", RemoveFiles(job_id=A.job_id, directories=(f"work/../{A.job_id}",))),
    "a removal for no job": ("remove_files", RemoveFiles(job_id=JobId(""), directories=())),
    "a publication outside of its target": (
        "publish",
        PublishFiles(
            attempt=A,
            sinks=(
                SinkFiles(
                    step=StepName("out"), target="out", staging=staging_directory("out", A), removes=("/etc/passwd",)
                ),
            ),
        ),
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
@virtual_time
async def test_what_does_not_belong_to_the_job_is_refused_and_logged(harness: TaskManagerHarness, case: str) -> None:
    """Nothing of the host but a job's own files is read, written or removed because of a message."""
    method, message = FOREIGN[case]
    async with harness.running() as task_manager:
        with capture_logs() as logs, pytest.raises(Refused, match=f"this TaskManager refuses {method}: "):
            await getattr(task_manager, method)(message)

    assert [line["method"] for line in logs if line["event"] == FOREIGN_FILES_REFUSED] == [method]
    assert (harness.runners, harness.engine.removed, harness.engine.published) == ({}, [], [])


@virtual_time
async def test_a_deployment_without_an_incarnation_is_refused(harness: TaskManagerHarness) -> None:
    """Only the leader that registered this incarnation knows its name."""
    async with harness.running() as task_manager:
        with pytest.raises(Refused, match="earlier incarnation"):
            await task_manager.deploy(order(A, instance=None))

    assert harness.runners == {}


def test_output_of_forgotten_jobs_is_removed_and_nothing_else(harness: TaskManagerHarness) -> None:
    directory = harness.services.log_directory
    jobs = [JobId(letter * 32) for letter in "abc"]
    for name in (*jobs, "lost+found"):
        (directory / name).mkdir(parents=True)
        (directory / name / "0-0.log").write_text("output")

    async def remove() -> None:
        assert (await harness.task_manager.logged_jobs(LoggedJobsQuery())).job_ids == tuple(jobs)
        await harness.task_manager.remove_logs(
            RemoveLogs(job_ids=(jobs[0], jobs[2], JobId("../jobs"), JobId("f" * 32)))
        )
        assert (await harness.task_manager.logged_jobs(LoggedJobsQuery())).job_ids == (jobs[1],)

    asyncio.run(remove())
    assert sorted(path.name for path in directory.iterdir()) == [jobs[1], "lost+found"]


def test_report_of_an_end_carries_the_end_of_the_output(tmp_path: Path) -> None:
    path = tmp_path / "0-0.log"
    assert with_output_tail(TaskFinished(), path) == TaskFinished()
    path.write_bytes(b"x" + b"y" * OUTPUT_TAIL_BYTES)

    for news in (TaskFinished(), TaskCanceled(), TaskFailed(failure=Failure(kind=FailureKind.USER_CODE, message="m"))):
        assert with_output_tail(news, path) == structs.replace(news, output_tail=b"y" * OUTPUT_TAIL_BYTES)
    assert with_output_tail(TaskRunning(), path) == TaskRunning()


def test_output_is_read_piece_by_piece(harness: TaskManagerHarness) -> None:
    """From any byte on, from the end, and past it; only what is there."""
    path = harness.services.log_path(A)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")

    async def piece(offset: int, limit: int = 4) -> tuple[bytes, int, int, bool]:
        query = LogQuery(task_manager=TaskManagerId("tm"), attempt=A, offset=offset, limit=limit)
        chunk = await harness.task_manager.read_log(query)
        return chunk.data, chunk.offset, chunk.size, chunk.complete

    async def read() -> None:
        assert await piece(0) == (b"0123", 0, 10, True)
        assert await piece(8) == (b"89", 8, 10, True)
        assert await piece(-3) == (b"789", 7, 10, True)
        assert await piece(-30) == (b"0123", 0, 10, True)
        assert await piece(99) == (b"", 10, 10, True)
        with pytest.raises(NotFound, match="no output of attempt"):
            await harness.task_manager.read_log(LogQuery(task_manager=TaskManagerId("tm"), attempt=B))

    asyncio.run(read())


def test_output_of_an_attempt_that_runs_is_not_complete(tmp_path: Path) -> None:
    """Also while it has no file yet: the process that captures it may be busy."""
    query = LogQuery(task_manager=TaskManagerId("tm"), attempt=A)
    assert not read_log(tmp_path / "none.log", query, running=True).complete
    (tmp_path / "0-0.log").write_bytes(b"x")
    assert not read_log(tmp_path / "0-0.log", query, running=True).complete
    assert read_log(tmp_path / "0-0.log", query, running=False).complete


def test_a_lower_epoch_is_refused_and_a_higher_one_adopted() -> None:
    """No command of an old leader is accepted once a newer one is known."""
    guard = TokenGuard(lambda: 0.0)
    guard.check(FencingToken(Epoch(2), "a"))
    guard.check(FencingToken(Epoch(2), "a"))
    guard.check(FencingToken(Epoch(3), "b"))

    with pytest.raises(Fenced, match="epoch 2 is over: this TaskManager follows epoch 3"):
        guard.check(FencingToken(Epoch(2), "a"))
    assert guard.token == FencingToken(Epoch(3), "b")


@pytest.mark.parametrize("session", ["a", "z"])
def test_one_epoch_has_one_leader(session: str) -> None:
    """Another session of the same epoch is refused, whatever it is called."""
    guard = TokenGuard(lambda: 0.0)
    guard.check(FencingToken(Epoch(3), "m"))

    with pytest.raises(Fenced, match="epoch 3 belongs to another leader"):
        guard.check(FencingToken(Epoch(3), session))


def answer_of(epoch: int, timeout_s: float = 50.0, cluster: str = "") -> RegistrationAnswer:
    return RegistrationAnswer(
        token=FencingToken(Epoch(epoch), session_of(cluster, f"session-{epoch}")),
        heartbeat_interval_s=2.0,
        heartbeat_timeout_s=timeout_s,
    )


def test_a_higher_epoch_of_another_cluster_is_refused_and_not_adopted() -> None:
    """Its leader is not fenced either: it leads, only not here."""
    guard = TokenGuard(lambda: 0.0)
    guard.adopt(answer_of(3, cluster="ours"), idle=True)

    with pytest.raises(Refused, match="belongs to another cluster"):
        guard.check(FencingToken(Epoch(1_000_000), session_of("theirs", "b")))

    assert guard.token == answer_of(3, cluster="ours").token
    guard.check(FencingToken(Epoch(4), session_of("ours", "c")))


def test_the_leader_that_was_found_and_registered_with_decides_the_cluster() -> None:
    """Not the one that called first. While work runs, it is not exchanged for that of another cluster."""
    guard = TokenGuard(lambda: 0.0)
    guard.check(FencingToken(Epoch(1_000_000), session_of("theirs", "b")))

    with pytest.raises(Refused, match="belongs to another cluster"):
        guard.adopt(answer_of(3, cluster="ours"), idle=False)
    with capture_logs() as logs:
        guard.adopt(answer_of(3, cluster="ours"), idle=True)

    assert guard.token == answer_of(3, cluster="ours").token
    assert [line["event"] for line in logs] == [CLUSTER_CHANGED]


def test_a_lower_epoch_is_followed_once_the_leader_of_the_higher_one_was_silent_for_a_whole_lease() -> None:
    """The store was removed, or an older backup restored: its epochs begin again."""
    clock = [0.0]
    guard = TokenGuard(lambda: clock[0])
    guard.adopt(answer_of(3), idle=True)
    clock[0] = 30.0
    guard.heard()

    clock[0] = 79.0
    with pytest.raises(Fenced, match="epoch 1 is over: this TaskManager follows epoch 3"):
        guard.adopt(answer_of(1), idle=True)
    clock[0] = 80.0
    with pytest.raises(Fenced):
        guard.adopt(answer_of(1), idle=False)
    with pytest.raises(Fenced):
        guard.adopt(answer_of(1, timeout_s=100.0), idle=True)
    with capture_logs() as logs:
        guard.adopt(answer_of(1), idle=True)

    assert guard.token == answer_of(1).token
    assert [(line["event"], line["log_level"], line["followed"]) for line in logs] == [(EPOCH_WENT_BACK, "warning", 3)]
    guard.check(FencingToken(Epoch(2), "b"))


def test_a_command_of_a_lower_epoch_is_refused_however_long_the_leader_was_silent() -> None:
    """Only the leader that the register names, and that accepts a registration, may begin again."""
    clock = [0.0]
    guard = TokenGuard(lambda: clock[0])
    guard.check(FencingToken(Epoch(3), "c"))
    clock[0] = 1e6

    with pytest.raises(Fenced):
        guard.check(FencingToken(Epoch(2), "b"))


@virtual_time
async def test_a_taskmanager_registers_with_a_leader_whose_store_was_removed(harness: TaskManagerHarness) -> None:
    """Its work ends with the lease of the leader that is gone; then it follows the new one, and works."""
    harness.resource_manager.lead(epoch=3)
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.lead(epoch=1)
        await until(lambda: "release 0: True" in harness.events)
        assert harness.guard.token is not None
        assert harness.guard.token.epoch == 3
        await until(lambda: harness.guard.token is not None and harness.guard.token.epoch == 1, limit_s=30)
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")

        assert harness.resource_manager.registered[-1].followed_epoch == 3
        await task_manager.deploy(order(B, instance="instance-2"))
        await harness.runner(B)


def test_a_command_without_a_token_is_refused() -> None:
    """Every command names its leader."""
    with pytest.raises(Fenced, match="must carry its leader's token"):
        TokenGuard(lambda: 0.0).check(None)


@virtual_time
async def test_a_runner_that_reports_files_of_others_has_failed(harness: TaskManagerHarness) -> None:
    """User code runs in the runner: what it says about files is compared with the graph."""
    sink = SinkFiles(
        step=StepName("top"), target="/etc", staging=staging_directory("/etc", A), removes=("/etc/passwd",)
    )
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(TaskRunning(), TaskFinished(sinks=(sink,)))
        await until(lambda: len(harness.news(A)) == 2)

        assert why(harness.news(A)[-1]) == (
            FailureKind.INTERNAL,
            "the task reported files that are not its own: step 'top' of the graph has no output at /etc",
        )


@virtual_time
async def test_work_goes_on_while_a_leader_does_not_know_the_credential(harness: TaskManagerHarness) -> None:
    """Whoever answers so is not known to be the leader: the lease decides, and registering is tried again."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.fail_with = Unauthenticated("another secret")
        harness.resource_manager.lead(epoch=2)
        await asyncio.sleep(5)
        harness.resource_manager.fail_with = None
        await until(lambda: harness.guard.token is not None and harness.guard.token.epoch == 2)

        assert harness.resource_manager.registered[-1].instance == "instance-1"
        assert "kill 0" not in harness.events
