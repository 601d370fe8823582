"""Resource requirements, client heartbeats and a cancel that hangs: what is passed on, and what statuses mean."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.rest.rest_harness import T0, A, B, RestHarness, running

from flintlock.model.commands import JobCommand, JobOperations, OperationFailure, RescaleJob, StopJob, TriggerSavepoint
from flintlock.model.errors import Conflict, FlintlockError, Invalid, Unavailable
from flintlock.model.ids import TriggerId, VertexId
from flintlock.model.jobs import ClientHeartbeat, JobRequirements, ParallelismRange
from flintlock.testing.virtual_time import run_virtual

PATH = f"/jobs/{A}/resource-requirements"
HEARTBEAT = f"/jobs/{A}/clientHeartbeat"
V = "1" * 32


def wants(upper: Any, lower: Any = 1) -> dict[str, Any]:
    return {"parallelism": {"lowerBound": lower, "upperBound": upper}}


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A))
    return made


def test_requirements_are_read_and_changed_in_flinks_form(rest: RestHarness) -> None:
    """What was put is what is there."""
    response = rest.call("PUT", PATH, json={V: wants(4, 2)})

    assert (response.status_code, response.json()) == (200, {})
    assert rest.dispatcher.required[A] == JobRequirements(
        job_id=A, vertices={VertexId(V): ParallelismRange(lower=2, upper=4)}
    )
    assert rest.get(PATH) == {V: wants(4, 2)}


def test_a_lower_bound_may_be_left_out(rest: RestHarness) -> None:
    """One slot will do."""
    assert rest.call("PUT", PATH, json={V: {"parallelism": {"upperBound": 4}}}).status_code == 200
    assert rest.get(PATH) == {V: wants(4, 1)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([], ["the body must be a mapping from vertex ids to their requirements"]),
        ({}, ["the body names no vertex: give the parallelism of at least one"]),
        ({V: {}}, [f"{V}: needs the key 'parallelism'"]),
        ({V: wants("many")}, [f"{V}.parallelism.upperBound: expected a whole number, got text"]),
        ({V: wants(0)}, [f"{V}.parallelism.upperBound: expected a whole number >= 1"]),
        ({V: wants(1 << 16)}, [f"{V}.parallelism.upperBound: expected a whole number <= 32768"]),
        ({V: wants(2, 3)}, [f"{V}.parallelism: lowerBound 3 is more than upperBound 2"]),
        ({V: {"parallelism": {"upperbound": 2}}},
         [f"{V}.parallelism.upperbound: unknown key; did you mean 'upperBound'?",
          f"{V}.parallelism: needs the key 'upperBound'"]),
    ],
)  # fmt: skip
def test_problems_are_reported_with_their_location(rest: RestHarness, body: Any, expected: list[str]) -> None:
    """All of it, and nothing is passed on."""
    assert rest.refused(400, "PUT", PATH, json=body) == expected
    assert rest.dispatcher.required == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Invalid("step 'x': more than its maximum"), 400),
        (Conflict("another update is under way"), 409),
        (FlintlockError("it could not be stored"), 500),
        (Unavailable("the job is initialised"), 503),
    ],
)
def test_refusals_of_an_update_have_flinks_statuses(rest: RestHarness, error: FlintlockError, status: int) -> None:
    """Wrong, one at a time, not applied, not yet."""
    rest.dispatcher.fail_with = error

    assert rest.refused(status, "PUT", PATH, json={V: wants(2)}) == [error.public]


def test_requirements_of_an_unknown_job(rest: RestHarness) -> None:
    """404 for both."""
    path = PATH.replace(A, B)

    assert rest.refused(404, "GET", path) == rest.refused(404, "PUT", path, json={V: wants(2)})


def test_a_client_sends_heartbeats(rest: RestHarness) -> None:
    """As Flink's client does; the expiry is passed on as it is."""
    response = rest.call("PATCH", HEARTBEAT, json={"expiredTimestamp": T0 + 5})

    assert (response.status_code, response.json()) == (202, {})
    assert rest.dispatcher.client_heartbeats == [ClientHeartbeat(job_id=A)]
    rest.refused(404, "PATCH", HEARTBEAT.replace(A, B), json={"expiredTimestamp": 1})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "the body: needs the key 'expiredTimestamp'"),
        ([1], "the body: must be a mapping, not a list"),
        ({"expiredTimestamp": "soon"}, "expiredTimestamp: expected a whole number, got text"),
        ({"expiredTimestamp": -1}, "expiredTimestamp: expected a whole number >= 0"),
        ({"expiredTimestamp": 1 << 64}, "expiredTimestamp: expected a whole number <= 9223372036854775807"),
    ],
)
def test_an_incomplete_heartbeat_is_refused(rest: RestHarness, body: Any, expected: str) -> None:
    """With what is wrong about it."""
    assert rest.refused(400, "PATCH", HEARTBEAT, json=body) == [expected]
    assert rest.dispatcher.client_heartbeats == []


def test_a_cancel_that_is_not_accepted_in_time_gets_408(rest: RestHarness) -> None:
    """408: the command may or may not have arrived; asking again is harmless."""

    async def hang(message: JobCommand) -> None:
        assert message.job_id == A
        await asyncio.get_running_loop().create_future()

    rest.dispatcher.command = hang

    async def ask() -> tuple[int, list[str], float]:
        response = await rest.request("PATCH", f"/jobs/{A}")
        return response.status_code, response.json()["errors"], asyncio.get_running_loop().time()

    status, errors, took_s = run_virtual(ask())

    assert (status, errors) == (408, [f"job {A} did not accept the cancellation within 60 s; try again"])
    assert took_s == pytest.approx(60, abs=0.1)


# Rescaling as an operation

TRIGGER = "7" * 32


def test_rescaling_is_triggered_and_its_status_asked_for(rest: RestHarness) -> None:
    path = f"/jobs/{A}/rescaling"
    response = rest.call("PATCH", f"{path}?parallelism=3&triggerId={TRIGGER}")
    assert (response.status_code, response.json()) == (202, {"request-id": TRIGGER})
    assert rest.get(f"{path}/{TRIGGER}") == {"status": {"id": "IN_PROGRESS"}}

    operation = rest.dispatcher.operations[TriggerId(TRIGGER)]
    assert operation.command == RescaleJob(job_id=A, parallelism=3, requested_by="maria")
    rest.dispatcher.operations[TriggerId(TRIGGER)] = operation.completed(None, 1)
    assert rest.get(f"{path}/{TRIGGER}") == {"status": {"id": "COMPLETED"}, "operation": {}}

    failure = OperationFailure(error="Conflict", message="the job has ended")
    rest.dispatcher.operations[TriggerId(TRIGGER)] = operation.completed(failure, 1)
    assert rest.get(f"{path}/{TRIGGER}")["operation"] == {
        "failure-cause": {"class": "Conflict", "stack-trace": "the job has ended", "serialized-throwable": ""}
    }


def test_a_savepoint_is_triggered_and_its_place_asked_for_in_flinks_form(rest: RestHarness) -> None:
    path = f"/jobs/{A}/savepoints"
    body = {"target-directory": "/s", "cancel-job": False, "formatType": "CANONICAL", "triggerId": TRIGGER}
    response = rest.call("POST", path, json=body)
    assert (response.status_code, response.json()) == (202, {"request-id": TRIGGER})
    assert rest.get(f"{path}/{TRIGGER}") == {"status": {"id": "IN_PROGRESS"}}

    operation = rest.dispatcher.operations[TriggerId(TRIGGER)]
    assert operation.command == TriggerSavepoint(job_id=A, target_directory="/s", requested_by="maria")
    rest.dispatcher.operations[TriggerId(TRIGGER)] = operation.completed(None, 1, "/s/one")
    assert rest.get(f"{path}/{TRIGGER}") == {"status": {"id": "COMPLETED"}, "operation": {"location": "/s/one"}}
    rest.dispatcher.changes[A] = JobOperations(job_id=A, operations=(operation, operation.completed(None, 1, "/s/one")))
    shown = rest.get(f"/jobs/{A}/changes")["changes"]
    assert [(change["kind"], change["status"], change["location"]) for change in shown] == [
        ("savepoint", "IN_PROGRESS", ""),
        ("savepoint", "COMPLETED", "/s/one"),
    ]


def test_a_stop_is_triggered_in_flinks_form_and_asked_for_as_a_savepoint(rest: RestHarness) -> None:
    body = {"targetDirectory": "/s", "drain": False, "triggerId": TRIGGER}
    response = rest.call("POST", f"/jobs/{A}/stop", json=body)
    assert (response.status_code, response.json()) == (202, {"request-id": TRIGGER})
    operation = rest.dispatcher.operations[TriggerId(TRIGGER)]
    assert operation.command == StopJob(job_id=A, target_directory="/s", requested_by="maria")
    assert rest.get(f"/jobs/{A}/savepoints/{TRIGGER}") == {"status": {"id": "IN_PROGRESS"}}
    assert "watermark" in rest.refused(400, "POST", f"/jobs/{A}/stop", json={"drain": True})[0]


def test_a_savepoint_is_disposed_of_in_flinks_form(rest: RestHarness) -> None:
    response = rest.call("POST", "/savepoint-disposal", json={"savepoint-path": "/s/one", "triggerId": TRIGGER})
    assert (response.status_code, response.json()) == (202, {"request-id": TRIGGER})
    assert rest.get(f"/savepoint-disposal/{TRIGGER}") == {"status": {"id": "IN_PROGRESS"}}
    disposal = rest.dispatcher.disposals[TriggerId(TRIGGER)]
    assert disposal.path == "/s/one"
    rest.dispatcher.disposals[TriggerId(TRIGGER)] = disposal.succeeded()
    assert rest.get(f"/savepoint-disposal/{TRIGGER}") == {"status": {"id": "COMPLETED"}, "operation": {}}
    rest.dispatcher.disposals[TriggerId(TRIGGER)] = disposal.failed(Invalid("there is none"))
    assert rest.get(f"/savepoint-disposal/{TRIGGER}")["operation"]["failure-cause"]["stack-trace"] == "there is none"
    assert rest.refused(400, "POST", "/savepoint-disposal", json={}) == ["the body: needs the key 'savepoint-path'"]
    assert rest.refused(404, "GET", f"/savepoint-disposal/{'8' * 32}")


def test_a_request_for_a_savepoint_may_be_empty_and_unknown_keys_are_refused(rest: RestHarness) -> None:
    path = f"/jobs/{A}/savepoints"
    assert len(rest.call("POST", path, json={}).json()["request-id"]) == 32
    assert "cancel-job" in rest.refused(400, "POST", path, json={"cancel-job": True})[0]
    assert "unknown key" in rest.refused(400, "POST", path, json={"directory": "/s"})[0]
    assert rest.refused(404, "GET", f"{path}/{'8' * 32}")


def test_rescaling_needs_a_parallelism_and_a_proper_trigger_id(rest: RestHarness) -> None:
    path = f"/jobs/{A}/rescaling"
    assert rest.refused(400, "PATCH", path) == ["query parameter 'parallelism' is missing"]
    assert rest.refused(400, "PATCH", f"{path}?parallelism=0")
    assert rest.refused(400, "PATCH", f"{path}?parallelism=2&triggerId=x") == ["'x' is not a trigger id: 32 hex digits"]
    assert rest.refused(404, "GET", f"{path}/{TRIGGER}")
    assert rest.refused(404, "PATCH", f"/jobs/{'c' * 32}/rescaling?parallelism=2")
