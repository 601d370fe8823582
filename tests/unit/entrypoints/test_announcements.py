from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.entrypoints.process import write_json
from flintlock.entrypoints.serving.announcements import Announcements, keep_announced
from flintlock.ha.embedded.backend import find_in_state_directory
from flintlock.host.processes.pid_files import identity, job_managers
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def announcements(state_dir: Path, name: str = "jobmanager", rest: str = "http://h:1") -> Announcements:
    return Announcements(state_dir, name, cluster_id="default", rest=rest, rpc="h:2")


def test_clients_find_what_is_announced(tmp_path: Path) -> None:
    first = announcements(tmp_path)
    first.listen()
    announcements(tmp_path, "jobmanager-1", "http://h:3").listen()
    assert [(file.rest, file.epoch) for file in job_managers(tmp_path)] == [("http://h:1", 0), ("http://h:3", 0)]

    announcements(tmp_path, "jobmanager-1", "http://h:3").lead(Epoch(4))

    assert [(file.rest, file.epoch) for file in job_managers(tmp_path)] == [("http://h:3", 4), ("http://h:1", 0)]
    assert job_managers(tmp_path)[0].pid == os.getpid()


def test_two_of_one_name_are_both_found(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        known = identity(other.pid)
        document = {"cluster-id": "default", "rest": "http://h:9", "pid": known.pid, "start-time": known.start_time}
        write_json(tmp_path / "run" / "jobmanager.json", document)
        announcements(tmp_path).listen()
        assert {file.rest for file in job_managers(tmp_path)} == {"http://h:9", "http://h:1"}
        other.kill()
    announcements(tmp_path).listen()
    assert [file.rest for file in job_managers(tmp_path)] == ["http://h:1"]


def test_a_taskmanager_finds_the_leader_where_the_port_is_configured(tmp_path: Path) -> None:
    """The configured port is the first JobManager's; another one may lead beside it."""
    settings = Configuration({"jobmanager.rpc.port": "6123", "jobmanager.rpc.address": "h"})
    assert find_in_state_directory(settings, tmp_path)() == "h:6123"
    announcements(tmp_path).listen()
    assert find_in_state_directory(settings, tmp_path)() == "h:6123"
    announcements(tmp_path).lead(Epoch(2))
    assert find_in_state_directory(settings, tmp_path)() == "h:2"
    elsewhere = Configuration({"jobmanager.rpc.port": "6123", "jobmanager.rpc.address": "g"})
    assert find_in_state_directory(elsewhere, tmp_path)() == "g:6123"


def test_a_taskmanager_finds_the_leader_by_the_state_directory(tmp_path: Path) -> None:
    find = find_in_state_directory(Configuration({}), tmp_path)
    with pytest.raises(Unavailable):
        find()
    announcements(tmp_path).lead(Epoch(2))
    assert find() == "h:2"


def test_an_older_leader_does_not_write_over_a_newer_one_that_runs(tmp_path: Path) -> None:
    announcements(tmp_path, "jobmanager-1", "http://h:3").lead(Epoch(5))
    announcements(tmp_path).lead(Epoch(4))
    assert job_managers(tmp_path)[0].rest == "http://h:3"

    dead = {**json.loads((tmp_path / "cluster.json").read_text()), "start-time": 5.0}
    write_json(tmp_path / "cluster.json", dead)
    announcements(tmp_path).lead(Epoch(1))  # the store was removed
    assert job_managers(tmp_path)[0].epoch == 1


def test_stepping_down_takes_back_only_what_is_ones_own(tmp_path: Path) -> None:
    own = announcements(tmp_path)
    own.lead(Epoch(1))
    own.step_down()
    own.step_down()
    assert not (tmp_path / "cluster.json").exists()

    own.lead(Epoch(2))
    newer = {**json.loads((tmp_path / "cluster.json").read_text()), "pid": 1, "epoch": 3}
    write_json(tmp_path / "cluster.json", newer)
    own.step_down()
    assert json.loads((tmp_path / "cluster.json").read_text())["epoch"] == 3


@pytest.mark.anyio
async def test_a_file_that_cannot_be_written_is_written_when_there_is_room_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way of the directory")
    own = announcements(tmp_path)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        announcing = tasks.create_task(keep_announced(own, CurrentDispatcher(lambda _: None)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not announcing.done()
        (tmp_path / "run").unlink()
        while not job_managers(tmp_path):  # noqa: ASYNC110 (a file)
            await asyncio.sleep(0.01)
        announcing.cancel()


class StalledAnnouncements(Announcements):
    """Its disk does not answer until it is resumed."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir, "jobmanager", cluster_id="default", rest="http://h:1", rpc="h:2")
        self.begun = threading.Event()
        self.resumed = threading.Event()

    def listen(self) -> None:
        """Wait for the disk."""
        self.begun.set()
        self.resumed.wait(10)
        super().listen()


@pytest.mark.anyio
async def test_a_disk_that_stalls_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    own = StalledAnnouncements(tmp_path)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        announcing = tasks.create_task(keep_announced(own, CurrentDispatcher(lambda _: None)))
        while not own.begun.is_set():  # noqa: ASYNC110 (of a thread)
            await asyncio.sleep(0.01)
        assert not job_managers(tmp_path)
        own.resumed.set()
        while not job_managers(tmp_path):  # noqa: ASYNC110 (a file)
            await asyncio.sleep(0.01)
        announcing.cancel()
