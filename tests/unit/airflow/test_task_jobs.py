"""Which job belongs to a task of an Airflow DAG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.client.answering import job_entry, serving

from flintlock.airflow.task_jobs import INSTANCE_LABEL, TaskTry, submit_for
from flintlock.client.authoring.targets import read_target
from flintlock.client.connection.client import connect
from flintlock.client.connection.versions import own_versions
from flintlock.model.checking.limits import limit_problems
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph

JOB, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
FIRST = TaskTry(dag_id="daily", run_id="manual__2026-01-01T00:00:00+00:00, a", task_id="load", try_number=1)


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "script.py").write_text("print(1)\n")
    return str(tmp_path / "script.py")


def submitted(script: str, known: list[dict[str, Any]], task: TaskTry = FIRST) -> tuple[str, list[Any]]:
    """Submit for a task on a cluster that knows these jobs; return the job's id and what was posted."""
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [(200, msgspec.to_builtins(own_versions()))],
        "GET /jobs/overview": [(200, {"jobs": known})],
        "POST /jobs": [(202, {"jobid": JOB})],
    }
    with serving(answers) as server, connect(server.url) as client:
        handle = submit_for(task, client, read_target(script), labels={"team": "core"})
        return handle.id, [seen for seen in server.seen if seen.method == "POST"]


def test_one_try_has_one_key_and_all_tries_of_a_task_have_one_label() -> None:
    second = msgspec.structs.replace(FIRST, try_number=2)
    mapped = msgspec.structs.replace(FIRST, map_index=3)

    assert FIRST.idempotency_key != second.idempotency_key
    assert FIRST.instance == second.instance != mapped.instance
    assert FIRST.labels["airflow/run"] == "manual__2026-01-01T00:00:00+00:00_ a", "a label has no comma"


def test_long_ids_fit_into_labels_and_stay_apart() -> None:
    """Airflow's ids have up to 250 characters; a label that is too long would have every try refused."""
    one, other = (
        TaskTry(dag_id="d" * 63, run_id=f"scheduled__{'r' * 100}{end}", task_id="t" * 64) for end in ("a", "b")
    )

    assert one.labels["airflow/dag"] == "d" * 63
    assert {len(one.labels[key]) for key in ("airflow/run", "airflow/task")} == {63}
    assert one.labels["airflow/run"].startswith("scheduled__rrr")
    assert one.labels["airflow/run"] != other.labels["airflow/run"]
    assert not [*limit_problems(JobGraph(job_id=JobId(JOB), name="job", labels=one.labels))]


def test_a_try_submits_under_its_key_with_labels_by_which_later_ones_find_the_job(script: str) -> None:
    job_id, (post,) = submitted(script, [])

    assert job_id == JOB
    assert FIRST.idempotency_key.encode() in post.body or FIRST.idempotency_key in str(post.headers)
    assert f'"{INSTANCE_LABEL}":"{FIRST.instance}"'.encode() in post.body
    assert b'"team":"core"' in post.body


def test_a_retry_waits_for_the_job_of_an_earlier_try_that_still_runs(script: str) -> None:
    again = msgspec.structs.replace(FIRST, try_number=2)
    assert submitted(script, [job_entry(OTHER, "j", "RUNNING")], again) == (OTHER, [])


def test_a_job_that_is_being_cancelled_is_not_waited_for(script: str) -> None:
    assert submitted(script, [job_entry(OTHER, "j", "CANCELLING")])[0] == JOB
