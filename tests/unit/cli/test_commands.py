"""Commands as a shell calls them: arguments in, exit code, stdout and stderr out."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.unit.client.answering import Server, job_entry, serving, wait_for
from tests.unit.savepoints.checkpoint_samples import CheckpointSample

from flintlock.cli.cluster.doctor import disk_finding, memory_finding
from flintlock.cli.main import COMMANDS, run_app
from flintlock.client.connection.versions import own_versions
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import vertex_id
from flintlock.model.streaming.savepoints import SavedQuery, SavepointFile, SavepointManifest, encode_manifest

JOB = "0123456789abcdef" * 2
OTHER = "0123fedcba987654" * 2
GRAPH = """\
import flintlock as fl
job = fl.Job("small", params={"n": 1})
one = job.sql("one", "SELECT :n AS x", exchange="blocking")
job.result("top", job.sql("two", "SELECT * FROM one", inputs=[one]), limit=3)
job.sink("out", one, format="parquet", path="out")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, with no configuration and no cluster."""
    for name in [name for name in os.environ if name.startswith("FLINTLOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(GRAPH)
    return tmp_path


def line_of(jid: str, name: str, state: str) -> dict[str, Any]:
    return job_entry(jid, name, state, total=2, finished=1)


def test_every_command_can_be_imported_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert run_app([command, "--help"]) == 0
    assert run_app([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_wrong_usage_is_exit_2_with_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["lst"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err
    assert run_app(["status"]) == 2
    assert run_app(["run", "nope.yaml"]) == 2
    assert "there is no file 'nope.yaml'" in capsys.readouterr().err


def test_no_cluster_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["list"]) == 3
    assert "start one with `flintlock cluster start`" in capsys.readouterr().err
    with serving({}) as server:
        gone = server.url
    assert run_app(["list", "-m", gone]) == 3
    assert run_app(["cluster", "status"]) == 3


def test_logs_of_a_taskmanager_and_of_its_engine(capsys: pytest.CaptureFixture[str]) -> None:
    one: dict[str, Any] = {
        "id": "host-a1b2c3d4-0", "path": "grpc://h:1", "dataPort": 1, "jmxPort": -1, "timeSinceLastHeartbeat": 1,
        "slotsNumber": 1, "freeSlots": 1, "assignedTasks": 0,
        "totalResource": {"cpuCores": 1.0, "taskHeapMemory": 1, "taskOffHeapMemory": 0, "managedMemory": 0,
                          "networkMemory": 0, "extendedResources": {}},
        "freeResource": {"cpuCores": 1.0, "taskHeapMemory": 1, "taskOffHeapMemory": 0, "managedMemory": 0,
                         "networkMemory": 0, "extendedResources": {}},
        "hardware": {"cpuCores": 1, "physicalMemory": 1, "freeMemory": 1, "managedMemory": 0},
        "memoryConfiguration": {"frameworkHeap": 0, "taskHeap": 0, "frameworkOffHeap": 0, "taskOffHeap": 0,
                                "networkMemory": 0, "managedMemory": 0, "jvmMetaspace": 0, "jvmOverhead": 0,
                                "totalFlinkMemory": 0, "totalProcessMemory": 0},
    }  # fmt: skip
    managers = [one, {**one, "id": "host-e5f6a7b8-1"}]
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /taskmanagers": [(200, {"taskmanagers": managers})],
        "GET /taskmanagers/host-e5f6a7b8-1/log": [(200, "first\nsecond\n")],
        "GET /taskmanagers/host-e5f6a7b8-1/engine-log": [(200, "of Spark\n")],
    }
    with serving(answers) as server:

        def printed(*arguments: str, code: int = 0) -> str:
            assert run_app(["logs", "-m", server.url, *arguments]) == code
            found = capsys.readouterr()
            return found.out if code == 0 else found.err

        assert json.loads(printed("--taskmanager", "host-e5")) == "first\nsecond\n"  # the fake sends JSON
        assert json.loads(printed("--taskmanager", "-1", "--engine", "-n", "1")) == "of Spark\n"
        assert "'host' matches 2 TaskManagers; there are: host-a1b2c3d4-0, host-" in printed(
            "--taskmanager", "host", code=2
        )
        assert "'x' is no TaskManager; there are: host-a1b2c3d4-0, " in printed("--taskmanager", "x", code=2)
        assert "name either a job" in printed("--taskmanager", "x", "somejob", code=2)
        assert "name either a job" in printed(code=2)
        assert "name the TaskManager with --taskmanager" in printed("somejob", "--engine", code=2)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flintlock 0.")


def test_the_list_is_a_table_of_what_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [line_of(JOB, "runs", "RUNNING"), line_of(OTHER, "waits", "CREATED")]
    none_waiting: dict[str, Any] = {"waiting": [], "starting": 0}
    with serving({"GET /jobs/overview": [(200, {"jobs": jobs})], "GET /resources": [(200, none_waiting)]}) as server:
        assert run_app(["list", "-m", server.url]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "ID", "NAME", "STATE", "STARTED", "DURATION", "STEPS"]
    assert lines[1].startswith(f"{JOB}  runs   RUNNING  20")
    assert lines[1].endswith("1 min 01 s  1/2")


@pytest.mark.parametrize(
    ("flags", "query"),
    [
        ("", "limit=1000&ended=false"),
        ("-a", "limit=1000"),
        ("-a --limit 7", "limit=7"),
        ("-r", "limit=1000&ended=false&state=RUNNING,FAILING,CANCELLING,RESTARTING,SUSPENDED,RECONCILING"),
        ("-s", "limit=1000&ended=false&state=INITIALIZING,CREATED,WAITING"),
        ("--state failed --state waiting", "limit=1000&state=FAILED,WAITING"),
        ("--name daily-*", "limit=1000&ended=false&name=daily-*"),
        ("-a --label team=core --label nightly", "limit=1000&label=team=core,nightly"),
        ("--since 2023-11-14T22:13:20+00:00", "limit=1000&since=1700000000000"),
    ],
)
def test_the_cluster_selects_the_jobs_of_a_list(flags: str, query: str) -> None:
    with serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server:
        assert run_app(["list", "-m", server.url, *flags.split()]) == 0
        assert [unquote(seen.path) for seen in server.seen] == [f"/jobs/overview?{query}"]


def test_a_time_since_then_may_be_a_duration(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server:
        assert run_app(["list", "-m", server.url, "--since", "2h"]) == 0
        since_ms = int(server.seen[0].path.partition("since=")[2])
        assert abs(time.time() - 7200 - since_ms / 1000) < 60
        assert run_app(["list", "-m", server.url, "--since", "yesterday"]) == 2
    assert "--since: 'yesterday' is neither a duration such as '2h' nor a time" in capsys.readouterr().err


def test_the_list_shows_labels_and_who_submitted_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    job = line_of(JOB, "daily", "FINISHED") | {"labels": {"team": "core", "env": "prod"}, "submitted-by": "airflow"}
    with serving({"GET /jobs/overview": [(200, {"jobs": [job]})]}) as server:
        assert run_app(["list", "-a", "-m", server.url]) == 0

    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["SUBMITTED", "BY", "LABELS"]
    assert line.endswith("1/2    airflow       env=prod, team=core")


def test_the_list_shows_what_jobs_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [line_of(JOB, "first", "RUNNING"), line_of(OTHER, "second", "CREATED"), line_of("f" * 32, "ended", "FAILED")]
    waiting = [{"jobid": OTHER, "name": "second", "priority": 5, "request": "r", "slots": 2, "since": 1},
               {"jobid": JOB, "name": "first", "priority": 0, "request": "a", "slots": None, "since": 1},
               {"jobid": JOB, "name": "first", "priority": 0, "request": "b", "slots": 1, "since": 1}]  # fmt: skip
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /jobs/overview": [(200, {"jobs": jobs})],
        "GET /resources": [(200, {"waiting": waiting, "starting": 1})],
    }
    with serving(answers) as server:
        assert run_app(["list", "-a", "-m", server.url]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert run_app(["list", "-m", server.url, "--json"]) == 0

    assert head.endswith("WAITS FOR")
    assert lines[0].endswith(
        "1/2    2nd of 2 in the queue; needs 1 slot and all slots of a TaskManager; 1 TaskManager starting"
    )
    assert lines[1].endswith("1/2    1st of 2 in the queue; needs 2 slots; 1 TaskManager starting")
    assert lines[2].endswith("1/2")
    output = json.loads(capsys.readouterr().out)
    assert [item["jobid"] for item in output["waiting"]] == [OTHER, JOB, JOB]
    assert output["starting"] == 1


def test_the_list_says_which_jobs_wait_for_slots_that_streaming_jobs_use(capsys: pytest.CaptureFixture[str]) -> None:
    behind = {"jobid": JOB, "name": "large", "request": "r", "slots": 2, "since": 1, "behind-streaming": True}
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /jobs/overview": [(200, {"jobs": [line_of(JOB, "large", "CREATED")]})],
        "GET /resources": [(200, {"waiting": [behind], "starting": 0})],
    }
    with serving(answers) as server:
        assert run_app(["list", "-m", server.url]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith(
            "1st of 1 in the queue; needs 2 slots of one TaskManager, which streaming jobs use: stop one of them, "
            "or ask for fewer slots"
        )
    )


def test_a_job_of_which_nothing_runs_is_listed_as_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    """REST has Flink's state, RUNNING, and what the job waits for beside it."""
    jobs = [line_of(JOB, "runs", "RUNNING"), line_of(OTHER, "queued", "RUNNING") | {"waits-for": "slots"}]
    none_waiting: dict[str, Any] = {"waiting": [], "starting": 0}
    with serving({"GET /jobs/overview": [(200, {"jobs": jobs})], "GET /resources": [(200, none_waiting)]}) as server:

        def lines(*flags: str) -> list[list[str]]:
            assert run_app(["list", "-m", server.url, *flags]) == 0
            return [line.split()[1:3] for line in capsys.readouterr().out.splitlines()[1:]]

        assert lines() == [["runs", "RUNNING"], ["queued", "WAITING"]]


def test_a_list_is_read_page_by_page(capsys: pytest.CaptureFixture[str]) -> None:
    """All pages with -a, none of ended jobs without it; no more than --limit asks for."""
    other = "f" * 32
    first = {"jobs": [line_of(JOB, "first", "FINISHED")], "next": f"7-{JOB}"}
    second = {"jobs": [line_of(other, "second", "FINISHED")]}
    with serving({"GET /jobs/overview": [(200, first), (200, second)]}) as server:
        assert run_app(["list", "-a", "-m", server.url]) == 0
        assert [seen.path for seen in server.seen] == [
            "/jobs/overview?limit=1000",
            f"/jobs/overview?limit=1000&after=7-{JOB}",
        ]
    assert "second" in capsys.readouterr().out
    with serving({"GET /jobs/overview": [(200, first)]}) as server:
        assert run_app(["list", "-a", "--limit", "1", "-m", server.url]) == 0
        assert [seen.path for seen in server.seen] == ["/jobs/overview?limit=1"]
    with serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server:
        assert run_app(["list", "-m", server.url]) == 0
        assert [seen.path for seen in server.seen] == ["/jobs/overview?limit=1000&ended=false"]


def test_a_list_without_living_jobs_asks_for_no_queue(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"GET /jobs/overview": [(200, {"jobs": [line_of(JOB, "ended", "FINISHED")]})]}) as server:
        assert run_app(["list", "-a", "-m", server.url]) == 0
        assert [seen.path for seen in server.seen] == ["/jobs/overview?limit=1000"]
    assert "WAITS" not in capsys.readouterr().out


def test_a_job_may_be_named_by_the_beginning_of_its_id_or_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A name stands for its latest job."""
    jobs = [line_of(JOB, "one", "RUNNING"), line_of(OTHER, "two", "FAILED"), line_of("a" * 32, "two", "FAILED")]
    answers = {"GET /jobs/overview": [(200, {"jobs": jobs})]} | {
        f"GET /jobs/{jid}/attempts": [(200, {"jobid": jid, "name": "n", "status": "RUNNING"})] for jid in (JOB, OTHER)
    }
    with serving(answers) as server:

        def shown(text: str) -> str:
            code = run_app(["status", text, "-m", server.url])
            captured = capsys.readouterr()
            return captured.out.split()[1] if code == 0 else f"{code} {captured.err}"

        assert shown("012345") == JOB
        assert shown("two") == OTHER
        assert shown("two@latest") == OTHER
        assert shown("latest") == JOB
        assert shown("0123").startswith("2 error: '0123' matches several jobs; use more of its digits: 0123")
        assert shown("three").startswith("2 error: there is no job 'three'")


def test_a_name_of_several_active_jobs_cancels_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [line_of(JOB, "two", "RUNNING"), line_of(OTHER, "two", "RUNNING")]
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /jobs/overview": [(200, {"jobs": jobs})],
        f"PATCH /jobs/{JOB}": [(202, {})],
        f"GET /jobs/{JOB}/status": [(200, {"status": "CANCELLING"})],
    }
    with serving(answers) as server:
        assert run_app(["cancel", "two", "--no-wait", "-m", server.url]) == 2
        assert f"'two' matches several jobs; use an id, or two@latest for the latest: {JOB}" in capsys.readouterr().err
        assert run_app(["cancel", "two@latest", "--no-wait", "-m", server.url]) == 0
        assert capsys.readouterr().out == f"{JOB} CANCELLING\n"


def test_status_shows_regions_and_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"kind": "user code", "message": "division by zero", "exception": "ZeroDivisionError", "step": "priced",
               "frames": [{"file": "job.py", "line": 7, "function": "priced", "source": "1 / 0"}], "error-class": None,
               "query-context": None, "stack-trace": "Traceback: whole", "jvm-stack-trace": None}  # fmt: skip
    attempt = {"attempt": 0, "state": "FAILED", "taskmanager-id": "tm-1", "failure": failure, "slots": 2}
    job: dict[str, Any] = {"jobid": JOB, "name": "small", "status": "FAILED", "failure": failure,
           "regions": [{"region": 0, "steps": ["orders", "priced"], "attempts": [attempt]}]}  # fmt: skip
    job |= {"submitted-by": "airflow", "labels": {"team": "core"}, "start-time": 1_700_000_000_000}
    job["end-time"] = 1_700_000_061_000
    change = {"kind": "cancel", "requested": 1_700_000_000_000, "requested-by": "maria"}
    saved = {**change, "kind": "savepoint", "status": "COMPLETED", "location": "/savepoints/one"}
    answers = {
        f"GET /jobs/{JOB}/attempts": [(200, job)],
        f"GET /jobs/{JOB}/changes": [(200, {"submitted-by": "airflow", "changes": [change, saved]})],
    }
    with serving(answers) as server:
        assert run_app(["status", JOB, "-m", server.url]) == 0
        output = capsys.readouterr().out
        assert run_app(["status", JOB, "-m", server.url, "--verbose"]) == 0
        verbose = capsys.readouterr().out
        assert run_app(["status", JOB, "-m", server.url, "--json"]) == 0

    assert "0       orders, priced  FAILED  1         tm-1         2 " in output
    assert 'File "job.py", line 7, in priced' in output
    assert "Traceback: whole" not in output
    assert "Traceback: whole" in verbose
    assert "submitted by airflow\nlabels: team=core\n" in output
    assert "started 2023-11-14" in output
    assert ", 1 min 01 s\n" in output
    assert "cancel requested by maria, 2023-11-14" in verbose
    assert ": /savepoints/one\n" in verbose
    assert json.loads(capsys.readouterr().out)["jobid"] == JOB


def test_status_does_not_end_with_a_failure_that_the_job_has_survived(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"kind": "TaskManager lost", "message": "tm-1 is lost", "exception": "TaskManagerLost"}
    job: dict[str, Any] = {"jobid": JOB, "name": "small", "status": "FINISHED", "failure": failure, "regions": [],
                           "failures": [failure_line(0, kind="TaskManager lost", headline="tm-1 is lost")]}  # fmt: skip
    with serving({f"GET /jobs/{JOB}/attempts": [(200, job), (200, {**job, "status": "FAILED"})]}) as server:
        assert run_app(["status", JOB, "-m", server.url]) == 0
        survived = capsys.readouterr().out
        assert run_app(["status", JOB, "-m", server.url]) == 0

    assert survived.splitlines()[-1].endswith("TaskManager lost: tm-1 is lost")
    assert capsys.readouterr().out.startswith(survived.replace("FINISHED", "FAILED"))


def failure_line(attempt: int, **more: Any) -> dict[str, Any]:
    return {"timestamp": 1_700_000_000_000 + attempt * 1000, "region": 0, "attempt": attempt, "taskmanager-id": "tm-1",
            "kind": "user code", "headline": "step 'priced': ZeroDivisionError: division by zero", "labels": {},
            "concurrent": False, **more}  # fmt: skip


def test_status_shows_every_failure_with_its_attempt_and_labels(capsys: pytest.CaptureFixture[str]) -> None:
    job: dict[str, Any] = {
        "jobid": JOB, "name": "small", "status": "RESTARTING",
        "regions": [{"region": 0, "steps": ["orders", "priced"], "attempts": []}],
        "failures": [failure_line(0, labels={"type": "user", "team": "a"}),
                     failure_line(0, concurrent=True, kind="TaskManager lost", headline="tm-2 was silent"),
                     failure_line(1, region=None, **{"taskmanager-id": None})],
    }  # fmt: skip
    with serving({f"GET /jobs/{JOB}/attempts": [(200, job)]}) as server:
        assert run_app(["status", JOB, "-m", server.url]) == 0

    output = capsys.readouterr().out.splitlines()
    lines = output[output.index("failures (oldest first):") + 1 :]
    first, second, third = (line.strip().split("  ", 1)[1] for line in lines)
    assert first == (
        "attempt 0 at [orders, priced] on tm-1: user code: step 'priced': ZeroDivisionError: division by zero"
        " (team=a, type=user)"
    )
    assert second == "and attempt 0 at [orders, priced] on tm-1: TaskManager lost: tm-2 was silent"
    assert third == "the job: user code: step 'priced': ZeroDivisionError: division by zero"


def test_status_shows_the_position_in_the_queue(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [{"jobid": OTHER, "request": "a", "slots": 4}, {"jobid": JOB, "request": "b", "slots": 2}]
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts("RUNNING", "SCHEDULED")), (200, attempts("RUNNING", "RUNNING"))],
        "GET /resources": [(200, {"waiting": waiting, "starting": 0})],
    }
    with serving(answers) as server:
        assert run_app(["status", JOB, "-m", server.url]) == 0
        assert "waits for slots: 2nd of 2 in the queue; needs 2 slots\n" in capsys.readouterr().out
        assert run_app(["status", JOB, "-m", server.url]) == 0
        assert "waits" not in capsys.readouterr().out


def test_rerun_submits_the_job_again_with_changed_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST /jobs/{JOB}/rerun": [(202, {"jobid": OTHER})],
        f"GET /jobs/{OTHER}/attempts": [(200, {**attempts("RUNNING", "RUNNING"), "jobid": OTHER, "rerun-of": JOB})],
    }
    with serving(answers) as server:
        assert run_app(["rerun", JOB, "--param", "day=2026-02-02", "-d", "-m", server.url]) == 0
        assert json.loads(server.seen[-1].body) == {"params": {"day": "2026-02-02"}}
        assert server.seen[-1].headers["idempotency-key"]
        assert capsys.readouterr().out == f"{OTHER}\n"
        assert run_app(["status", OTHER, "-m", server.url]) == 0
        assert f"rerun of {JOB}\n" in capsys.readouterr().out


def test_a_failed_job_is_run_again_from_where_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST /jobs/{JOB}/rerun": [(202, {"jobid": OTHER})],
        f"GET /jobs/{JOB}/attempts": [
            (200, attempts("FAILED", "FINISHED")),
            (200, {**attempts("FAILED", "FINISHED"), "continuable": True}),
        ],
    }
    with serving(answers) as server:
        assert run_app(["status", JOB, "-m", server.url]) == 0
        assert "--from-failed" not in capsys.readouterr().out, "it would be refused"
        assert run_app(["status", JOB, "-m", server.url]) == 0
        assert f"flintlock rerun {JOB[:8]} --from-failed\n" in capsys.readouterr().out
        assert run_app(["rerun", JOB, "--from-failed", "-d", "-m", server.url]) == 0
        assert json.loads(server.seen[-1].body) == {"params": {}, "from-failed": True}
        assert capsys.readouterr().out == f"{OTHER}\n"
        assert run_app(["rerun", JOB, "--from-failed", "--param", "day=1", "-m", server.url]) == 2
        assert "--param cannot be used with --from-failed" in capsys.readouterr().err


def test_a_refused_rerun_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST /jobs/{JOB}/rerun": [(409, {"errors": ["files of the job are no longer stored: `flintlock run`"]})]
    }
    with serving(answers) as server:
        assert run_app(["rerun", JOB, "-m", server.url]) == 2
    assert "no longer stored" in capsys.readouterr().err


def test_rescale_changes_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/jobs/{JOB}/resource-requirements"
    now = {"a" * 32: {"parallelism": {"lowerBound": 1, "upperBound": 8}},
           "b" * 32: {"parallelism": {"lowerBound": 6, "upperBound": 8}}}  # fmt: skip
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}": [(200, {"job-type": "BATCH"})],
        f"GET {path}": [(200, now)],
        f"PUT {path}": [(200, {})],
    }
    with serving(answers) as server:
        assert run_app(["rescale", JOB, "-p", "4", "-m", server.url]) == 0
        sent = json.loads(server.seen[-1].body)
        assert server.seen[-1].headers["content-type"] == "application/json"
        assert run_app(["rescale", JOB, "-p", "4", "--json", "-m", server.url]) == 0

    assert sent == {"a" * 32: {"parallelism": {"lowerBound": 1, "upperBound": 4}},
                    "b" * 32: {"parallelism": {"lowerBound": 4, "upperBound": 4}}}  # fmt: skip
    human, _, machine = capsys.readouterr().out.partition("\n")
    assert human == f"{JOB}: up to 4 slots for regions not deployed yet"
    assert json.loads(machine) == {"jobid": JOB, "requirements": sent}


def test_rescale_of_a_streaming_job_waits_until_its_queries_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    """And a state that could not be repartitioned is an error with the reason."""
    trigger, now = "7" * 32, {"a" * 32: {"parallelism": {"lowerBound": 1, "upperBound": 4}}}
    failed = {"class": "Unavailable", "stack-trace": "query 'files' continues with 2 partitions: why",
              "serialized-throwable": ""}  # fmt: skip
    path = f"/jobs/{JOB}/rescaling"
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}": [(200, {"job-type": "STREAMING"})],
        f"PATCH {path}": [(202, {"request-id": trigger})],
        f"GET {path}/{trigger}": [
            (200, {"status": {"id": "IN_PROGRESS"}}),
            (200, {"status": {"id": "COMPLETED"}, "operation": {}}),
            (200, {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": failed}}),
        ],
        f"GET /jobs/{JOB}/resource-requirements": [(200, now)],
    }
    with serving(answers) as server:
        assert run_app(["rescale", JOB, "-p", "4", "-m", server.url]) == 0
        assert capsys.readouterr().out == f"{JOB}: up to 4 slots for each query; all run again\n"
        assert run_app(["rescale", JOB, "-p", "4", "-m", server.url]) == 1

    assert f"job {JOB} was not rescaled: query 'files' continues with 2 partitions: why" in capsys.readouterr().err


def test_a_refused_rescale_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/jobs/{JOB}/resource-requirements"
    now = {"a" * 32: {"parallelism": {"lowerBound": 1, "upperBound": 8}}}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}": [(200, {"job-type": "BATCH"})],
        f"GET {path}": [(200, now)],
        f"PUT {path}": [(409, {"errors": ["another change is under way"]})],
    }
    with serving(answers) as server:
        assert run_app(["rescale", JOB, "-p", "4", "-m", server.url]) == 2
        assert "another change is under way" in capsys.readouterr().err
        assert run_app(["rescale", JOB, "-m", server.url]) == 2
        assert "'-p'" in capsys.readouterr().err
        assert run_app(["rescale", JOB, "-p", "0", "-m", server.url]) == 2


def test_savepoint_waits_until_it_is_complete_and_prints_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/jobs/{JOB}/savepoints"
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "/s/one"}}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST {path}": [(202, {"request-id": "7" * 32})],
        f"GET {path}/{'7' * 32}": [(200, {"status": {"id": "IN_PROGRESS"}}), (200, done)],
    }
    with serving(answers) as server:
        assert run_app(["savepoint", JOB, "/s", "-m", server.url]) == 0
        (posted,) = [seen for seen in server.seen if seen.body]

    assert json.loads(posted.body)["target-directory"] == "/s"
    assert capsys.readouterr().out == "/s/one\n"


def test_upgrade_submits_the_target_in_place_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the id of the job in its configuration; it prints the new id when the queries run."""
    document = tmp_path / "job.yaml"
    document.write_text(
        "name: clicks\nsteps:\n  in: {source: {format: rate, stream: true}}\n"
        "  out: {sink: {format: parquet, path: /out}, inputs: [in], uid: out-v1}\n"
    )
    new, versions = "f" * 32, own_versions()
    attempt = {"attempt": 0, "state": "RUNNING", "taskmanager-id": "tm-1"}
    attempts = {"jobid": new, "name": "clicks", "status": "RUNNING", "job-type": "STREAMING",
                "regions": [{"region": 0, "attempts": [attempt]}]}  # fmt: skip
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [
            (200, {"flintlock": versions.flintlock, "python": versions.python, "pyspark": versions.pyspark})
        ],
        "POST /jobs": [(202, {"jobid": new})],
        f"GET /jobs/{new}/attempts": [(200, attempts)],
    }
    with serving(answers) as server:
        assert run_app(["upgrade", JOB, str(document), "-n", "-m", server.url]) == 0
        (posted,) = [seen for seen in server.seen if seen.method == "POST"]

    config = json.loads(posted.body)["config"]
    assert config["execution.upgrade-of"] == JOB
    assert config["execution.state-recovery.ignore-unclaimed-state"] in (True, "true")
    assert capsys.readouterr().out == f"{new}\n"


def test_stop_prints_the_place_of_the_savepoint(capsys: pytest.CaptureFixture[str]) -> None:
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "/s/one"}}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST /jobs/{JOB}/stop": [(202, {"request-id": "7" * 32})],
        f"GET /jobs/{JOB}/savepoints/{'7' * 32}": [(200, done)],
    }
    with serving(answers) as server:
        assert run_app(["stop", JOB, "-p", "/s", "-m", server.url]) == 0
        (posted,) = [seen for seen in server.seen if seen.body]

    assert json.loads(posted.body)["targetDirectory"] == "/s"
    assert capsys.readouterr().out == "/s/one\n"


def test_a_savepoint_is_removed_with_d(capsys: pytest.CaptureFixture[str]) -> None:
    status = f"GET /savepoint-disposal/{'7' * 32}"
    cause = {"class": "Invalid", "stack-trace": "/s/one is not a savepoint", "serialized-throwable": ""}
    failed = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}
    answers: dict[str, list[tuple[int, Any]]] = {
        "POST /savepoint-disposal": [(202, {"request-id": "7" * 32})],
        status: [
            (200, {"status": {"id": "IN_PROGRESS"}}),
            (200, {"status": {"id": "COMPLETED"}, "operation": {}}),
            (200, failed),
        ],
    }
    with serving(answers) as server:
        assert run_app(["savepoint", "-d", "/s/one", "-m", server.url]) == 0
        assert run_app(["savepoint", "-d", "/s/one", "-m", server.url]) == 1
        assert "/s/one is not a savepoint" in capsys.readouterr().err
        assert run_app(["savepoint", "-m", server.url]) == 2
        assert run_app(["savepoint", JOB, "-d", "/s/one", "-m", server.url]) == 2


def test_a_savepoint_that_cannot_be_made_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/jobs/{JOB}/savepoints"
    cause = {"class": "Conflict", "stack-trace": "it is a batch job", "serialized-throwable": ""}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST {path}": [(202, {"request-id": "7" * 32})],
        f"GET {path}/{'7' * 32}": [(200, {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}})],
    }
    with serving(answers) as server:
        assert run_app(["savepoint", JOB, "-m", server.url]) == 1
    assert "it is a batch job" in capsys.readouterr().err


def test_inspect_shows_what_is_in_a_savepoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a cluster: a savepoint is a directory."""
    query = SavedQuery(uid="files-v1", step="files", batch=7, query_id="q", sink_batch=8, offsets=("42",), partitions=2)
    metadata = SavepointFile(path="queries/files-v1/metadata", size=10, sha256="0" * 64)
    manifest = SavepointManifest(
        job_id=JOB, job_name="clicks", created_ms=1, spark="4.3.0", queries=(query,), files=(metadata,)
    )
    (tmp_path / "_metadata.json").write_bytes(encode_manifest(manifest))

    assert run_app(["savepoint", "inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert run_app(["savepoint", "inspect", str(tmp_path), "--json"]) == 0
    assert run_app(["savepoint", "inspect", str(tmp_path / "none")]) != 0

    assert f"savepoint of clicks  {JOB}" in text
    assert ["files-v1", "files", "7", "8", "2", "42"] in [line.split() for line in text.splitlines()]
    read = capsys.readouterr()
    assert json.loads(read.out)["queries"][0]["batch"] == 7
    assert "is not a savepoint" in read.err


def test_inspect_shows_the_checkpoints_that_a_job_has_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = CheckpointSample(tmp_path / JOB / "files-v1")
    checkpoint.commit(8)

    assert run_app(["savepoint", "inspect", str(tmp_path / JOB)]) == 0
    text = capsys.readouterr().out
    assert f"checkpoints that job {JOB} has left" in text
    assert ["files-v1", "files-v1", "7", "-", "1", '{"logOffset":', "7}"] in [
        line.split() for line in text.splitlines()
    ]


def test_cancel_waits_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"PATCH /jobs/{JOB}": [(202, {})],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": s}}) for s in ("IN_PROGRESS", "COMPLETED")],
        f"GET /jobs/{JOB}/status": [(200, {"status": "CANCELED"})],
    }
    with serving(answers) as server:
        assert run_app(["cancel", JOB, "-m", server.url]) == 0
        assert len(server.seen) == 4
    assert capsys.readouterr().out == f"{JOB} CANCELED\n"


def test_cancel_can_be_forced() -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"PATCH /jobs/{JOB}": [(202, {})],
        f"GET /jobs/{JOB}/status": [(200, {"status": "CANCELLING"})],
    }
    with serving(answers) as server:
        assert run_app(["cancel", JOB, "--force", "--no-wait", "-m", server.url]) == 0
        assert any("force=true" in str(request) for request in server.seen)


def attempts(status: str, *states: str) -> dict[str, Any]:
    return {"jobid": JOB, "name": "small", "status": status,
            "regions": [{"region": number, "steps": [f"s{number}"],
                         "attempts": [{"attempt": 0, "state": state, "taskmanager-id": "tm-1"}]}
                        for number, state in enumerate(states)]}  # fmt: skip


def log(region: int, offset: int, text: str, size: int, complete: bool) -> dict[str, Any]:
    part = {"region": region, "attempt": 0, "taskmanager-id": "tm-1", "offset": offset, "size": size,
            "next-offset": offset + len(text), "complete": complete, "text": text}  # fmt: skip
    return {"logs": [part]}


def test_logs_are_followed_to_the_end_and_nothing_is_printed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts("RUNNING", "RUNNING")), (200, attempts("FINISHED", "FINISHED"))],
        f"GET /jobs/{JOB}/logs": [
            (200, log(0, 0, "one\ntw", 9, complete=False)),  # cut short: there is more already
            (200, log(0, 6, "o\n", 8, complete=False)),
            (200, log(0, 8, "three\n", 14, complete=True)),
        ],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
    }
    with serving(answers) as server:
        assert run_app(["logs", "-f", JOB, "-m", server.url]) == 0
        offsets = [seen.path.partition("offset=")[2] for seen in server.seen if "/logs" in seen.path]

    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert offsets == ["0", "6", "8"]


def test_logs_of_several_attempts_have_headers(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts("FINISHED", "FINISHED", "FINISHED"))],
        f"GET /jobs/{JOB}/logs": [(200, log(0, 0, "a\n", 2, complete=True)), (200, log(1, 0, "b\n", 2, complete=True))],
    }
    with serving(answers) as server:
        assert run_app(["logs", JOB, "-m", server.url]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "==> region 0 (s0), attempt 0 on tm-1 <==", "a", "==> region 1 (s1), attempt 0 on tm-1 <==", "b",
    ]  # fmt: skip


def threads_path(region: int) -> str:
    return f"GET /jobs/{JOB}/vertices/{vertex_id(JobId(JOB), f's{region}')}/subtasks/0/thread-dump"


def test_threads_of_all_running_tasks_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """One that has ended meanwhile is reported, and hides no other."""
    dump = {"threadInfos": [{"threadName": "MainThread", "stringifiedThreadInfo": '"MainThread" id=1'}]}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts("RUNNING", "FINISHED", "RUNNING", "RUNNING"))] * 2,
        threads_path(1): [(409, {"errors": ["attempt 1 is FINISHED"]})] * 2,
        threads_path(2): [(200, dump)] * 2,
    }
    with serving(answers) as server:
        assert run_app(["threads", JOB, "-m", server.url]) == 0
        printed = capsys.readouterr()
        assert run_app(["threads", JOB, "--json", "-m", server.url]) == 0

    assert printed.out.splitlines() == ["==> region 2 (s2), attempt 0 <==", '"MainThread" id=1']
    assert "attempt 1 is FINISHED" in printed.err
    (only,) = json.loads(capsys.readouterr().out)["attempts"]
    assert only == {"region": 2, "attempt": 0, **dump}


def test_threads_of_a_job_without_running_tasks_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"GET /jobs/{JOB}/attempts": [(200, attempts("FINISHED", "FINISHED"))]}) as server:
        assert run_app(["threads", JOB, "-m", server.url]) == 2
    assert f"no task of job {JOB} runs now" in capsys.readouterr().err


def test_a_result_is_printed_completely_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"name": "top", "columns": [{"name": "text", "type": "string"}], "rows": [["x" * 300]], "truncated": False}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/results": [(200, {"results": ["top"]}), (200, {"results": ["top", "more"]})],
        f"GET /jobs/{JOB}/results/top": [(200, table)],
    }
    with serving(answers) as server:
        assert run_app(["result", JOB, "-m", server.url]) == 0
        assert "x" * 300 in capsys.readouterr().out
        assert run_app(["result", JOB, "-m", server.url]) == 2
        assert "name one of top, more" in capsys.readouterr().err
        assert run_app(["result", JOB, "top", "--json", "-m", server.url]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == [["x" * 300]]


def test_info_prints_the_plan_as_a_tree(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["info", "job.py:job", "-p", "2"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "small  batch job, shared engine, parallelism 2",
        "├── region 0",
        "│   └── one  sql: SELECT :n AS x",
        "├── region 1, after region 0",
        "│   ├── two  sql: SELECT * FROM one",
        "│   │   └── reads one (blocking, of another region)",
        "│   └── top  result: at most 3 rows",
        "│       ├── reads two",
        "│       └── guarantee: exactly once (stored with the job)",
        "└── region 2, after region 0",
        f"    └── out  sink: parquet {place}/out, errorifexists",
        "        ├── reads one (blocking, of another region)",
        "        └── guarantee: exactly once (atomic publish)",
    ]
    assert run_app(["info", "job.py:job", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [region["upstream"] for region in plan["regions"]] == [[], [0], [0]]


def test_a_wrong_job_is_exit_2_with_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("name: x\nstpes: {}\nsteps: {a: {sqll: SELECT 1}}\n")

    assert run_app(["info", "bad.yaml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: bad.yaml:2:1: job, field 'stpes': unknown key; did you mean 'steps'?",
        "error: bad.yaml:3:13: step 'a', field 'sqll': unknown key; did you mean 'sql'?",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "--local", "job.py:job"], "-d needs a cluster that outlives this command"),
        (["-d", "job.py:job"], "no cluster runs: start one"),
        (["-d", "--attached", "job.py:job"], "-d leaves the job running when this command ends, --attached does not"),
        (["--local", "-m", "http://h:1", "job.py:job"], "give either --local or -m"),
        (["-t", "per-job", "-m", "http://h:1", "job.py:job"], "give either -t per-job or -m"),
        (["-t", "application", "job.py:job"], "-t application needs a program, file.py or --module, not job.py:job"),
        (["-t", "session", "--local", "job.py:job"], "--local is -t local: give either that or -t session"),
        (["-t", "per-job", "--attached", "-d", "job.py:job"], "give one of them"),
        (["--param", "n", "job.py:job"], "--param n: must have the form key=value"),
        (["--local", "--param", "m=1", "job.py:job"], "the job has no parameter 'm'; it has n"),
        (["-D", "rest.prot=1", "job.py:job"], "'rest.prot': unknown option; did you mean 'rest.port'?"),
        (["--local", "--py-files", "nope.py", "job.py:job"], "there is no file or folder 'nope.py'"),
        (["--local", "--files", "job.py,nope.json", "job.py:job"], "there is no file 'nope.json'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_started(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "starting" not in captured.err


def versions() -> tuple[int, Any]:
    import msgspec

    from flintlock.client.connection.versions import own_versions

    return 200, msgspec.to_builtins(own_versions())


def test_options_may_follow_a_graph_but_belong_to_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("print(1)\n")
    with serving({"GET /versions": [versions()], "POST /jobs": [(202, {"jobid": JOB})]}) as server:
        assert run_app(["run", "job.py:job", "-d", "-m", server.url, "--param", "n=5", "-D", "spark.x=1"]) == 0
        assert run_app(["run", "-m", server.url, "-d", "script.py", "-d", "--param", "n=5"]) == 0
        assert run_app(["run", "-m", server.url, "-d", "--module", "script", "-d", "-m", "5"]) == 0
        graph, program, module = [seen.body for seen in server.seen if seen.method == "POST"]

    assert capsys.readouterr().out == f"{JOB}\n{JOB}\n{JOB}\n"
    document = json.loads(graph)
    assert document["params"] == {"n": 5}
    assert document["config"] == {"spark.x": "1"}
    assert b'"args":["-d","--param","n=5"]' in program
    assert b'"args":["-d","-m","5"],"module":"script"' in module


def test_a_run_streams_output_prints_results_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"name": "top", "columns": [{"name": "x", "type": "int"}], "rows": [[7]], "truncated": False}
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [versions()],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [(200, attempts("RUNNING", "RUNNING")), (200, attempts("FINISHED", "FINISHED"))],
        f"GET /jobs/{JOB}/logs": [
            (200, log(0, 0, "hel", 3, complete=False)),
            (200, log(0, 3, "lo\nx", 7, complete=True)),
        ],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/results": [(200, {"results": ["top"]})],
        f"GET /jobs/{JOB}/results/top": [(200, table)],
    }
    with serving(dict(answers)) as server:
        assert run_app(["run", "-m", server.url, "job.py:job"]) == 0
    captured = capsys.readouterr()

    assert "7" in captured.out
    assert "RUNNING\nhello\n" in captured.err  # stdout holds results only, unless the job is a program
    assert "small: RUNNING" in captured.err
    assert "FINISHED\nx\nsmall FINISHED, 1 of 1 region finished" in captured.err

    answers[f"GET /jobs/{JOB}/logs"] = [(200, log(0, 0, "hello\n", 6, complete=True))]
    with serving(answers) as server:
        assert run_app(["run", "-q", "--json", "-m", server.url, "job.py:job"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["results"]["top"]["rows"] == [[7]]
    assert captured.err == "hello\n"


def test_a_run_that_fails_shows_the_failure_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    failure: dict[str, Any] = {
        "kind": "user code", "message": "division by zero", "exception": "ZeroDivisionError", "step": "two",
               "frames": [], "error-class": None, "query-context": None, "stack-trace": "all of it",
               "jvm-stack-trace": None}  # fmt: skip
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [versions()],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [(200, {**attempts("FAILED", "FAILED"), "failure": failure})],
        f"GET /jobs/{JOB}/logs": [(404, {"errors": ["none"]})],
    }
    with serving(answers) as server:
        assert run_app(["run", "-m", server.url, "job.py:job"]) == 1

    output = capsys.readouterr().err
    assert "Step 'two' failed (user code)\n  ZeroDivisionError: division by zero" in output
    assert "(use --verbose for full stack traces)" in output
    assert "all of it" not in output


def test_a_failed_run_shows_every_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"kind": "user code", "message": "division by zero", "exception": "ZeroDivisionError", "step": "two"}
    end = {**attempts("FAILED", "FAILED"), "failure": failure, "failures": [failure_line(0), failure_line(1)]}
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [versions()],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [(200, end)],
        f"GET /jobs/{JOB}/logs": [(404, {"errors": ["none"]})],
    }
    with serving(answers) as server:
        assert run_app(["run", "-q", "-m", server.url, "job.py:job"]) == 1
        output = capsys.readouterr().err
        end["failures"] = [failure_line(0)]
        assert run_app(["run", "-q", "-m", server.url, "job.py:job"]) == 1
        once = capsys.readouterr().err
        end["failures"] = [failure_line(0, labels={"type": "user"})]
        assert run_app(["run", "-q", "-m", server.url, "job.py:job"]) == 1

    assert "attempt 0 at [s0] on tm-1: user code" in output
    assert "attempt 1 at [s0] on tm-1: user code" in output
    assert output.index("attempt 1") < output.index("Step 'two' failed")
    assert "attempt" not in once
    assert "(type=user)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "timeout"),
    [
        ((), None),
        (("--attached",), 180.0),
        (("-D", "client.heartbeat.timeout=9 s"), 9.0),
        (("-D", "client.heartbeat.interval=1 s"), None),
        (("-d", "-D", "client.heartbeat.timeout=9 s"), None),
    ],
)
def test_an_attached_run_sends_heartbeats(flags: tuple[str, ...], timeout: float | None) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [versions()],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [(200, attempts("RUNNING", "RUNNING"))],
        f"GET /jobs/{JOB}/logs": [(200, {"logs": []})],
        f"GET /jobs/{JOB}/results": [(200, {"results": []})],
        f"PATCH /jobs/{JOB}/clientHeartbeat": [(202, {})],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
    }

    def signs(server: Server) -> list[Any]:
        return [json.loads(seen.body) for seen in server.seen if seen.path.endswith("clientHeartbeat")]

    def end_the_job(server: Server) -> None:
        if timeout is not None:
            wait_for(lambda: bool(signs(server)))
        answers[f"GET /jobs/{JOB}/attempts"][0] = (200, attempts("FINISHED", "FINISHED"))

    with serving(answers) as server, ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end_the_job, server)
        assert run_app(["run", "-q", "-m", server.url, *flags, "job.py:job"]) == 0
        ending.result()
        (document,) = [json.loads(seen.body) for seen in server.seen if seen.method == "POST"]
        sent = signs(server)

    assert document.get("clientTimeout") == timeout
    if timeout is None:
        assert sent == []
    else:
        assert sent[0]["expiredTimestamp"] == pytest.approx((time.time() + timeout) * 1000, abs=30_000)


def test_the_configuration_can_be_read_back(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("flintlock.yaml").write_text("rest.port: 8090\nspark.executor.cores: 2\ncontainerized.master.env.A: b\n")
    assert run_app(["config"]) == 0
    printed = capsys.readouterr().out
    assert f"rest.port: 8090  # {place}/flintlock.yaml:1:1" in printed
    assert "# rest.address: 127.0.0.1" in printed
    assert run_app(["config", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["set"]

    Path("flintlock.yaml").write_text(printed)
    assert run_app(["config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["set"] == before
    assert before == {"rest.port": "8090", "spark.executor.cores": "2", "containerized.master.env.A": "b"}


def test_what_init_writes_is_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    for name, target in (("first.py", "first.py:job"), ("first.yaml", "first.yaml")):
        assert run_app(["init", name]) == 0
        assert run_app(["info", target]) == 0
        assert "result: at most 20 rows" in capsys.readouterr().out
    assert run_app(["init", "first.py"]) == 2
    assert run_app(["init", "first.txt"]) == 2


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A Flintlock job"


def test_doctor_finds_what_is_missing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as server:
        port = server.server_address[1]
        assert run_app(["doctor", "--json", "-D", f"rest.port={port}"]) == 1
        findings = {item["what"]: item for item in json.loads(capsys.readouterr().out)["findings"]}

    assert not findings["REST"]["fine"]
    assert "Address already in use" in findings["REST"]["detail"]
    assert findings["state directory"]["fine"]


def test_doctor_reports_a_wrong_configuration_file_among_the_rest(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "flintlock.yaml").write_text("rest.prot: 8081\ntaskmanager.engine.memory: much\n")
    assert run_app(["doctor", "--json"]) == 1
    findings = {item["what"]: item for item in json.loads(capsys.readouterr().out)["findings"]}

    assert not findings["configuration"]["fine"]
    assert "rest.prot" in findings["configuration"]["detail"]
    assert "taskmanager.engine.memory" in findings["configuration"]["detail"]
    assert findings["Java"]["fine"]
    assert {"cores", "memory", "disk"} <= findings.keys()


def test_doctor_finds_a_machine_that_is_too_small() -> None:
    gib = 1 << 30
    assert memory_finding(4 * gib, 3 * gib).fine
    short = memory_finding(3 * gib, 3 * gib)
    assert not short.fine
    assert "taskmanager.engine.memory" in short.detail
    assert "3.5 GiB in all" in short.detail
    assert disk_finding(Path("/state"), 2 * gib).fine
    assert not disk_finding(Path("/state"), gib // 2).fine


def test_cluster_stop_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["cluster", "stop"]) == 0
    assert "no cluster runs in" in capsys.readouterr().err
