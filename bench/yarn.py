"""Clusters on a real YARN of this machine: small jobs, the start of a program, and a killed ApplicationMaster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from tests.cluster.processes import until
from tests.cluster.yarn_servers import RunningYarn, running_yarn
from tests.zookeeper.servers import running_ensemble

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.servers import cluster
from bench.spark import QUERY, interleaved
from flintlock.client.connection.credentials import ClientCredentials
from flintlock.config.configuration import Configuration
from flintlock.config.options import SECRET_FILE
from flintlock.model.errors import FlintlockError
from flintlock.spark.engine.jvm import spark_home

PAIRS: Final = 12
STARTS: Final = 3
KILLS: Final = 3
LIMIT_S: Final = 600.0
_POLL_S: Final = 0.02
#: Runs for longer than any measurement.
LONG: Final = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"
#: Its first line says when it runs, its second when Spark has answered it.
PROGRAM: Final = """\
import sys, time
open(sys.argv[1], "a").write(f"{time.time()}\\n")
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().range(10).count()
open(sys.argv[1], "a").write(f"{time.time()}\\n")
"""


class Place(Struct, frozen=True, kw_only=True):
    """A YARN, and a directory from which it is used."""

    yarn: RunningYarn
    directory: Path

    def flintlock(self, *arguments: str) -> str:
        """Run a command of Flintlock; return what it prints."""
        return self.run(sys.executable, "-m", "flintlock", *arguments)

    def run(self, *command: str) -> str:
        """Run a command with the Hadoop configuration; return what it prints."""
        environ = {
            **os.environ,
            "HADOOP_CONF_DIR": str(self.yarn.conf_dir),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            command, cwd=self.directory, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr[-2000:]}\n{self.yarn.logs()}")
        return done.stdout

    def session(self, **settings: str) -> str:
        """Start a session; return its application id."""
        values = {"yarn.staging-directory": str(self.yarn.staging), **settings}
        defines = [text for key, value in values.items() for text in ("-D", f"{key}={value}")]
        return str(json.loads(self.flintlock("session", "start", "-t", "yarn", "--json", *defines))["application-id"])

    def secret(self, application_id: str) -> Path:
        """Return where the secret of a session is."""
        return self.directory / "state" / "flintlock" / "default" / "yarn" / application_id / "cluster-secret"

    def client(self, application_id: str) -> fl.Client:
        """Return a client of the JobManager where it listens now; it waits for no other one."""
        url = until("an address", lambda: self.yarn.rest_of(application_id), LIMIT_S, pause_s=_POLL_S)
        secret = self.secret(application_id)
        credentials = ClientCredentials(Configuration({SECRET_FILE.key: str(secret)}), secret.parent)
        return fl.Client([url], patience_s=0.0, credentials=credentials)


@contextmanager
def _place() -> Generator[Place]:
    with tempfile.TemporaryDirectory() as directory, running_yarn(Path(directory) / "yarn") as yarn:
        (Path(directory) / "place").mkdir()
        yield Place(yarn=yarn, directory=Path(directory) / "place")


def yarn_session() -> Iterator[Figure]:
    """One small job, submitted to a warm session on YARN and to a warm cluster of this machine, in turn."""
    job = fl.Job("small", parallelism=1)
    job.result("rows", job.sql("counts", QUERY), limit=20)
    settings = {"taskmanager.numberOfTaskSlots": "2", "resourcemanager.taskmanager-timeout": "1 h"}
    with _place() as place, cluster() as local:
        application_id = place.session(**settings)
        os.environ["HADOOP_CONF_DIR"] = str(place.yarn.conf_dir)
        state_dir = place.secret(application_id).parents[2]
        with fl.connect(f"yarn://{application_id}", state_dir=state_dir) as there, fl.connect(local.url) as here:

            def run(client: fl.Client) -> None:
                if len(client.submit(job).wait(LIMIT_S).result("rows").rows()) != 7:
                    raise RuntimeError("the job's rows are wrong")

            mine, others = interleaved(lambda: run(there), lambda: run(here), pairs=PAIRS)
    quotient = ratios(mine, others)
    yield Figure(
        name="yarn-session", what="small job on a warm session on YARN, of the same on the local engine",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.3),
        against=f"local {spread(others).median:.3f} s, YARN {spread(mine).median:.3f} s, interleaved",
    )  # fmt: skip


def yarn_application() -> Iterator[Figure]:
    """A program, submitted by `flintlock run -t yarn-application` and by spark-submit in cluster mode, in turn."""
    mine: list[list[float]] = []
    others: list[list[float]] = []
    with _place() as place:
        (place.directory / "program.py").write_text(PROGRAM)
        staging = f"yarn.staging-directory={place.yarn.staging}"
        submit = [
            str(spark_home() / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster",
            "--conf", f"spark.yarn.jars=local:{spark_home()}/jars/*", "--conf", "spark.executor.instances=1",
            "--conf", f"spark.yarn.stagingDir=file://{place.yarn.staging}", "--conf", "spark.executor.memory=1g",
            "--conf", f"spark.yarn.appMasterEnv.PYSPARK_PYTHON={sys.executable}", "program.py",
        ]  # fmt: skip
        ours = ["-m", "flintlock", "run", "-t", "yarn-application", "-d", "-D", staging, "program.py"]
        for number in range(STARTS):
            pair = ((mine, [sys.executable, *ours]), (others, submit))
            for times, command in pair if number % 2 else pair[::-1]:
                times.append(_started(place, command))
    for part, name, what in (
        (0, "yarn-application", "program on YARN: submission -> its first line, of spark-submit in cluster mode"),
        (1, "yarn-application-query", "the same -> Spark has answered its first query"),
    ):
        quotient = ratios([each[part] for each in mine], [each[part] for each in others])
        yield Figure(
            name=name, what=what, value=quotient.median, low=quotient.low, high=quotient.high,
            samples=quotient.samples, unit="x", bound=Bound(limit=1.0),
            against=f"spark-submit {spread([each[part] for each in others]).median:.1f} s,"
            f" Flintlock {spread([each[part] for each in mine]).median:.1f} s, interleaved",
        )  # fmt: skip


def _started(place: Place, command: list[str]) -> list[float]:
    """Run a program; return the seconds until its first line, and until Spark has answered it."""
    seen = place.directory / f"seen-{time.monotonic_ns()}"
    begun = time.time()
    place.run(*command, str(seen))
    lines = until("the program", lambda: found if len(found := _lines(seen)) == 2 else None, LIMIT_S)
    until("its end", lambda: all(_ended(each["state"]) for each in place.yarn.applications()), LIMIT_S)
    return [float(line) - begun for line in lines]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _ended(state: str) -> bool:
    return state in ("FINISHED", "FAILED", "KILLED")


def yarn_master_killed() -> Iterator[Figure]:
    """SIGKILL the ApplicationMaster while a job runs; wait until the next attempt lists the job."""
    restarts: list[float] = []
    listings: list[float] = []
    with _place() as place, running_ensemble(place.directory / "zookeeper", 1) as ensemble:
        application_id = place.session(
            **{
                "high-availability.type": "zookeeper",
                "high-availability.zookeeper.quorum": ensemble.quorum,
                "high-availability.storageDir": str(place.directory / "storage"),
                "taskmanager.numberOfTaskSlots": "1",
                "yarn.application-attempts": str(KILLS + 1),
            }
        )
        with place.client(application_id) as client:
            long = fl.Job("long")
            long.result("rows", long.sql("slow", LONG))
            job = client.submit(long).id
            until("the job", lambda: _state(client, job) == "RUNNING", LIMIT_S)
        for _ in range(KILLS):
            restarted, listed = _kill(place, application_id, job)
            restarts.append(restarted)
            listings.append(listed)
    more = spread([listed - restarted for restarted, listed in zip(restarts, listings, strict=True)])
    yield Figure(
        name="yarn-master-killed",
        what="ApplicationMaster killed -> its running job is listed again, beyond YARN's own restart",
        value=more.median, low=more.low, high=more.high, samples=more.samples, unit="s", bound=Bound(limit=2.0),
        against=f"YARN starts the next container after {spread(restarts).median:.1f} s",
        flink="restarts all jobs",
    )  # fmt: skip


def _kill(place: Place, application_id: str, job: str) -> tuple[float, float]:
    """Return the seconds until YARN has started the next container, and until its JobManager lists the job."""
    (master,) = place.yarn.containers("yarn_jobmanager", application_id)
    before = place.yarn.rest_of(application_id)
    begun = time.time()
    master.kill()
    until("another address", lambda: place.yarn.rest_of(application_id) not in ("", before), LIMIT_S, pause_s=_POLL_S)
    with place.client(application_id) as client:
        until("the job", lambda: _state(client, job) == "RUNNING", LIMIT_S, pause_s=_POLL_S)
    listed = time.time() - begun
    (following,) = place.yarn.containers("yarn_jobmanager", application_id)
    return following.create_time() - begun, listed


def _state(client: fl.Client, job: str) -> str:
    try:
        return str(client.http.call("GET", f"/jobs/{job}").json()["state"])
    except FlintlockError:
        return ""
