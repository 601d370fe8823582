"""Clusters on YARN, measured against a local cluster, against spark-submit, and against YARN itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.cluster.yarn_servers import RunningYarn, running_yarn
from tests.cluster.yarn_sessions import LIMIT_S, Session, activity, attempts, endless, running_session, state
from tests.zookeeper.servers import running_ensemble

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.servers import cluster
from bench.spark import QUERY, interleaved
from flintlock.spark.engine.jvm import spark_home

KILLS: Final = 3  # the most attempts that YARN is configured for, less one
STARTS: Final = 5
#: Writes when its first line runs, and when Spark has answered it for the first time.
MAIN: Final = """\
import sys, time
from pathlib import Path

Path(sys.argv[1], "main").write_text(str(time.time()))
from pyspark.sql import SparkSession

assert SparkSession.builder.getOrCreate().range(1000).count() == 1000
Path(sys.argv[1], "query").write_text(str(time.time()))
while True:
    time.sleep(0.1)
"""


def session_job() -> Iterator[Figure]:
    """A small query, submitted to a warm session on YARN and to a warm local cluster in turn."""
    job = fl.Job("small", parallelism=1)
    job.result("rows", job.sql("counts", QUERY), limit=20)
    settings = {"taskmanager.numberOfTaskSlots": 2, "resourcemanager.taskmanager-timeout": "1 h"}

    def run(client: fl.Client) -> None:
        handle = client.submit(job)
        handle.wait()
        if len(handle.result("rows").rows()) != 7:
            raise RuntimeError("the job's rows are wrong")

    with (
        _yarn() as (yarn, home),
        running_session(yarn, home / "place", settings) as session,
        cluster() as local,
        session.connect() as on_yarn,
        fl.connect(local.url) as beside,
    ):
        mine, theirs = interleaved(lambda: run(on_yarn), lambda: run(beside))
    quotient = ratios(mine, theirs)
    yield Figure(
        name="yarn-session-job", what="small query on a warm session on YARN, of the same on a local cluster",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.3),
        against=f"local {spread(theirs).median:.3f} s, YARN {spread(mine).median:.3f} s, interleaved",
    )  # fmt: skip


def application_start() -> Iterator[Figure]:
    """The same program, submitted by `run -t yarn-application` and by spark-submit in cluster mode in turn."""
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with _yarn() as (yarn, home):
        (home / "program.py").write_text(MAIN)
        values = {"yarn.staging-directory": yarn.staging, "taskmanager.numberOfTaskSlots": 2}
        (home / "flintlock.yaml").write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
        for number in range(2 * STARTS):
            submit, times = ((_run, ours), (_spark_submit, theirs))[number % 2]
            times.append(_started(yarn, home, number, submit))
    for which, name, what in (
        (0, "yarn-application", "first line of the program runs"),
        (1, "yarn-application-query", "Spark's first rows in the program"),
    ):
        mine, others = [each[which] for each in ours], [each[which] for each in theirs]
        quotient = ratios(mine, others)
        yield Figure(
            name=name, what=f"run -t yarn-application -> {what}, of spark-submit --deploy-mode cluster",
            value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
            bound=Bound(limit=1.0),
            against=f"spark-submit {spread(others).median:.1f} s, Flintlock {spread(mine).median:.1f} s, in turn; "
            "Spark's jars are on the node for both",
        )  # fmt: skip


def master_killed() -> Iterator[Figure]:
    """SIGKILL the ApplicationMaster of a session with a running job; a client lists the job. In turn with a `sleep`."""
    mine: list[float] = []
    own: list[float] = []
    with _yarn() as (yarn, home), running_ensemble(home / "zookeeper", 1) as ensemble:
        settings = {
            "yarn.application-attempts": KILLS + 1,
            "taskmanager.numberOfTaskSlots": 2,
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": ensemble.quorum,
            "high-availability.storageDir": home / "storage",
        }
        trivial = TrivialMaster(yarn, home / "starts")
        with running_session(yarn, home / "place", settings) as session, session.connect() as client:
            handle = client.submit(endless("long"))
            until("a running task", lambda: activity(client, handle), LIMIT_S)
            for _ in range(KILLS):
                own.append(trivial.restart())
                mine.append(_listed_again(session, client, handle))
            disturbed = [each for each in attempts(client, handle) if each["attempt"] > 0]
            handle.cancel()
    calibration, seconds = spread(own), spread([a - b for a, b in zip(mine, own, strict=True)])
    yield Figure(
        name="yarn-master-killed", what="ApplicationMaster SIGKILL -> a client lists its jobs, beyond YARN's own time",
        value=seconds.median, low=seconds.low, high=seconds.high, samples=seconds.samples, unit="s",
        bound=Bound(limit=2.0), flink="every task restarted",
        against=f"in all {spread(mine).median:.2f} s; an ApplicationMaster that is a `sleep` runs again after "
        f"{calibration.median:.2f} s, in turn",
    )  # fmt: skip
    yield Figure(
        name="yarn-master-killed-restarts", what="attempts of the running task that this has cost",
        value=len(disturbed), unit="", bound=Bound(limit=0), samples=KILLS, against=f"{KILLS} ApplicationMasters",
    )  # fmt: skip


class TrivialMaster:
    """An ApplicationMaster that does nothing: what YARN itself takes to start another attempt."""

    def __init__(self, yarn: RunningYarn, record: Path) -> None:
        self._record: Final = record  # a line for each start: process id and time
        yarn.submit(f"echo $$ $(date +%s.%N) >> {record}; exec sleep 3600", attempts=KILLS + 1)

    def restart(self) -> float:
        """Kill it; return the seconds until the first line of the next attempt."""
        pid = int(until("a start", self._starts, LIMIT_S)[-1].split()[0])
        before, killed_s = len(self._starts()), time.time()
        os.kill(pid, signal.SIGKILL)
        until("another start", lambda: len(self._starts()) > before, LIMIT_S, pause_s=0.01)
        return float(self._starts()[-1].split()[1]) - killed_s

    def _starts(self) -> list[str]:
        return self._record.read_text().splitlines() if self._record.exists() else []


def _listed_again(session: Session, client: fl.Client, handle: fl.JobHandle) -> float:
    begun = time.perf_counter()
    session.master().send_signal(signal.SIGKILL)
    listed = client.http.call("GET", "/jobs/overview").json()["jobs"]
    elapsed = time.perf_counter() - begun
    if [job["jid"] for job in listed] != [handle.id]:
        raise RuntimeError(f"the next attempt lists {listed}")
    until("its registration", session.attempt, LIMIT_S)
    until("the job", lambda: state(client, handle) == "RUNNING", LIMIT_S)
    return elapsed


@contextmanager
def _yarn() -> Generator[tuple[RunningYarn, Path]]:
    """Run YARN with local files; yield it, and a directory."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        home = Path(scratch)
        before = os.environ.get("HADOOP_CONF_DIR")
        with running_yarn(home / "yarn") as yarn:
            os.environ["HADOOP_CONF_DIR"] = str(yarn.conf_dir)
            try:
                yield yarn, home
            finally:
                if before is None:
                    os.environ.pop("HADOOP_CONF_DIR", None)
                else:
                    os.environ["HADOOP_CONF_DIR"] = before


def _started(yarn: RunningYarn, home: Path, number: int, submit: Callable[[Path, Path], None]) -> tuple[float, float]:
    """Submit the program; return the seconds until its first line, and until its first rows. Ends it."""
    record = home / f"start-{number}"
    record.mkdir()
    known = {each["id"] for each in yarn.applications()}
    begun_s = time.time()
    submit(home, record)
    until("the first rows", lambda: (record / "query").exists() and (record / "query").read_text(), LIMIT_S)
    for application in yarn.applications():
        if application["id"] not in known:
            yarn.kill(application["id"])
            until("its end", lambda each=application: not yarn.executors(each["id"]), LIMIT_S)
    return tuple(float((record / name).read_text()) - begun_s for name in ("main", "query"))  # pyright: ignore[reportReturnType] two of them


def _run(home: Path, record: Path) -> None:
    done = flintlock("run", "-t", "yarn-application", "-d", "program.py", record, cwd=home, timeout_s=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def _spark_submit(home: Path, record: Path) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment = {**inherited, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    conf = {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
        "spark.yarn.stagingDir": f"file://{home}",
    }
    flags = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]
    done = subprocess.run(
        [*command, *flags, str(home / "program.py"), str(record)],
        check=False, capture_output=True, text=True, env=environment, cwd=home,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
