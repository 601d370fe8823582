"""What a TaskManager answers about its own process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.taskmanager.harness import TaskManagerHarness

from flintlock.host.logs.process_logs import ProcessLogs, read_last_lines
from flintlock.model.diagnostics import (
    MAX_LOG_BYTES,
    DumpProcessThreads,
    ListProcessLogs,
    ProcessLogRead,
    ProcessLogsListed,
    ProcessSettingsRead,
    ProcessThreadsDumped,
    ReadProcessLog,
    ReadProcessSettings,
)
from flintlock.model.errors import NotFound
from flintlock.model.ids import TaskManagerId
from flintlock.taskmanager.process_queries import answer_process_query
from flintlock.testing.virtual_time import virtual_time

TM = TaskManagerId("tm")


@pytest.fixture
def logs(tmp_path: Path) -> ProcessLogs:
    (tmp_path / "taskmanager-0.log").write_text("started\n")
    (tmp_path / "taskmanager-0.out").write_text("printed\n")
    (tmp_path / ".hidden").write_text("no")
    return ProcessLogs(directory=tmp_path, log=tmp_path / "taskmanager-0.log", stdout=tmp_path / "taskmanager-0.out")


def answer(
    query: DumpProcessThreads | ListProcessLogs | ReadProcessLog | ReadProcessSettings, logs: ProcessLogs
) -> object:
    return asyncio.run(answer_process_query(query, logs, {"parallelism.default": "2"}))


def test_its_configuration_is_read(logs: ProcessLogs) -> None:
    read = answer(ReadProcessSettings(task_manager=TM), logs)

    assert read == ProcessSettingsRead(settings={"parallelism.default": "2"})


def test_its_threads_and_tasks_are_dumped(logs: ProcessLogs) -> None:
    dumped = answer(DumpProcessThreads(task_manager=TM), logs)

    assert isinstance(dumped, ProcessThreadsDumped)
    names = [stack.name for stack in dumped.stacks]
    assert names[0] == "MainThread"
    assert any(name.startswith("task ") for name in names)


def test_log_files_are_listed_and_read_by_name(logs: ProcessLogs) -> None:
    listed = answer(ListProcessLogs(task_manager=TM), logs)

    assert isinstance(listed, ProcessLogsListed)
    assert [(file.name, file.size) for file in listed.files] == [("taskmanager-0.log", 8), ("taskmanager-0.out", 8)]
    assert answer(ReadProcessLog(task_manager=TM, file="taskmanager-0.out"), logs) == ProcessLogRead(data=b"printed\n")
    assert answer(ReadProcessLog(task_manager=TM), logs) == ProcessLogRead(data=b"started\n")
    assert answer(ReadProcessLog(task_manager=TM, stdout=True), logs) == ProcessLogRead(data=b"printed\n")


def test_the_log_of_its_engine_is_read(tmp_path: Path) -> None:
    engine = tmp_path / "taskmanager-0-engine.log"
    engine.write_text("of Spark\n")
    query = ReadProcessLog(task_manager=TM, engine=True)

    assert answer(query, ProcessLogs(engine=engine)) == ProcessLogRead(data=b"of Spark\n")
    with pytest.raises(NotFound, match="no Spark engine with a log"):
        answer(query, ProcessLogs())


@pytest.mark.parametrize("name", ["nothing.log", ".hidden", "../secret", "", "x\0y"])
def test_only_listed_files_are_read(logs: ProcessLogs, name: str) -> None:
    with pytest.raises(NotFound, match="was not found"):
        answer(ReadProcessLog(task_manager=TM, file=name), logs)


def test_a_process_that_logs_elsewhere_says_so() -> None:
    with pytest.raises(NotFound, match="does not write its log to a file"):
        answer(ReadProcessLog(task_manager=TM), ProcessLogs())
    with pytest.raises(NotFound, match="does not print to a file"):
        answer(ReadProcessLog(task_manager=TM, stdout=True), ProcessLogs())
    assert answer(ListProcessLogs(task_manager=TM), ProcessLogs()) == ProcessLogsListed(files=())


def test_of_a_large_log_the_last_lines_are_sent(logs: ProcessLogs) -> None:
    assert logs.log is not None
    line = b"x" * 99 + b"\n"
    logs.log.write_bytes(line * (MAX_LOG_BYTES // 100 + 1000))

    read = answer(ReadProcessLog(task_manager=TM), logs)

    assert isinstance(read, ProcessLogRead)
    assert MAX_LOG_BYTES - 100 < len(read.data) <= MAX_LOG_BYTES
    assert read.data.startswith(line)
    assert read.data.endswith(line)


def test_a_cut_starts_at_a_line_unless_there_is_only_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first\nsecond\n")

    assert read_last_lines(tmp_path / "log", 100) == b"first\nsecond\n"
    assert read_last_lines(tmp_path / "log", 10) == b"second\n"
    assert read_last_lines(tmp_path / "log", 3) == b""
    (tmp_path / "log").write_bytes(b"0123456789")
    assert read_last_lines(tmp_path / "log", 3) == b"789"


@virtual_time
async def test_a_task_manager_without_an_engine_answers(tmp_path: Path) -> None:
    """An operator wants to see the threads of a process that does not come up."""
    harness = TaskManagerHarness(tmp_path / "log")

    assert isinstance(
        await harness.task_manager.query_process(DumpProcessThreads(task_manager=TM)), ProcessThreadsDumped
    )
