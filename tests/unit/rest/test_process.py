"""What a JobManager returns about its own process: logs, environment, threads. No leader is needed for that."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.rest.rest_harness import RestHarness

from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.model.diagnostics import (
    DumpProcessThreads,
    ListProcessLogs,
    LogFileInfo,
    ProcessLogRead,
    ProcessLogsListed,
    ProcessSettingsRead,
    ProcessThreadsDumped,
    ReadProcessLog,
    ReadProcessSettings,
    ThreadStack,
)
from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.rest.secrets import arguments_without_secrets, without_secrets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log directory with what may lie in one."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0-0.log").write_text("of a job")
    (tmp_path / "jobmanager.log").write_text("started ä\n")
    (tmp_path / "taskmanager-0.log").write_text("warm\n")
    (tmp_path / ".hidden").write_text("not yet whole")
    (tmp_path.parent / "secret").write_text("not for every user")
    (tmp_path / "link.log").symlink_to(tmp_path.parent / "secret")
    return tmp_path


def read_log(rest: RestHarness, path: str) -> str:
    response = rest.call("GET", path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; charset=UTF-8"
    return response.text


def test_log_files_are_listed_and_served(folder: Path) -> None:
    """Plain files only: nothing beneath, nothing hidden, nothing that leads elsewhere."""
    rest = RestHarness(ProcessLogs(directory=folder))
    rest.dispatcher.fail_with = Unavailable("no JobManager leads")

    listed = rest.get("/jobmanager/logs")["logs"]

    assert [(item["name"], item["size"]) for item in listed] == [("jobmanager.log", 11), ("taskmanager-0.log", 5)]
    assert listed[0]["mtime"] == (folder / "jobmanager.log").stat().st_mtime_ns // 1_000_000
    assert read_log(rest, "/jobmanager/logs/taskmanager-0.log") == "warm\n"


@pytest.mark.parametrize("name", ["nothing.log", "link.log", ".hidden", "jobs", "..%2Fsecret", "%2e%2e", "x%00y"])
def test_only_log_files_are_served(folder: Path, name: str) -> None:
    """Whatever else is asked for is not found."""
    rest = RestHarness(ProcessLogs(directory=folder))

    assert "not" in rest.refused(404, "GET", f"/jobmanager/logs/{name}")[0]


def test_the_own_log_is_where_the_output_goes(folder: Path) -> None:
    """Not the file with the likeliest name."""
    with (folder / "other.log").open("ab") as mine, (folder / "jobmanager.out").open("ab") as printed:
        mine.write(b"this process\n")
        mine.flush()
        logs = ProcessLogs.of(folder, stderr=mine.fileno(), stdout=printed.fileno())
    rest = RestHarness(logs)

    assert read_log(rest, "/jobmanager/log") == "this process\n"
    assert read_log(rest, "/jobmanager/stdout") == ""


def test_a_log_that_goes_elsewhere_is_not_found(folder: Path) -> None:
    """Under a service manager, the process that started it has the log."""
    reading, writing = os.pipe()
    logs = ProcessLogs.of(folder, stderr=writing, stdout=reading)
    os.close(reading)
    os.close(writing)
    closed = ProcessLogs.of(folder, stderr=writing, stdout=reading)

    for rest in (RestHarness(logs), RestHarness(closed), RestHarness()):
        assert "does not write its log to a file" in rest.refused(404, "GET", "/jobmanager/log")[0]
        assert "does not print to a file" in rest.refused(404, "GET", "/jobmanager/stdout")[0]
    assert RestHarness().get("/jobmanager/logs") == {"logs": []}
    assert RestHarness(ProcessLogs.of(folder / "nothing")).get("/jobmanager/logs") == {"logs": []}


def test_a_log_that_grows_while_it_is_read_is_sent_as_it_was(folder: Path) -> None:
    """On a real socket: the process that serves its log writes to it."""
    path = folder / "jobmanager.log"
    path.write_bytes(b"x" * 3_000_000)
    rest = RestHarness(ProcessLogs(directory=folder))

    async def read() -> int:
        seen = 0
        async with (
            asyncio.timeout(20),
            rest.listening() as client,
            client.stream("GET", "/jobmanager/logs/jobmanager.log") as response,
        ):
            async for piece in response.aiter_bytes():
                if not seen:
                    with path.open("ab") as more:
                        more.write(b"y" * 1000)
                seen += len(piece)
                assert b"y" not in piece
        return seen

    assert asyncio.run(read()) == 3_000_000


def test_a_client_that_leaves_while_a_log_is_sent_is_no_error(folder: Path) -> None:
    (folder / "jobmanager.log").write_bytes(b"x" * (1 << 20))
    rest = RestHarness(ProcessLogs(directory=folder))
    begun, sent = asyncio.Event(), []

    async def receive() -> dict[str, Any]:
        if not sent:
            await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            begun.set()
            await asyncio.Event().wait()  # the client reads no more

    async def serve() -> None:
        scope = {"type": "http", "method": "GET", "path": "/jobmanager/logs/jobmanager.log", "query_string": b""}
        asgi = {"version": "3.0", "spec_version": "2.3"}
        async with asyncio.timeout(30):
            await rest.app({**scope, "root_path": "", "asgi": asgi, "headers": [*rest.raw_headers]}, receive, send)

    with capture_logs() as lines:
        asyncio.run(serve())

    assert sent == ["http.response.start", "http.response.body"]
    assert [line for line in lines if line["log_level"] in ("error", "warning")] == []


def test_the_environment_is_pythons() -> None:
    """In the fields that Flink has for its JVM."""
    environment: dict[str, Any] = RestHarness().get("/jobmanager/environment")

    assert "Python" in environment["jvm"]["version"]
    assert environment["jvm"]["options"] == sys.orig_argv[1:]
    assert set(environment["classpath"]) <= set(sys.path)


def test_secrets_of_the_command_line_are_hidden() -> None:
    """By the key that `-D` gives them; all else stands as it was typed."""
    typed = ["-m", "x", "-D", "spark.ssl.keyPassword=a=b", "-D", "rest.port=0", "--state-dir=/s", "token"]

    assert arguments_without_secrets(typed) == [
        "-m", "x", "-D", "spark.ssl.keyPassword=******", "-D", "rest.port=0", "--state-dir=/s", "token",
    ]  # fmt: skip


def test_a_thread_dump_has_threads_and_tasks() -> None:
    """Where each stands: the thread that answers, and a task that waits."""
    rest = RestHarness()

    async def ask() -> list[dict[str, str]]:
        async def somewhere() -> None:
            await asyncio.get_running_loop().create_future()

        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(somewhere(), name="waiting-one")
            await asyncio.sleep(0)
            response = await rest.request("GET", "/jobmanager/thread-dump")
            waiting.cancel()
        return response.json()["threadInfos"]

    infos = {info["threadName"]: info["stringifiedThreadInfo"] for info in asyncio.run(ask())}

    assert "thread_dump" in infos["MainThread"]
    assert "in somewhere" in infos["task waiting-one"]


def test_a_task_manager_answers_about_its_process_in_flinks_form() -> None:
    """Through the ResourceManager, which knows where it is."""
    rest, manager = RestHarness(), TaskManagerId("tm-1")
    listed = LogFileInfo(name="taskmanager-0.log", size=5, modified_ms=17)
    rest.resource_manager.process_answers = {
        DumpProcessThreads(task_manager=manager): ProcessThreadsDumped(
            stacks=(ThreadStack(name="MainThread", text="stands"),)
        ),
        ListProcessLogs(task_manager=manager): ProcessLogsListed(files=(listed,)),
        ReadProcessSettings(task_manager=manager): ProcessSettingsRead(settings={"rest.port": "0"}),
        ReadProcessLog(task_manager=manager): ProcessLogRead(data=b"log\n"),
        ReadProcessLog(task_manager=manager, stdout=True): ProcessLogRead(data=b"printed\n"),
        ReadProcessLog(task_manager=manager, engine=True): ProcessLogRead(data=b"of Spark\n"),
        ReadProcessLog(task_manager=manager, file="a b.log"): ProcessLogRead(data=b"named\n"),
    }

    assert rest.get("/taskmanagers/tm-1/thread-dump") == {
        "threadInfos": [{"threadName": "MainThread", "stringifiedThreadInfo": "stands"}]
    }
    assert rest.get("/taskmanagers/tm-1/logs") == {"logs": [{"name": "taskmanager-0.log", "size": 5, "mtime": 17}]}
    assert rest.get("/taskmanagers/tm-1/config") == [{"key": "rest.port", "value": "0"}]
    assert read_log(rest, "/taskmanagers/tm-1/log") == "log\n"
    assert read_log(rest, "/taskmanagers/tm-1/stdout") == "printed\n"
    assert read_log(rest, "/taskmanagers/tm-1/engine-log") == "of Spark\n"
    assert read_log(rest, "/taskmanagers/tm-1/logs/a%20b.log") == "named\n"


@pytest.mark.parametrize("part", ["thread-dump", "config", "logs", "log", "stdout", "engine-log", "logs/x.log"])
def test_a_task_manager_that_is_not_there_or_does_not_answer(part: str) -> None:
    rest = RestHarness()

    assert "not registered" in rest.refused(404, "GET", f"/taskmanagers/tm-9/{part}")[0]
    rest.resource_manager.fail_with = Unavailable("tm-9:1 did not answer")
    rest.refused(503, "GET", f"/taskmanagers/tm-9/{part}")


def test_secrets_in_values_and_under_the_names_of_file_systems_are_hidden() -> None:
    settings = {
        "spark.hadoop.fs.s3a.encryption.key": "sse",
        "spark.hadoop.fs.azure.sas.data.account": "sas",
        "spark.jars.repositories": "https://user:password@repository.example/jars,https://open.example",
        "spark.driver.extraJavaOptions": "-Dmy.password=p -Duser.timezone=UTC -Xss4m",
        "rest.port": "8081",
    }
    assert without_secrets(settings) == {
        "spark.hadoop.fs.s3a.encryption.key": "******",
        "spark.hadoop.fs.azure.sas.data.account": "******",
        "spark.jars.repositories": "https://******@repository.example/jars,https://open.example",
        "spark.driver.extraJavaOptions": "-Dmy.password=****** -Duser.timezone=UTC -Xss4m",
        "rest.port": "8081",
    }
