"""The engine, on real JVMs: what it does for a TaskManager, how it dies, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import httpx
import jwt
import msgspec
import psutil
import pytest
from tests.cluster.processes import until

from flintlock.config.files import cache_directory
from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.errors import JobFailed, Refused, Unavailable
from flintlock.model.files.staging import PREFIX
from flintlock.model.ids import StepName
from flintlock.model.tasks import FileMove, FilesPublished, SinkFiles
from flintlock.spark.engine.conf import UI_KEY
from flintlock.spark.engine.handle import EngineSettings, SparkEngine
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.publication.publish_plan import FileListing
from flintlock.spark.engine.python.python_workers import daemons

T = TypeVar("T")

#: A value that a properties file could mangle.
ODD: Final = "a=b: \\ #é \N{DUCK}"
KEY: Final = bytes(range(32))  # by which tokens for the UI of Spark are signed

#: A client as a runner is one: URL and mode in, one line of JSON out.
CLIENT: Final = """
import json, os, sys
from pyspark.sql.connect.session import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType
url, mode = sys.argv[1:]
spark = SparkSession.builder.remote(url).create()
if mode == "query":
    @F.udf(StringType())
    def worker(n):
        import sys
        return f"{n}:{sys.executable}"
    @F.pandas_udf(LongType())
    def doubled(n):
        return n * 2
    rows = spark.range(3).select(worker("id"), doubled("id")).collect()
    spark.range(1000).selectExpr("id % 10 AS k").groupBy("k").count().collect()
    print(json.dumps({
        "workers": [row[0] for row in rows],
        "doubled": [row[1] for row in rows],
        "arrow": spark.range(5).toArrow().column("id").to_pylist(),
        "time zone": spark.conf.get("spark.sql.session.timeZone"),
        "scheduler": spark.conf.get("spark.scheduler.mode"),
        "odd": spark.conf.get("spark.flintlock.odd", None),
    }), flush=True)
elif mode == "touch":
    print(json.dumps(spark.sql("SELECT 1 AS one").collect()[0].asDict()), flush=True)
elif mode == "long":
    spark.sql("SELECT count(*) FROM range(1000000000000) WHERE sha2(cast(id AS string), 256) = ''").collect()
elif mode == "stuck":
    @F.udf(StringType())
    def stuck(n):
        import threading
        threading.Event().wait()
    spark.range(2).select(stuck("id")).collect()
os._exit(0)
"""

#: Stands for a TaskManager: starts an engine, prints its URL, and waits to be killed.
TASK_MANAGER: Final = """
import asyncio, sys
import msgspec
from flintlock.spark.engine.handle import EngineSettings, SparkEngine
async def main():
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineSettings)
    async with SparkEngine.start(settings) as engine:
        print(engine.remote_url, flush=True)
        await engine.died()
asyncio.run(main())
"""


class Shared:
    """One engine for the tests that do not change it, and its event loop."""

    def __init__(self, runner: asyncio.Runner, engine: SparkEngine, settings: EngineSettings) -> None:
        self._runner: Final = runner
        self.engine: Final = engine
        self.settings: Final = settings

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the engine's loop."""
        return self._runner.run(work)

    def publish(self, *sinks: SinkFiles) -> list[FilesPublished]:
        """Publish, and return the progress."""

        async def progress() -> list[FilesPublished]:
            return [news async for news in self.engine.publish(sinks)]

        return self.do(progress())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """An engine on the wheel's Java."""
    place = tmp_path_factory.mktemp("engine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # Where Spark itself answers what runs in it; see `active_tasks`.
    ui = {"spark.ui.enabled": "true", "spark.ui.port": port, UI_KEY: urlsafe_b64encode(KEY).decode()}
    settings = settings_for(place, {}, conf={"spark.flintlock.odd": ODD, **ui})
    with asyncio.Runner() as runner:
        scope = SparkEngine.start(settings)
        engine = runner.run(scope.__aenter__())
        try:
            yield Shared(runner, engine, settings)
        finally:
            runner.run(scope.__aexit__(None, None, None))


def settings_for(place: Path, environ: dict[str, str], **changes: Any) -> EngineSettings:
    """Return an engine's settings, all of it below `place`."""
    return EngineSettings(
        java=find_java(environ),
        scratch_dir=str(place / "scratch"),
        log_file=str(place / "log" / "engine.log"),
        run_dir=str(place / "run"),
        work_root=str(place / "work"),
        archive_dir=str(cache_directory()),
        **changes,
    )


def new_session() -> SparkSessionKey:
    return SparkSessionKey(user_id=f"job-{uuid.uuid4().hex}", session_id=str(uuid.uuid4()))


@contextlib.contextmanager
def client(url: str, session: SparkSessionKey, mode: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a client in a process of its own; it is gone when the scope ends."""
    address = f"{url};user_id={session.user_id};session_id={session.session_id}"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CLIENT, address, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SPARK_CONNECT_MODE_ENABLED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def query(url: str, session: SparkSessionKey, mode: str = "query") -> dict[str, Any]:
    """Run the client's query and return what it found."""
    with client(url, session, mode) as process:
        assert process.stdout is not None
        return msgspec.json.decode(process.stdout.readline())


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that came of it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes: list[psutil.Process], within_s: float) -> bool:
    return psutil.wait_procs(processes, timeout=within_s)[1] == []


def staged(target: Path, *names: str) -> SinkFiles:
    """Write files to a staging directory inside the target, and return what publishing them means."""
    staging = target / f"{PREFIX}{'0' * 32}-0-1"
    for name in names:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(name)
    return SinkFiles(
        step=StepName("out"),
        target=str(target),
        staging=str(staging),
        moves=tuple(FileMove(str(staging / name), str(target / name)) for name in names),
        success_marker=str(target / "_SUCCESS"),
    )


def files_in(place: Path) -> dict[str, str]:
    """Return the files below a directory with their content; checksums are Hadoop's own business."""
    every = (path for path in place.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
    return {str(path.relative_to(place)): path.read_text() for path in every}


def test_sparks_ui_is_read_with_links_below_a_root(shared: Shared) -> None:
    root = "/spark-ui/pass"

    first = shared.do(shared.engine.read_ui("/", root))
    jobs = shared.do(shared.engine.read_ui("/jobs/", root))
    script = shared.do(shared.engine.read_ui("/static/webui.js", root))
    executors = shared.do(shared.engine.read_ui(f"/api/v1/applications/{shared.engine.ready.application_id}", root))

    assert (first.status, first.location) == (302, f"{root}/jobs/")
    assert jobs.status == 200
    assert f'href="{root}/stages/"'.encode() in jobs.body
    assert f'src="{root}/static/webui.js"'.encode() in jobs.body
    assert b"/kill/" not in jobs.body
    assert (script.status, script.content_type.partition(";")[0]) == (200, "text/javascript")
    assert shared.engine.ready.application_id.encode() in executors.body


def test_a_connect_query_with_python_functions_and_arrow(shared: Shared) -> None:
    session = new_session()

    found = query(shared.engine.remote_url, session)

    assert found["workers"] == [f"{n}:{sys.executable}" for n in range(3)]
    assert found["doubled"] == [0, 2, 4]
    assert found["arrow"] == [0, 1, 2, 3, 4]
    assert (found["time zone"], found["scheduler"], found["odd"]) == ("UTC", "FAIR", ODD)
    measured = shared.do(shared.engine.measure(session))
    assert measured.session.read_records >= 1000
    assert measured.session.stages_done == measured.session.stages_total > 0
    assert measured.session.tasks_done == measured.session.tasks_total > 0

    jvm = shared.engine.ready.jvm_pid
    assert list(daemons(jvm))
    assert shared.do(shared.engine.release_session(session))
    until("the session's Python workers are gone", lambda: not list(daemons(jvm)), 10.0)


def works(shared: Shared, session: SparkSessionKey) -> bool:
    """Return whether tasks of the session run."""
    measured = shared.do(shared.engine.measure(session)).session
    return measured.tasks_total > measured.tasks_done


def active_tasks(shared: Shared) -> int:
    """Return how many tasks the engine's executor runs, by Spark's own metrics: of all sessions."""
    url = f"http://127.0.0.1:{shared.settings.conf['spark.ui.port']}/metrics/json/"
    assert httpx.get(url).status_code == 403, "the UI serves callers with a token only"
    token = jwt.encode({}, KEY, "HS256")
    gauges = httpx.get(url, headers={"Authorization": f"Bearer {token}"}).json()["gauges"]
    (active,) = (gauge["value"] for name, gauge in gauges.items() if name.endswith(".threadpool.activeTasks"))
    return int(active)


def test_releasing_a_session_interrupts_its_work(shared: Shared) -> None:
    """Nothing of it runs in the engine when the release is confirmed; the thread of a task may need a moment to end."""
    session, engine = new_session(), shared.engine

    with client(engine.remote_url, session, "long") as process:
        until("a running task", lambda: works(shared, session) and active_tasks(shared) > 0)

        released = shared.do(engine.release(session.user_id, session.session_id))

        assert released.confirmed
        until("no active task", lambda: active_tasks(shared) == 0, 2.0)
        assert process.wait(30) != 0


def test_what_cannot_be_confirmed_in_time_is_not_confirmed(shared: Shared) -> None:
    session, engine = new_session(), shared.engine

    with client(engine.remote_url, session, "long"):
        until("a running task", lambda: works(shared, session))

        hasty = shared.do(engine.release(session.user_id, session.session_id, timeout_s=0.0))

        assert not hasty.confirmed
        assert hasty.active
        assert shared.do(engine.release_session(session))


def test_all_sessions_of_a_user_are_released_and_stay_closed(shared: Shared) -> None:
    first, other = new_session(), new_session()
    second = SparkSessionKey(user_id=first.user_id, session_id=str(uuid.uuid4()))
    for session in (first, second, other):
        assert query(shared.engine.remote_url, session, "touch") == {"one": 1}

    assert shared.do(shared.engine.release(first.user_id)).confirmed

    for session in (first, second):
        with client(shared.engine.remote_url, session, "touch") as late:
            assert late.wait(60) != 0
    assert query(shared.engine.remote_url, other, "touch") == {"one": 1}
    assert shared.do(shared.engine.release_session(other))


def test_a_session_that_never_was_can_be_released_but_not_opened_afterwards(shared: Shared) -> None:
    session = new_session()

    assert shared.do(shared.engine.release_session(session))
    assert shared.do(shared.engine.release_session(session))

    with client(shared.engine.remote_url, session, "touch") as late:
        assert late.wait(60) != 0
    with pytest.raises(Refused, match="'seven' is not a session id"):
        shared.do(shared.engine.release("user", "seven"))


def test_connections_without_the_token_are_refused(shared: Shared) -> None:
    address = shared.engine.remote_url.removeprefix("sc://").partition("/")[0]

    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/spark.connect.SparkConnectService/Config")(b"", timeout=10)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_files_are_listed_by_their_names_from_there(shared: Shared, tmp_path: Path) -> None:
    (tmp_path / "d=1 é").mkdir()
    (tmp_path / "d=1 é" / "part-0").write_text("12345")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "a\nb").touch()

    listed = shared.do(shared.engine.list_files(str(tmp_path)))
    weighed = shared.do(shared.engine.list_files(tmp_path.as_uri(), with_sizes=True))
    itself = shared.do(shared.engine.list_files(str(tmp_path / "_SUCCESS")))
    missing = shared.do(shared.engine.list_files(str(tmp_path / "none")))

    assert listed == FileListing(files=("_SUCCESS", "a\nb", "d=1 é/part-0"))
    assert weighed == FileListing(files=listed.files, sizes=(0, 0, 5))
    assert itself.files == ("_SUCCESS",)
    assert missing == FileListing(exists=False)
    with pytest.raises(JobFailed, match=r"cannot list nope://x/y.*UnsupportedFileSystemException"):
        shared.do(shared.engine.list_files("nope://x/y"))


def test_publishing_reports_its_progress_and_can_be_repeated(shared: Shared, tmp_path: Path) -> None:
    sink = staged(tmp_path, "d=1/a", "d=2/b")

    progress = shared.publish(sink)

    assert [(news.done, news.total, news.complete) for news in progress] == [
        (1, 4, False),
        (2, 4, False),
        (4, 4, False),
        (4, 4, True),
    ]
    published = {"d=1/a": "d=1/a", "d=2/b": "d=2/b", "_SUCCESS": ""}
    assert files_in(tmp_path) == published
    assert not Path(sink.staging).exists()
    assert shared.publish(sink)[-1].complete
    assert files_in(tmp_path) == published


def test_a_publication_that_was_cut_short_is_completed(shared: Shared, tmp_path: Path) -> None:
    sink = staged(tmp_path, "a", "b", "c")
    Path(sink.moves[0].source).rename(sink.moves[0].target)  # moved
    Path(sink.moves[1].target).write_text("b")  # copied, its source not yet removed
    Path(sink.moves[2].target).write_text("")  # copied in part

    assert shared.publish(sink)[-1].complete

    assert files_in(tmp_path) == {"a": "a", "b": "b", "c": "c", "_SUCCESS": ""}
    assert not Path(sink.staging).exists()


def test_a_file_that_is_nowhere_is_named_and_nothing_is_marked(shared: Shared, tmp_path: Path) -> None:
    sink = staged(tmp_path, "a", "b")
    Path(sink.moves[1].source).unlink()

    with pytest.raises(JobFailed, match=f"{sink.moves[1].source} is gone.*neither file exists"):
        shared.publish(sink)

    assert files_in(tmp_path) == {"a": "a"}


def test_a_failed_overwrite_leaves_no_success_marker_and_reports_all_that_it_has_done(
    shared: Shared, tmp_path: Path
) -> None:
    """A directory stands for a file that cannot be removed: Hadoop does not remove one with content."""
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "old" / "content").mkdir(parents=True)
    sink = msgspec.structs.replace(staged(tmp_path, "a", "b", "c"), removes=(str(tmp_path / "old"),))
    reported: list[FilesPublished] = []

    async def publish() -> None:
        async for news in shared.engine.publish((sink,)):
            reported[:] = [news]

    with pytest.raises(JobFailed, match="cannot remove"):
        shared.do(publish())

    assert files_in(tmp_path) == {"a": "a", "b": "b", "c": "c"}
    assert (reported[-1].done, reported[-1].total) == (4, 6)


def test_a_file_that_is_gone_is_a_permanent_failure(shared: Shared, tmp_path: Path) -> None:
    sink = staged(tmp_path, "a")
    Path(sink.moves[0].source).unlink()
    with pytest.raises(JobFailed) as failed:
        shared.publish(sink)
    assert failed.value.permanent


def test_a_publication_that_nobody_waits_for_stops_after_the_file_that_it_is_at(shared: Shared, tmp_path: Path) -> None:
    sink = staged(tmp_path, *(f"part-{number:04}" for number in range(2000)))

    async def leave() -> None:
        async for _ in shared.engine.publish((sink,)):
            break

    shared.do(leave())
    count = -1
    while count != (count := len(list(tmp_path.glob("part-*")))):
        shared.do(asyncio.sleep(0.3))

    assert count < 2000
    assert not (tmp_path / "_SUCCESS").exists()


def test_an_overwrite_removes_what_it_names_and_nothing_else(shared: Shared, tmp_path: Path) -> None:
    (tmp_path / "d=0" / "h=0").mkdir(parents=True)
    (tmp_path / "d=0" / "h=0" / "old").write_text("old")
    (tmp_path / "d=9").mkdir()
    for name in ("d=9/old", "d=9/later"):
        (tmp_path / name).write_text(name)
    sink = staged(tmp_path, "d=1/new")
    (Path(sink.staging) / "foreign").write_text("stays")
    removes = tuple(str(tmp_path / name) for name in ("d=0/h=0/old", "d=9/old", "never"))

    assert shared.publish(msgspec.structs.replace(sink, removes=removes))[-1].complete

    assert files_in(tmp_path) == {
        "d=1/new": "d=1/new",
        "d=9/later": "d=9/later",
        "_SUCCESS": "",
        f"{Path(sink.staging).name}/foreign": "stays",
    }
    assert not (tmp_path / "d=0").exists()


def test_only_flintlocks_own_directories_are_removed(shared: Shared, tmp_path: Path) -> None:
    work = Path(shared.settings.work_root)
    own, job, users = tmp_path / f"{PREFIX}x", work / "job" / "step", tmp_path / "data"
    for place in (own, job, users):
        place.mkdir(parents=True)
        (place / "file").write_text("x")

    for refused in (users, work, own / "..", work / ".." / "other", f"{work}x/job", own / "inner"):
        with pytest.raises(Refused, match="is not Flintlock's own"):
            shared.do(shared.engine.remove_directories((str(refused),)))
    shared.do(shared.engine.remove_directories((str(own), job.parent.as_uri(), str(tmp_path / f"{PREFIX}gone"))))

    assert not own.exists()
    assert not job.parent.exists()
    assert (users / "file").exists()
    assert work.exists()


def test_a_pattern_removes_the_staging_of_all_attempts_at_its_region_and_nothing_else(
    shared: Shared, tmp_path: Path
) -> None:
    """Also below a directory whose name Hadoop would take for a pattern."""
    target = tmp_path / "out{a,b}[1]*"
    job = "a" * 32
    own = [target / f"{PREFIX}{job}-1-{attempt}" for attempt in (0, 1, 12)]
    others = [target / f"{PREFIX}{job}-{name}" for name in ("0-1", "11-1")] + [target / "part-0", tmp_path / "outa"]
    for path in (*own, *others):
        path.mkdir(parents=True)
        (path / "file").write_text("rows")

    shared.do(shared.engine.remove_directories((f"{target}/{PREFIX}{job}-1-*",)))
    shared.do(shared.engine.remove_directories((f"{target}/{PREFIX}{job}-1-*", f"{tmp_path}/gone/{PREFIX}{job}-1-*")))

    assert [path for path in own if path.exists()] == []
    assert [path for path in others if not (path / "file").exists()] == []


def test_a_jvm_that_cannot_start_is_reported_with_its_cause(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, {}, conf={"spark.driver.extraJavaOptions": "-XX:MaxHeapSize=many"})

    async def start() -> None:
        async with SparkEngine.start(settings):
            pass

    with pytest.raises(Unavailable, match=r"exit code 1(.|\n)*MaxHeapSize"):
        asyncio.run(start())
    assert list(Path(settings.run_dir).iterdir()) == []


def test_an_engine_that_a_java_exception_keeps_from_starting_says_why(tmp_path: Path) -> None:
    """The JVM is asked for the cause before it is killed; the start never hangs."""
    settings = settings_for(tmp_path, {}, conf={"spark.plugins": "no.such.Plugin"})

    async def start() -> None:
        async with asyncio.timeout(120), SparkEngine.start(settings):
            pytest.fail("it has started")

    with pytest.raises(Unavailable, match=r"Spark cannot be started: ClassNotFoundException: no\.such\.Plugin"):
        asyncio.run(start())


def test_an_engine_that_is_not_ready_in_time_is_ended_with_the_end_of_its_log(tmp_path: Path) -> None:
    """It may wait for executors that never come; its log says so."""
    settings = settings_for(tmp_path, {}, start_timeout_s=0.5)  # as long as a JVM takes to start at all

    async def start() -> None:
        async with SparkEngine.start(settings):
            pytest.fail("it has started")

    with pytest.raises(Unavailable, match=r"it is not ready after 0\.5 s \(taskmanager\.engine\.start-timeout\)"):
        asyncio.run(start())
    assert list(Path(settings.run_dir).iterdir()) == [], "nothing of it runs"


def test_the_death_of_the_jvm_is_reported_on_a_jdk_where_there_is_one(tmp_path: Path) -> None:
    """Also the test that an engine starts, and runs Python functions, on whatever Java the machine offers."""
    environ = {name: value for name, value in os.environ.items() if name != "FLINTLOCK_JAVA_HOME"}
    settings = settings_for(tmp_path, environ)
    session = new_session()

    async def live() -> tuple[str, list[psutil.Process], dict[str, Any]]:
        async with SparkEngine.start(settings) as engine:
            found = await asyncio.to_thread(query, engine.remote_url, session)
            processes = family(psutil.Process(engine.ready.jvm_pid).ppid())
            os.kill(engine.ready.jvm_pid, signal.SIGKILL)
            cause = await asyncio.wait_for(engine.died(), 10)
            with pytest.raises(Unavailable, match="the Spark engine died: the JVM was killed by SIGKILL"):
                await engine.list_files("/")
            return cause, processes, found

    cause, processes, found = asyncio.run(live())

    assert "the JVM was killed by SIGKILL" in cause
    assert found["doubled"] == [0, 2, 4]
    assert len(processes) >= 3  # the engine's process, its JVM, a Python worker
    assert gone(processes, 5)
    assert list(Path(settings.run_dir).iterdir()) == []


def test_nothing_outlives_a_taskmanager_that_is_killed(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, {})
    process = subprocess.Popen(
        [sys.executable, "-c", TASK_MANAGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process as task_manager:
        assert task_manager.stdin is not None
        assert task_manager.stdout is not None
        task_manager.stdin.write(msgspec.json.encode(settings) + b"\n")
        task_manager.stdin.flush()
        url = task_manager.stdout.readline().decode().strip()
        with client(url, new_session(), "stuck"):
            until("two Python workers", lambda: len(family(task_manager.pid)) >= 6)
            processes = family(task_manager.pid)[1:]
            engine_and_jvm = [one for one in processes if "pyspark.daemon" not in one.cmdline()]
            task_manager.kill()
            assert gone(engine_and_jvm, 2)
            assert gone(processes, 5)
