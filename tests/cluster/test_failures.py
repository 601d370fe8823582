"""What happens to jobs when a process dies or is stopped, with real processes and real Spark."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, running_processes, until

from flintlock.model import log_events
from flintlock.testing import rest_requests

LONG = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"


def _submit(url: str, query: str, name: str = "job", **more: object) -> str:
    steps: dict[str, Any] = {"one": {"sql": query}, "rows": {"result": {}, "inputs": ["one"]}}
    answer = rest_requests.post(f"{url}/jobs", json={"name": name, "parallelism": 1, "steps": steps, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobid"])


def _status(url: str, job_id: str) -> str:
    return str(rest_requests.get(f"{url}/jobs/{job_id}/status").json()["status"])


def _await_spark_work(url: str, job_id: str) -> None:
    """Wait until Spark has begun: a running task, with stages."""

    def working() -> bool:
        attempts = rest_requests.get(f"{url}/jobs/{job_id}/attempts").json()["regions"][0]["attempts"]
        return bool(attempts) and attempts[-1]["metrics"]["tasks-total"] > 0

    until("Spark's work", working)


def _failure(url: str, job_id: str) -> dict[str, str]:
    found = rest_requests.get(f"{url}/jobs/{job_id}/attempts").json()["failure"]
    assert found is not None
    return found


def test_cancel_stops_sparks_work_within_seconds(standing: Processes) -> None:
    """The job is CANCELED, its runner is gone, and its slot serves the next job."""
    job_id = _submit(standing.url, LONG)
    _await_spark_work(standing.url, job_id)

    begun = time.monotonic()
    assert rest_requests.patch(f"{standing.url}/jobs/{job_id}").status_code == 202
    until("the end", lambda: _status(standing.url, job_id) == "CANCELED", 30)

    assert time.monotonic() - begun < 30
    again = _submit(standing.url, "SELECT 1 AS one")
    ended = rest_requests.get(f"{standing.url}/jobs/{again}/execution-result?wait=60s", timeout=70).json()
    assert ended["job-execution-result"]["application-status"] == "SUCCEEDED"
    assert rest_requests.patch(f"{standing.url}/jobs/{job_id}").status_code == 202
    assert rest_requests.patch(f"{standing.url}/jobs/{again}").status_code == 409


def test_jobs_without_slots_wait_in_order(standing: Processes) -> None:
    """With both slots taken, jobs queue visibly and start in the order of their submission."""
    long = [_submit(standing.url, LONG, name=f"long-{number}") for number in range(2)]
    for job_id in long:
        _await_spark_work(standing.url, job_id)
    waiting = [_submit(standing.url, "SELECT 1 AS one", name=f"short-{number}") for number in range(3)]

    def queued() -> list[str]:
        return [item["jobid"] for item in rest_requests.get(f"{standing.url}/resources").json()["waiting"]]

    until("the queue", lambda: queued() == waiting)
    for job_id in long:
        rest_requests.patch(f"{standing.url}/jobs/{job_id}")
    for job_id in waiting:
        rest_requests.get(f"{standing.url}/jobs/{job_id}/execution-result?wait=60s", timeout=70)
    starts = [
        rest_requests.get(f"{standing.url}/jobs/{job_id}/attempts").json()["regions"][0]["attempts"][0]["timestamps"][
            "DEPLOYING"
        ]
        for job_id in waiting
    ]
    assert starts == sorted(starts)


def test_output_of_user_code_is_captured(standing: Processes, tmp_path: Path) -> None:
    """`logs` shows what each attempt printed, and the JobManager's own log has none of it."""
    script = tmp_path / "prints.py"
    script.write_text("import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n")
    ran = flintlock("run", "-m", standing.url, "-d", script, cwd=tmp_path)
    job_id = ran.stdout.split()[-1]
    rest_requests.get(f"{standing.url}/jobs/{job_id}/execution-result?wait=60s", timeout=70)

    shown = flintlock("logs", "-m", standing.url, job_id, cwd=tmp_path)

    assert "to stdout" in shown.stdout
    assert "to stderr" in shown.stdout
    assert "to stdout" not in (standing.state_dir / "jobmanager.log").read_text()


def test_threads_shows_where_user_code_stands(standing: Processes, tmp_path: Path) -> None:
    """From the command line to the runner's process and back, while user code runs; not once the job has ended."""
    script = tmp_path / "waits.py"
    script.write_text("import threading\ndef stand_here():\n    threading.Event().wait()\nstand_here()\n")
    submitted = flintlock("run", "-m", standing.url, "-d", script, cwd=tmp_path)
    job = submitted.stdout.split()[-1]

    def stands() -> str | None:
        seen = flintlock("threads", job, "-m", standing.url, cwd=tmp_path)
        return seen.stdout if "in stand_here" in seen.stdout else None

    assert '"MainThread" id=' in until("a stack of user code", stands)
    assert flintlock("cancel", job, "-m", standing.url, cwd=tmp_path).returncode == 0
    ended = flintlock("threads", job, "-m", standing.url, cwd=tmp_path)
    assert (ended.returncode, "runs now" in ended.stderr) == (2, True)


def test_a_task_manager_answers_about_its_process(standing: Processes) -> None:
    """Through the leader: its threads and tasks, and the log files of its machine."""
    (manager,) = rest_requests.get(f"{standing.url}/taskmanagers").json()["taskmanagers"]
    url = f"{standing.url}/taskmanagers/{manager['id']}"

    threads = rest_requests.get(f"{url}/thread-dump").json()["threadInfos"]
    logs = rest_requests.get(f"{url}/logs").json()["logs"]
    engine = rest_requests.get(f"{url}/logs/taskmanager-0-engine.log")

    assert {"MainThread", "task engine"} <= {thread["threadName"] for thread in threads}
    assert "taskmanager-0-engine.log" in [file["name"] for file in logs]
    assert (engine.status_code, engine.headers["content-type"]) == (200, "text/plain; charset=UTF-8")
    assert "does not write its log to a file" in rest_requests.get(f"{url}/log").json()["errors"][0]


def test_a_script_that_exits_with_another_code_has_failed(standing: Processes, tmp_path: Path) -> None:
    """A program's exit code decides between FINISHED and FAILED."""
    script = tmp_path / "exits.py"
    script.write_text("raise SystemExit(3)\n")

    ran = flintlock("run", "-m", standing.url, script, cwd=tmp_path)

    assert ran.returncode == 1
    assert "exit code 3" in ran.stderr


LOSES_ITS_INPUT = """
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import flintlock as fl

job = fl.Job("loses-its-input", parallelism=1, params={"marker": "", "out": ""},
             config={"execution.analyze-first": "false"})
base = job.sql("base", "SELECT id, id % 3 AS k FROM range(1000)")
numbers = job.sql("numbers", "SELECT * FROM base", inputs=[base], exchange="blocking")
job.sink("copy", base, format="parquet", path="${out}/copy", mode="append")


@job.step(inputs=[numbers])
def counted(numbers, params):
    marker = Path(params["marker"])
    if not marker.exists():  # the first time, its input vanishes under it
        marker.touch()
        shutil.rmtree(Path(urlsplit(numbers.inputFiles()[0]).path).parent)
    return numbers.groupBy("k").count()


job.sink("out", counted, format="parquet", path="${out}/counts", mode="append")
"""


def test_a_missing_materialised_result_is_made_again_and_published_once(standing: Processes, tmp_path: Path) -> None:
    """A sink of the region that has to run again was published before: it is not published twice."""
    source = tmp_path / "loses.py"
    source.write_text(LOSES_ITS_INPUT)
    parameters = ("--param", f"marker={tmp_path / 'marker'}", "--param", f"out={tmp_path / 'out'}")

    ran = flintlock("run", "-m", standing.url, *parameters, f"{source}:job", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    job_id = rest_requests.get(f"{standing.url}/jobs/overview").json()["jobs"][0]["jid"]
    seen = rest_requests.get(f"{standing.url}/jobs/{job_id}/attempts").json()
    assert [len(region["attempts"]) for region in seen["regions"]] == [2, 2]
    assert seen["failures"][0]["kind"] == "missing input"
    for sink in ("copy", "counts"):  # the files of one write carry one name
        assert len({path.name.split("-", 2)[2][:36] for path in (tmp_path / "out" / sink).glob("part-*")}) == 1


LOSES_A_PART_OF_ITS_INPUT = """
from pathlib import Path
from urllib.parse import urlsplit

import flintlock as fl

job = fl.Job("loses-a-part", parallelism=1, params={"marker": "", "out": ""},
             config={"execution.analyze-first": "false"})
base = job.sql("base", "SELECT id FROM range(0, 1000, 1, 4)")
numbers = job.sql("numbers", "SELECT * FROM base", inputs=[base], exchange="blocking")


@job.step(inputs=[numbers], exchange="blocking")
def other(numbers, params, spark):
    marker = Path(params["marker"])
    if not marker.exists():  # the first time, one of four files vanishes, which this step never reads
        marker.touch()
        Path(urlsplit(numbers.inputFiles()[0]).path).unlink()
    return spark.range(1)


counted = job.sql("counted", "SELECT count(*) AS n FROM numbers CROSS JOIN other", inputs=[numbers, other])
job.sink("out", counted, format="json", path="${out}/counted", mode="append")
"""


def test_a_job_that_loses_a_part_of_a_materialised_result_finishes_with_all_rows(
    standing: Processes, tmp_path: Path
) -> None:
    source = tmp_path / "loses.py"
    source.write_text(LOSES_A_PART_OF_ITS_INPUT)
    parameters = ("--param", f"marker={tmp_path / 'marker'}", "--param", f"out={tmp_path / 'out'}")

    ran = flintlock("run", "-m", standing.url, *parameters, f"{source}:job", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = [
        text for path in (tmp_path / "out" / "counted").glob("part-*.json") for text in path.read_text().splitlines()
    ]
    assert json.loads(line) == {"n": 1000}
    job_id = rest_requests.get(f"{standing.url}/jobs/overview").json()["jobs"][0]["jid"]
    seen = rest_requests.get(f"{standing.url}/jobs/{job_id}/attempts").json()
    assert [one["kind"] for one in seen["failures"]] == ["missing input"]


def test_a_job_whose_sink_has_a_scheme_that_does_not_exist_leaves_nothing_to_clean_up(standing: Processes) -> None:
    """Its staging directory was recorded and cannot exist: it counts as removed, and is not tried for ever."""
    steps: dict[str, Any] = {
        "one": {"sql": "SELECT 1 AS one"},
        "out": {"sink": {"format": "parquet", "path": "s3b://bucket/out"}, "inputs": ["one"]},
    }
    config = {"execution.analyze-first": "false"}
    answer = rest_requests.post(f"{standing.url}/jobs", json={"name": "typo", "steps": steps, "config": config})
    assert answer.status_code == 202, answer.text
    job_id = str(answer.json()["jobid"])

    until("the failure", lambda: _status(standing.url, job_id) == "FAILED")
    until("the end of its cleanup", lambda: _log_lines(standing, log_events.JOB_CLEANED_UP, job_id))

    assert "s3b" in _failure(standing.url, job_id)["message"]
    assert _log_lines(standing, log_events.JOB_CLEANUP_RETRIED, job_id) == []


def _log_lines(cluster: Processes, event: str, job_id: str) -> list[dict[str, Any]]:
    """Return what the JobManager has logged about a job under this event."""
    lines = (cluster.state_dir / "jobmanager.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [line for line in found if line["event"] == event and line.get("job_id") == job_id]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Processes]:
    """A cluster of the test's own, because the test breaks it."""
    with running_processes(tmp_path / "own") as processes:
        yield processes


def _descendants(pid: int, name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if name in " ".join(child.cmdline())]


def test_a_dead_engine_fails_its_tasks_and_is_started_again_and_nothing_outlives_its_taskmanager(
    own: Processes,
) -> None:
    """The JVM's death is the failure's cause; slots come back; a killed TaskManager takes all its processes along."""
    assert own.taskmanager is not None
    job_id = _submit(own.url, LONG, config={"restart.infrastructure-attempts": 0})
    _await_spark_work(own.url, job_id)
    (engine_log,) = own.state_dir.rglob("*-engine.log")
    with engine_log.open("a") as log:
        log.write("what another job has printed\n")
    for jvm in _descendants(own.taskmanager.pid, "org.apache.spark.deploy.SparkSubmit"):
        jvm.send_signal(signal.SIGKILL)
    until("the failure", lambda: _status(own.url, job_id) == "FAILED", 60)
    failure = _failure(own.url, job_id)
    assert failure["kind"] == "engine lost"
    assert "the JVM was killed by SIGKILL" in failure["message"]
    assert "another job" not in str(failure)
    own.await_slots()
    again = _submit(own.url, "SELECT 1 AS one")
    ended = rest_requests.get(f"{own.url}/jobs/{again}/execution-result?wait=90s", timeout=100).json()
    assert ended["job-execution-result"]["application-status"] == "SUCCEEDED"

    running = _submit(own.url, LONG)
    _await_spark_work(own.url, running)
    family = psutil.Process(own.taskmanager.pid).children(recursive=True)
    assert len(family) >= 3
    os.kill(own.taskmanager.pid, signal.SIGKILL)
    own.taskmanager.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_port_in_use_is_a_clear_error(standing: Processes, tmp_path: Path) -> None:
    """The second JobManager names the port, and ends with its own exit code."""
    port = standing.url.rpartition(":")[2]

    ran = flintlock("jobmanager", "--state-dir", tmp_path / "other", "-D", f"rest.port={port}", cwd=tmp_path)

    assert ran.returncode == 4
    assert f"127.0.0.1:{port}" in ran.stderr


FAILS_ONCE = """
import sys
from pathlib import Path
from pyspark.sql import DataFrame, SparkSession
import flintlock as fl

class Unusable(fl.NoRetry):
    pass

def fail_once() -> None:
    tries = Path({tries!r})
    with tries.open("a") as file:
        file.write("x")
    if tries.stat().st_size == 1:
        {failure}

job = fl.Job("fails-once")
numbers = job.sql("numbers", "SELECT id FROM range(3)")

@job.step(inputs=[numbers])
def kept(numbers: DataFrame) -> DataFrame:
    fail_once()
    return numbers

job.result("rows", kept)

if __name__ == "__main__":
    fail_once()
    print("rows", SparkSession.builder.getOrCreate().range(3).count())
"""


@pytest.mark.parametrize("kind", ["a step", "a program"])
@pytest.mark.parametrize(
    ("failure", "tries"),
    [("raise OSError('the other service is restarting')", 2), ("raise Unusable('the key is missing')", 1)],
)
def test_what_user_code_raises_is_retried_by_the_strategy_unless_it_is_no_retry(
    standing: Processes, tmp_path: Path, kind: str, failure: str, tries: int
) -> None:
    (tmp_path / "fails.py").write_text(FAILS_ONCE.format(tries=str(tmp_path / "tries"), failure=failure))
    target = "fails.py:job" if kind == "a step" else "fails.py"
    strategy = ("-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.delay=100 ms")

    ran = flintlock("run", "-m", standing.url, *strategy, target, cwd=tmp_path)

    assert ran.returncode == (0 if tries == 2 else 1), ran.stdout + ran.stderr
    assert (tmp_path / "tries").read_text() == "x" * tries
    assert ("the other service is restarting" if tries == 2 else "Unusable: the key is missing") in ran.stderr
