"""Flink's own tools can talk to Flintlock: the same paths, the same fields, the same types."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import RESOURCES, SAMPLES, A, B, RestHarness, running, sample
from tests.unit.rest.test_checkpoints import S, streaming_job

from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.model.diagnostics import ListProcessLogs, LogFileInfo, ProcessLogsListed
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import vertex_id
from flintlock.model.states import ExecutionState

CLEAN = vertex_id(A, "clean")
#: Which path answers what was sampled. The sampled job has one step and so no edges: nodes of ours may add `inputs`.
PATHS = {
    "config": "/config",
    "overview": "/overview",
    "applications_overview": "/applications/overview",
    "application": f"/applications/{A}",
    "application_exceptions": f"/applications/{A}/exceptions",
    "jobs": "/jobs",
    "jobs_overview": "/jobs/overview",
    "job": f"/jobs/{A}",
    "job_plan": f"/jobs/{A}/plan",
    "job_status": f"/jobs/{A}/status",
    "job_config": f"/jobs/{A}/config",
    "job_exceptions": f"/jobs/{A}/exceptions",
    "job_checkpoints": f"/jobs/{S}/checkpoints",
    "job_accumulators": f"/jobs/{A}/accumulators",
    "vertex": f"/jobs/{A}/vertices/{CLEAN}",
    "vertex_subtasktimes": f"/jobs/{A}/vertices/{CLEAN}/subtasktimes",
    "vertex_taskmanagers": f"/jobs/{A}/vertices/{CLEAN}/taskmanagers",
    "vertex_accumulators": f"/jobs/{A}/vertices/{CLEAN}/accumulators",
    "vertex_watermarks": f"/jobs/{A}/vertices/{CLEAN}/watermarks",
    "vertex_subtasks_accumulators": f"/jobs/{A}/vertices/{CLEAN}/subtasks/accumulators",
    "vertex_subtask_0": f"/jobs/{A}/vertices/{CLEAN}/subtasks/0",
    "job_metrics": f"/jobs/{A}/metrics",
    "job_metrics_numRestarts": f"/jobs/{A}/metrics?get=numRestarts,uptime,numberOfCompletedCheckpoints",
    "jobs_metrics": "/jobs/metrics",
    "job_jobmanager_config": f"/jobs/{A}/jobmanager/config",
    "vertex_metrics": f"/jobs/{A}/vertices/{CLEAN}/metrics",
    "vertex_metrics_get": f"/jobs/{A}/vertices/{CLEAN}/metrics?get=0.numRecordsOut",
    "vertex_subtasks_metrics": f"/jobs/{A}/vertices/{CLEAN}/subtasks/metrics",
    "vertex_subtask_0_metrics": f"/jobs/{A}/vertices/{CLEAN}/subtasks/0/metrics",
    "jobmanager_config": "/jobmanager/config",
    "jobmanager_environment": "/jobmanager/environment",
    "jobmanager_metrics": "/jobmanager/metrics",
    "jobmanager_metrics_get": "/jobmanager/metrics?get=numRunningJobs,taskSlotsTotal",
    "taskmanagers_metrics": "/taskmanagers/metrics",
    "taskmanager_metrics": "/taskmanagers/tm-1/metrics",
    "taskmanager_metrics_get": "/taskmanagers/tm-1/metrics?get=engine.memory",
    "jobmanager_logs": "/jobmanager/logs",
    "taskmanager_logs": "/taskmanagers/tm-1/logs",
    "taskmanagers": "/taskmanagers",
    "taskmanager": "/taskmanagers/tm-1",
}
BEYOND = {
    "inputs", "step", "kind", "definition", "guarantee", "schema", "sparkMaster",
    "uid", "batch", "input-rows", "state-rows", "offsets", "watermark", "params",
}  # fmt: skip


@pytest.fixture
def rest(tmp_path: Path) -> RestHarness:
    (tmp_path / "jobmanager.log").write_text("a line\n")
    made = RestHarness(ProcessLogs(directory=tmp_path))
    streaming = streaming_job()
    first, *others = streaming.executions  # as in the sample nothing has failed: it was restarted
    restarted = structs.replace(streaming, executions=(structs.replace(first, state=ExecutionState.CANCELED), *others))
    made.dispatcher.put(running(A), running(B, "other"), restarted)
    made.resource_manager.seen = RESOURCES
    listed = ProcessLogsListed(files=(LogFileInfo(name="taskmanager-0.log", size=5, modified_ms=17),))
    made.resource_manager.process_answers = {ListProcessLogs(task_manager=TaskManagerId("tm-1")): listed}
    return made


def differences(theirs: Any, ours: Any, place: str = "") -> list[str]:
    """Return where the shape of `ours` is not that of `theirs`: fields, and the JSON types of values."""
    if type(theirs) is not type(ours):
        return [f"{place} is {type(ours).__name__}, not {type(theirs).__name__}"]
    if isinstance(theirs, dict) and theirs:
        model, mine = cast("dict[str, Any]", theirs), cast("dict[str, Any]", ours)
        missing = [f"{place}.{key} is missing" for key in model if key not in mine]
        added = [f"{place}.{key} is not Flink's" for key in mine if key not in model and key not in BEYOND]
        inner = [differences(model[key], mine[key], f"{place}.{key}") for key in model if key in mine]
        return [*missing, *added, *chain.from_iterable(inner)]
    if isinstance(theirs, list) and theirs:
        items = cast("list[Any]", ours)
        return [*chain.from_iterable(differences(theirs[0], item, f"{place}[]") for item in items)]
    return []


def test_the_comparison_sees_what_it_has_to_see() -> None:
    """A missing field, a foreign one and another type are all detected."""
    theirs = {"a": 1, "b": [{"c": 1.0}], "d": True}

    assert differences(theirs, {"a": 2, "b": [{"c": 2.5}], "d": False}) == []
    assert differences(theirs, {"a": True, "b": [{"c": 1, "x": 0}]}) == [
        ".d is missing",
        ".a is bool, not int",
        ".b[].x is not Flink's",
        ".b[].c is int, not float",
    ]


@pytest.mark.parametrize("name", PATHS)
def test_answers_have_flinks_shape(rest: RestHarness, name: str) -> None:
    """Exactly Flink's field names and types, at every depth; and where Flink has a value, so has Flintlock."""
    theirs, ours = sample(name), rest.get(PATHS[name])

    assert differences(theirs, ours) == []
    assert bool(ours) == bool(theirs)


@pytest.mark.parametrize("name", PATHS)
def test_every_path_answers_under_v1_too(rest: RestHarness, name: str) -> None:
    """The same answer, whether the version is asked for or not."""
    assert rest.get("/v1" + PATHS[name]) == rest.get(PATHS[name])


def test_every_sample_is_compared() -> None:
    """None of the samples lies there unused."""
    samples = {path.stem for path in SAMPLES.glob("*.json")}

    assert samples == set(PATHS)


def test_edges_of_the_plan_are_flinks(rest: RestHarness) -> None:
    """`inputs` of a node: number, id, ship strategy, exchange; a source has none."""
    nodes = {node["description"]: node for node in rest.get(f"/jobs/{A}/plan")["plan"]["nodes"]}

    assert "inputs" not in nodes["Source: orders"]
    assert nodes["clean"]["inputs"] == [
        {"num": 0, "id": nodes["Source: orders"]["id"], "ship_strategy": "FORWARD", "exchange": "pipelined_bounded"}
    ]
    assert [edge["exchange"] for edge in nodes["priced"]["inputs"]] == ["blocking"]


def test_a_node_of_the_plan_says_what_its_step_does(rest: RestHarness) -> None:
    nodes = {node["step"]: node for node in rest.get(f"/jobs/{A}/plan")["plan"]["nodes"]}

    assert (nodes["clean"]["kind"], nodes["clean"]["definition"]) == ("sql", "SELECT * FROM orders")
    assert nodes["orders"]["definition"].startswith("source: ")
    assert "guarantee" not in nodes["clean"]
    assert [node["guarantee"] for node in nodes.values() if node["kind"] in ("sink", "result")]


def test_entries_of_the_exception_history_are_flinks(rest: RestHarness) -> None:
    """The sampled job had no failure; the fields are those that Flink's dashboard reads."""
    (entry,) = rest.get(f"/jobs/{A}/exceptions")["exceptionHistory"]["entries"]

    assert set(entry) == {
        "exceptionName",
        "stacktrace",
        "timestamp",
        "failureLabels",
        "taskName",
        "endpoint",
        "taskManagerId",
        "concurrentExceptions",
    }
