"""The operator and the trigger, against the few names of Airflow that they use."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.client.answering import serving

from flintlock.client.connection.versions import own_versions
from flintlock.model.errors import JobFailed

JOB = "0123456789abcdef" * 2


class Deferred(Exception):
    """What Airflow raises to end a worker's part of a task."""

    def __init__(self, trigger: Any, method_name: str) -> None:
        super().__init__(method_name)
        self.trigger = trigger


class BaseOperator:
    """Airflow's, as far as it is used."""

    log = logging.getLogger("airflow.task")

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def defer(self, *, trigger: Any, method_name: str) -> None:
        raise Deferred(trigger, method_name)


class BaseTrigger:
    """Airflow's, as far as it is used."""

    log = logging.getLogger("airflow.triggers")


class TriggerEvent:
    """Airflow's, as far as it is used."""

    def __init__(self, payload: object) -> None:
        self.payload = payload


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the operator, with Airflow's names replaced."""
    names = {
        "airflow": {},
        "airflow.sdk": {"BaseOperator": BaseOperator},
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": BaseTrigger, "TriggerEvent": TriggerEvent},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    yield importlib.import_module("flintlock.airflow.operators")
    for name in ("flintlock.airflow.operators", "flintlock.airflow.triggers"):
        sys.modules.pop(name, None)


def answers(status: str, **more: list[tuple[int, Any]]) -> dict[str, list[tuple[int, Any]]]:
    failure = {"kind": "user code", "message": "no orders today", "step": "script"} if status == "FAILED" else None
    attempts: dict[str, Any] = {"jobid": JOB, "name": "script", "status": status, "regions": [], "failure": failure}
    return {
        "GET /versions": [(200, msgspec.to_builtins(own_versions()))],
        "GET /jobs/overview": [(200, {"jobs": []})],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/status": [(200, {"status": "RUNNING"}), (200, {"status": status})],
        f"GET /jobs/{JOB}/attempts": [(200, attempts)],
        f"PATCH /jobs/{JOB}": [(202, {})],
        **more,
    }


def operator(operators: Any, tmp_path: Path, url: str) -> Any:
    (tmp_path / "script.py").write_text("print(1)\n")
    return operators.FlintlockRunOperator(
        task_id="load", target=str(tmp_path / "script.py"), args=["a"], url=url, poll_interval_s=0.01
    )


def context() -> dict[str, Any]:
    return {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="load", map_index=-1, try_number=1)}


async def fired(trigger: Any) -> list[object]:
    return [event.payload async for event in trigger.run()]


def test_a_task_is_deferred_until_its_job_has_ended_and_returns_its_id(operators: Any, tmp_path: Path) -> None:
    with serving(answers("FINISHED")) as server:
        task = operator(operators, tmp_path, server.url)
        with pytest.raises(Deferred, match="execute_complete") as deferred:
            task.execute(context())
        path, given = deferred.value.trigger.serialize()
        module, _, name = path.rpartition(".")
        again = getattr(importlib.import_module(module), name)(**given)
        (event,) = asyncio.run(fired(again))

        assert event == {"job_id": JOB}
        assert task.execute_complete(context(), event) == JOB


def test_a_failed_job_fails_its_task_with_the_jobs_message(operators: Any, tmp_path: Path) -> None:
    with serving(answers("FAILED")) as server, pytest.raises(JobFailed, match="no orders today"):
        operator(operators, tmp_path, server.url).execute_complete(context(), {"job_id": JOB})


def test_killing_a_task_cancels_its_job_on_the_worker_and_while_it_is_deferred(operators: Any, tmp_path: Path) -> None:
    with serving(answers("RUNNING")) as server:
        task = operator(operators, tmp_path, server.url)
        task.on_kill()  # before anything was submitted
        with pytest.raises(Deferred) as deferred:
            task.execute(context())
        task.on_kill()
        asyncio.run(deferred.value.trigger.on_kill())
        assert sum(seen.method == "PATCH" for seen in server.seen) == 2


def test_a_trigger_waits_for_a_cluster_that_does_not_answer_and_fires_for_a_job_that_it_does_not_know(
    operators: Any, tmp_path: Path
) -> None:
    gone = {f"GET /jobs/{JOB}/status": [(503, {"errors": ["no leader"]}), (404, {"errors": ["no such job"]})]}
    with serving(answers("FINISHED") | gone) as server:
        trigger = operators.FlintlockJobTrigger(JOB, server.url, 0.01)
        assert asyncio.run(fired(trigger)) == [{"job_id": JOB}]
