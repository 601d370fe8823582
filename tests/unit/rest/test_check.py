"""POST /jobs/check: the plan of a document or all its problems, without storing or running anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.rest.rest_harness import RestHarness

STEPS: dict[str, Any] = {
    "numbers": {"sql": "SELECT id FROM range(5)", "exchange": "blocking"},
    "scored": {"function": "lib:score", "inputs": ["numbers"]},
    "top": {"result": {}, "inputs": ["scored"]},
}
JOB: dict[str, Any] = {"name": "scores", "artifacts": ["lib.py"], "steps": STEPS}


@pytest.fixture
def rest() -> RestHarness:
    return RestHarness()


def check(rest: RestHarness, document: object, *files: str) -> Any:
    """Return the response to a document."""
    return rest.call("POST", "/jobs/check", json={"document": document, "files": list(files)}).json()


def test_the_plan_has_the_schema_that_a_source_declares(rest: RestHarness) -> None:
    source = {"format": "csv", "path": "/data/orders", "schema": "id BIGINT, amount DOUBLE"}
    found = check(
        rest, {"name": "j", "steps": {"orders": {"source": source}, "top": {"result": {}, "inputs": ["orders"]}}}
    )

    assert found["plan"]["nodes"][0]["schema"] == "id BIGINT, amount DOUBLE"


def test_a_document_that_is_valid_has_a_plan_with_regions_and_guarantees(rest: RestHarness) -> None:
    found = check(rest, JOB, "lib.py")
    nodes = {node["step"]: node for node in found["plan"]["nodes"]}

    assert found.get("problems", []) == []
    assert found["regions"] == [["numbers"], ["scored", "top"]]
    assert nodes["numbers"]["definition"] == "SELECT id FROM range(5)"
    assert "schema" not in nodes["numbers"]
    assert nodes["scored"]["inputs"][0]["exchange"] == "blocking"
    assert nodes["top"]["guarantee"]


def test_a_check_submits_nothing_and_stores_nothing(rest: RestHarness) -> None:
    check(rest, JOB, "lib.py")

    assert rest.get("/jobs/overview")["jobs"] == []
    assert rest.blobs.content == {}


def test_every_problem_has_the_keys_that_lead_to_it(rest: RestHarness) -> None:
    steps: dict[str, Any] = {**STEPS, "scored": {"function": "lib:score", "inputs": ["nmbers"]}, "top": {"result": {}}}
    found = check(rest, {**JOB, "steps": steps})
    places = {tuple(problem["path"]) for problem in found["problems"]}

    assert "plan" not in found
    assert {("artifacts",), ("steps", "scored", "inputs"), ("steps", "top", "inputs")} <= places
    assert any("did you mean 'numbers'" in problem["message"] for problem in found["problems"])


def test_an_unknown_key_is_a_problem_at_its_place(rest: RestHarness) -> None:
    found = check(rest, {**JOB, "steps": {**STEPS, "top": {"reslt": {}, "inputs": ["scored"]}}}, "lib.py")

    assert ["steps", "top", "reslt"] in [problem["path"] for problem in found["problems"]]


def test_a_file_that_the_document_does_not_name_is_a_problem(rest: RestHarness) -> None:
    found = check(rest, JOB, "lib.py", "other.py")

    assert [problem["path"] for problem in found["problems"]] == [["artifacts"]]
    assert "other.py" in found["problems"][0]["message"]


def test_a_request_without_a_document_is_refused(rest: RestHarness) -> None:
    refused = rest.call("POST", "/jobs/check", json={"files": 3})

    assert refused.status_code == 400
    assert any("document" in error for error in refused.json()["errors"])


@pytest.mark.parametrize("text", ["null", "3", "[]", '"steps"', '{"steps": {"a": null}}', '{"steps": 1}'])
def test_what_is_no_document_is_a_problem_and_no_failure(rest: RestHarness, text: str) -> None:
    assert check(rest, json.loads(text))["problems"]
