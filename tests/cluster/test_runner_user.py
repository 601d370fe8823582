"""User code that runs as another user than its cluster (`taskmanager.runner.user`), and user code that does not."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame
from tests.cluster.processes import Processes, until
from tests.cluster.reachable_python import command_prefix

import flintlock as fl
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import read_program
from flintlock.entrypoints.process import EXIT_UNUSABLE
from flintlock.model.jobgraph import EngineKind
from flintlock.model.states import JobStatus

NOBODY = 65534
PATIENCE_S = 240.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user"),
    pytest.mark.skipif(command_prefix() is None, reason="no other user can read this Python here"),
]

SERVICE_PASSWORD = "password-of-the-service"
JOB_SECRET = "secret-of-a-job"

#: What hostile user code tries: each outcome is 'allowed', or the error that refused it.
PROBE = """
import json, os

def probe(state_dir, files_dir, pid):
    def outcome(act):
        try:
            act()
        except OSError as error:
            return type(error).__name__
        return "allowed"

    return json.dumps({
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "secret": outcome(lambda: open(f"{state_dir}/cluster-secret").close()),
        "state directory": outcome(lambda: os.listdir(state_dir)),
        "store": outcome(lambda: open(f"{state_dir}/store.db", "r+b").close()),
        "output of attempts": outcome(lambda: os.listdir(f"{state_dir}/log/jobs")),
        "log of the engine": outcome(lambda: open(f"{state_dir}/log/taskmanager-0-engine.log", "ab").close()),
        "directories of tasks": outcome(lambda: os.listdir(f"{files_dir}/tasks")),
        "artifacts": outcome(lambda: os.listdir(f"{files_dir}/blobs")),
        "signal": outcome(lambda: os.kill(pid, 0)),
        "environment": outcome(lambda: open(f"/proc/{pid}/environ").close()),
    })
"""
TRIED = {
    "secret", "state directory", "store", "output of attempts", "log of the engine", "directories of tasks",
    "artifacts", "signal", "environment",
}  # fmt: skip


class ForeignRunners(Processes):
    """Processes whose user code runs as nobody; everything is below a directory that all users can pass through."""

    def __init__(self, home: Path) -> None:
        state_dir = home / "state"
        state_dir.mkdir()
        super().__init__(state_dir)
        self.prefix = command_prefix() or ()
        self.settings = ("taskmanager.runner.user=nobody", f"taskmanager.runner.directory={home / 'runners'}")
        self.environment = {"SERVICE_PASSWORD": SERVICE_PASSWORD, "SECRET_DB": JOB_SECRET}

    @property
    def files_dir(self) -> Path:
        """The directory of the TaskManager's runners."""
        (found,) = (self.state_dir.parent / "runners").glob("*-nobody/taskmanager-0")
        return found


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="flintlock-runner-user-")).resolve()
    made.chmod(0o755)
    if not all(above.stat().st_mode & 0o001 for above in made.parents):
        made.rmdir()
        pytest.skip("other users cannot reach the directory for temporary files")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def foreign(home: Path) -> Iterator[ForeignRunners]:
    processes = ForeignRunners(home)
    try:
        processes.start_jobmanager()
        processes.start_taskmanager()
        processes.await_leader()
        processes.await_slots()
        yield processes
    finally:
        processes.stop()


def probes(cluster: Processes, files_dir: Path, script: Path, sink: Path) -> dict[str, dict[str, Any]]:
    """Run the probe in a function, in a Python worker, in a program and in one with a driver of its own."""
    assert cluster.taskmanager is not None
    arguments = (str(cluster.state_dir), str(files_dir), cluster.taskmanager.pid)

    def tries(numbers: DataFrame, params: dict[str, Any]) -> DataFrame:
        from pyspark.sql.functions import lit, udf

        text, values = params["probe"], json.loads(params["arguments"])

        def run() -> str:
            scope: dict[str, Any] = {}
            exec(text, scope)
            return scope["probe"](*values)

        def run_in_worker() -> str:
            sys.stdout.write("printed in a worker\n")
            return run()

        return numbers.withColumn("runner", lit(run())).withColumn("worker", udf(run_in_worker, "string")())

    job = fl.Job("probe", parallelism=1, params={"probe": PROBE, "arguments": json.dumps(arguments)})
    numbers = job.sql("numbers", "SELECT 1 AS id", exchange="blocking")
    tried = job.step(inputs=[numbers], name="tried")(tries)
    job.sink("out", tried, format="parquet", path=str(sink), mode="overwrite")
    job.result("rows", tried)
    script.write_text(f"{PROBE}\nprint('probed', probe(*{arguments!r}))\n")
    own_driver = script.with_name("own_driver.py")
    own_driver.write_text(
        "from pyspark.sql import SparkSession\n"
        f"{PROBE}\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"found = spark.sparkContext.parallelize([1], 1).map(lambda _: probe(*{arguments!r})).collect()\n"
        "print('probed', found[0])\n"
    )
    with fl.connect(cluster.url) as client:
        dedicated = Overrides(engine=EngineKind.DEDICATED)
        handles = [
            client.submit(job),
            client.submit(read_program(script)),
            client.submit(read_program(own_driver), overrides=dedicated),
        ]
        for handle in handles:
            until(f"the end of {handle}", lambda handle=handle: handle.ended_within(10.0), PATIENCE_S)
            assert handle.status is JobStatus.FINISHED, f"{handle.attempts().failure}\n{cluster.logs()}"
        (row,) = handles[0].result("rows").rows()
        printed = ["".join(part.text for part in handle.logs()) for handle in handles]
    assert "printed in a worker\n" in printed[0], "what functions print is in the log of their job"
    programs = [
        next(line.removeprefix("probed ") for line in text.splitlines() if line.startswith("probed"))
        for text in printed[1:]
    ]
    names = ("runner", "worker", "program", "worker of an own driver")
    return {name: json.loads(text) for name, text in zip(names, (row[1], row[2], *programs), strict=True)}


def test_a_taskmanager_does_not_start_with_a_user_whom_user_code_must_not_run_as(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flintlock.entrypoints.taskmanager", "--state-dir", str(tmp_path)]
    done = subprocess.run([*command, "-D", "taskmanager.runner.user=root"], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_UNUSABLE
    assert "taskmanager.runner.user is 'root', who is root" in done.stderr


def test_without_another_user_jobs_have_the_rights_of_their_cluster(standing: Processes, tmp_path: Path) -> None:
    """As SECURITY.md says: jobs of one cluster trust each other."""
    files_dir = standing.state_dir / "run" / "taskmanager-0"
    found = probes(standing, files_dir, tmp_path / "script.py", tmp_path / "out")
    for place, seen in found.items():
        assert seen["uid"] == os.getuid(), place
        assert {name: seen[name] for name in TRIED} == dict.fromkeys(TRIED, "allowed"), place


def test_user_code_of_another_user_reads_nothing_of_the_cluster_and_signals_none_of_its_processes(
    foreign: ForeignRunners, home: Path
) -> None:
    targets = home / "targets"
    targets.mkdir()
    os.chown(targets, NOBODY, NOBODY)
    found = probes(foreign, foreign.files_dir, home / "script.py", targets / "out")
    for place, seen in found.items():
        assert (seen["uid"], seen["groups"]) == (NOBODY, []), place
        assert {name: seen[name] for name in TRIED} == dict.fromkeys(TRIED, "PermissionError"), place
    published = [path for path in (targets / "out").iterdir() if path.suffix == ".parquet"]
    assert {path.stat().st_uid for path in published} == {NOBODY}, "what is published is that user's"
    assert (targets / "out" / "_SUCCESS").exists()
    assert stat.S_IMODE(foreign.state_dir.stat().st_mode) == 0o700


def test_no_process_of_user_code_shows_a_secret_in_its_environment_or_command_line(
    foreign: ForeignRunners, home: Path
) -> None:
    """Engine, JVM, Python workers, template and runner, while a task with a secret runs in them."""
    marks = home / "seen"
    marks.mkdir()
    os.chown(marks, NOBODY, NOBODY)

    def holds(numbers: DataFrame, params: dict[str, Any]) -> DataFrame:
        from threading import Event

        from pyspark.sql.functions import udf

        def same(number: int) -> int:
            return number

        assert params["password"] == params["expected"], "the task has its secret"
        assert numbers.select(udf(same, "long")("id")).collect()  # its worker stays with the session
        Path(params["marks"], "running").touch()
        while not Path(params["marks"], "looked").exists():
            Event().wait(0.05)
        return numbers

    values = {"marks": str(marks), "password": "${secret:DB}", "expected": JOB_SECRET}
    job = fl.Job("holds", parallelism=1, params=values)
    job.result("rows", job.step(inputs=[job.sql("one", "SELECT 1 AS id")], name="last")(holds))
    assert foreign.taskmanager is not None
    with fl.connect(foreign.url) as client:
        handle = client.submit(job)
        until("the task", lambda: (marks / "running").exists() or handle.ended_within(0.1), PATIENCE_S)
        seen = [
            (_bytes_of(each.pid, "cmdline"), _bytes_of(each.pid, "environ"))
            for each in psutil.Process(foreign.taskmanager.pid).children(recursive=True)
        ]
        (marks / "looked").touch()
        until("its end", lambda: handle.ended_within(10.0), PATIENCE_S)
        assert handle.status is JobStatus.FINISHED, f"{handle.attempts().failure}\n{foreign.logs()}"
    user_code = [(command, environ) for command, environ in seen if b"flintlock.host.processes.watchdog" not in command]
    commands = b"\n".join(command for command, _ in user_code)
    for part in (b"spark.engine.process", b"SparkSubmit", b"spark.runner.template", b"python_daemon"):
        assert part in commands, "it was looked at"
    environments = b"\n".join(environ for _, environ in user_code)
    hidden = [SERVICE_PASSWORD, JOB_SECRET, (foreign.state_dir / "cluster-secret").read_text().strip()]
    for secret in hidden:
        assert secret.encode() not in commands + environments
    (token,) = set(re.findall(rb"SPARK_CONNECT_AUTHENTICATE_TOKEN=([^\0]+)", environments))
    assert token not in commands, "every user of the machine can read the command lines"


def _bytes_of(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


def test_work_of_another_user_ends_when_it_is_cancelled_and_with_its_taskmanager(
    foreign: ForeignRunners, home: Path
) -> None:
    """Also what left its process group: root can signal what cannot signal root."""
    marks = home / "marks"
    marks.mkdir()
    os.chown(marks, NOBODY, NOBODY)

    def detaches(_: DataFrame, params: dict[str, Any]) -> DataFrame:
        import signal
        import threading

        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "100000"])
        Path(params["marks"], str(os.getpid())).touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        threading.Event().wait()
        raise AssertionError

    def submit(client: fl.Client) -> tuple[fl.JobHandle, psutil.Process]:
        job = fl.Job("detaches", parallelism=1, params={"marks": str(marks)})
        job.result("rows", job.step(inputs=[job.sql("one", "SELECT 1 AS id")], name="last")(detaches))
        known = {mark.name for mark in marks.iterdir()}
        handle = client.submit(job)
        (fresh,) = until("its runner", lambda: {mark.name for mark in marks.iterdir()} - known, PATIENCE_S)
        return handle, psutil.Process(int(fresh))

    def is_gone(processes: list[psutil.Process]) -> bool:
        return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)

    assert foreign.taskmanager is not None
    with fl.connect(foreign.url) as client:
        handle, runner = submit(client)
        processes = [runner, *runner.children(recursive=True)]
        handle.cancel()
        until("the end of what was cancelled", lambda: is_gone(processes), PATIENCE_S)
        submit(client)
    processes = psutil.Process(foreign.taskmanager.pid).children(recursive=True)
    assert {each.uids().real for each in processes} == {0, NOBODY}, "the watchdog is root's, all other work is not"
    foreign.taskmanager.send_signal(signal.SIGKILL)
    foreign.taskmanager.wait()
    until("the end of all work", lambda: is_gone(processes), PATIENCE_S)
