"""Sessions on a real YARN as tests use them: commands, clients, and what they look at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from pyspark.sql import DataFrame
from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.cluster.yarn_servers import RunningYarn

import flintlock as fl
from flintlock.yarn.bridge import YarnJvm
from flintlock.yarn.client_bridge import launch_context, size_record
from flintlock.yarn.messages import ContainerSize, Launch

#: Of each wait: containers start slowly on a busy machine.
LIMIT_S: Final = 300.0
#: One endless Spark task: other jobs find a free core.
LONG: Final = "SELECT count(*) AS n FROM range(0, 1000000000000000, 1, 1) WHERE sqrt(id) < 0"


class Session:
    """A session on YARN, and the place from which it is used."""

    def __init__(self, yarn: RunningYarn, place: Path, application_id: str) -> None:
        self.yarn = yarn
        self.place = place
        self.id = application_id

    @property
    def address(self) -> str:
        """As `-m` takes it."""
        return f"yarn://{self.id}"

    def run(self, *arguments: str | Path) -> Any:
        """Run a command that prints JSON; return that."""
        first, *others = arguments
        ordered = (first, "--json", *others) if first == "run" else (*arguments, "--json")
        done = flintlock(*ordered, cwd=self.place, timeout_s=LIMIT_S)
        assert done.returncode == 0, f"{done.stderr}\n{self.yarn.logs()}"
        return json.loads(done.stdout)

    def connect(self, address: str = "") -> fl.Client:
        """Return a client of the session, or of another application that was started here."""
        return fl.connect(address or self.address, state_dir=self.place / "state" / "flintlock" / "default")

    def task_managers(self, application_id: str = "") -> list[psutil.Process]:
        """The TaskManagers in containers."""
        return self.yarn.containers("taskmanager", application_id or self.id)

    def master(self, application_id: str = "") -> psutil.Process:
        """The ApplicationMaster."""
        (found,) = self.yarn.containers("yarn_jobmanager", application_id or self.id)
        return found

    def bridge(self) -> psutil.Process:
        """The JVM with which the ApplicationMaster speaks with YARN."""
        (found,) = [child for child in self.master().children() if "py4j.GatewayServer" in child.cmdline()]
        return found

    def attempt(self, application_id: str = "") -> int:
        """Return which attempt of the ApplicationMaster is registered; 0 while none is."""
        application_id = application_id or self.id
        with suppress(psutil.Error):  # it ends meanwhile
            running = self.yarn.containers("yarn_jobmanager", application_id)
            paths = [part for process in running for part in process.cwd().split("/") if part.startswith("container_")]
            registered = self.yarn.application(application_id).get("state") == "RUNNING"
            return int(paths[0].split("_")[-2]) if paths and registered else 0
        return 0


@contextmanager
def running_session(yarn: RunningYarn, place: Path, settings: Mapping[str, object]) -> Generator[Session]:
    """Start a session that is used from a directory, which gets its configuration; YARN ends it."""
    place.mkdir(exist_ok=True)
    values = {"yarn.staging-directory": yarn.staging, "yarn.heartbeat.interval": "1 s", **settings}
    (place / "flintlock.yaml").write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    before = os.environ.get("HADOOP_CONF_DIR")
    os.environ["HADOOP_CONF_DIR"] = str(yarn.conf_dir)
    try:
        started = flintlock("session", "start", "-t", "yarn", "--json", cwd=place, timeout_s=LIMIT_S)
        assert started.returncode == 0, f"{started.stderr}\n{yarn.logs()}"
        yield Session(yarn, place, json.loads(started.stdout)["application-id"])
    finally:
        if before is None:
            del os.environ["HADOOP_CONF_DIR"]
        else:
            os.environ["HADOOP_CONF_DIR"] = before


def admit_this_process(yarn: YarnJvm) -> str:
    """Submit an application whose ApplicationMaster YARN does not start: this process may register. Return its id."""
    client: Any = yarn.jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
    client.init(yarn.conf)
    client.start()
    submission: Any = client.createApplication().getApplicationSubmissionContext()
    submission.setUnmanagedAM(True)
    submission.setAMContainerSpec(launch_context(yarn, Launch(command="true")))
    submission.setResource(size_record(yarn, ContainerSize(memory_mb=256, vcores=1)))
    application: Any = client.submitApplication(submission)
    token = until("the token of its first attempt", lambda: client.getAMRMToken(application), LIMIT_S)
    yarn.jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addToken(token)
    client.stop()
    return str(application)


class AttachedRun(NamedTuple):
    """A command that runs a program on a cluster of its own, and follows it; it writes into two files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def notes(self) -> str:
        """Return what it has said about its cluster and its job."""
        return self.err.read_text()

    def application_id(self) -> str:
        """Return the application that it has submitted; empty until then."""
        found = re.search(r"submitted (application_\d+_\d+) to queue", self.notes())
        return found[1] if found else ""


@contextmanager
def attached_run(place: Path, script: str, name: str) -> Generator[AttachedRun]:
    """Start such a command; it is killed at the end, unless it has ended. `name` is that of its files."""
    command = [sys.executable, "-m", "flintlock", "run", "-t", "yarn-application", script]
    environ = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CONFIG_HOME": str(place / "none")}
    out, err = place / f"{name}.out", place / f"{name}.err"
    with out.open("wb") as printed, err.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=place, env=environ, stdin=subprocess.DEVNULL, stdout=printed, stderr=said
        )
    try:
        yield AttachedRun(process, out, err)
    finally:
        process.kill()
        process.wait()


def endless(name: str) -> fl.Job:
    """Return a job that runs until it is cancelled."""
    job = fl.Job(name)
    job.result("rows", job.sql("slow", LONG))
    return job


def gated(place: Path) -> fl.Job:
    """Return a job with one task, which appends three rows to `out` once there is a file `go`."""
    place.mkdir()
    directory = str(place)
    job = fl.Job("gated")
    three = job.sql("three", "SELECT id FROM range(0, 3, 1, 1)")

    @job.step(inputs=[three])
    def waited(three: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        def wait(value: int) -> int:
            import threading
            from pathlib import Path

            pause = threading.Event()
            while not Path(directory, "go").exists():
                pause.wait(0.1)
            return value

        return three.select(udf(wait, "long")("id").alias("id"))

    job.sink("files", waited, format="parquet", path=str(place / "out"), mode="append")
    return job


def attempts(client: fl.Client, handle: fl.JobHandle) -> list[dict[str, Any]]:
    """Return the attempts of a job's first region."""
    return client.http.call("GET", f"/jobs/{handle.id}/attempts").json()["regions"][0]["attempts"]


def activity(client: fl.Client, handle: fl.JobHandle) -> str:
    """Return what the last attempt of a job's first region does; nothing if there is none."""
    found = attempts(client, handle)
    return str(found[-1]["activity"] or "") if found else ""


def state(client: fl.Client, handle: fl.JobHandle) -> str:
    """Return the state of a job."""
    return str(client.http.call("GET", f"/jobs/{handle.id}").json()["state"])


def cancel(handle: fl.JobHandle) -> None:
    """Cancel a job, and wait for its end."""
    handle.cancel()
    until(f"the end of {handle.name}", lambda: handle.ended_within(1.0), LIMIT_S)
