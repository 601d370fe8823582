"""Hostile requests: each gets an answer of the 4xx kind, soon, and changes nothing."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from tests.unit.rest.rest_harness import A, RestHarness, running

JSON = {"content-type": "application/json"}
STEPS: dict[str, Any] = {"n": {"sql": "SELECT 1"}, "top": {"result": {}, "inputs": ["n"]}}


def bomb() -> bytes:
    """An archive of a few kilobytes that unpacks to many megabytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escape.py", b"\0" * (32 << 20))
    return made.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"name": "x", "name": "y"',
        b'{"name": 1e999999}',
        b"[" + b"0," * 1_000_000 + b"0]",
        b"\xff\xfe{}",
        b'"\\ud800"',
        json.dumps({"name": "a\0b", "steps": STEPS}).encode(),
        json.dumps({"name": "x", "jobId": "../../etc", "steps": STEPS}).encode(),
        json.dumps({"name": "x", "steps": STEPS, "artifacts": [{"name": "../../x", "blob": "0" * 64}]}).encode(),
        json.dumps({"name": "x", "steps": {"../n": {"sql": "SELECT 1"}}}).encode(),
        json.dumps({"name": "x", "steps": STEPS, "parallelism": 10**30}).encode(),
    ],
    ids=["deep list", "deep object", "cut", "infinite", "many", "not utf-8", "surrogate", "nul", "traversal in the id",
         "traversal in a file", "traversal in a step", "huge number"],
)  # fmt: skip
def test_a_hostile_document_is_refused(body: bytes) -> None:
    rest = RestHarness()
    response = rest.call("POST", "/jobs", content=body, headers=JSON)
    assert 400 <= response.status_code < 500, response.text
    assert response.json()["errors"]
    assert not rest.dispatcher.submissions


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/..%2f..%2fetc%2fpasswd",
        "/jobs/%00",
        f"/jobs/{A}%00",
        f"/jobs/{A}/results/..%2f..%2fx",
        f"/jobs/{A}/results/%00",
        "/jobmanager/logs/..%2f..%2fcluster-secret",
        "/jobmanager/logs/%2e%2e%2fcluster-secret",
        "/jobmanager/logs/..\\cluster-secret",
        "/jobmanager/logs/%00",
        "/taskmanagers/..%2fx/logs/..%2f..%2fcluster-secret",
        "/tokens/%00",
        "/" + "x/" * 5000,
        f"/jobs/{A}/vertices/%F0%9F%92%A9",
    ],
)
def test_a_hostile_path_is_refused(path: str) -> None:
    rest = RestHarness()
    rest.dispatcher.put(running(A))
    method = "DELETE" if path.startswith("/tokens") else "GET"
    response = rest.call(method, path)
    assert 400 <= response.status_code < 500, response.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Idempotency-Key", "x" * 10_000),
        ("X-Request-Id", "a\tb" * 1000),
        ("Content-Encoding", "gzip"),
        ("Content-Type", "multipart/form-data"),
        ("Content-Type", "multipart/form-data; boundary=" + "x" * 10_000),
    ],
)
def test_a_hostile_header_is_refused_or_replaced(name: str, value: str) -> None:
    rest = RestHarness()
    response = rest.call("POST", "/jobs", content=b"{}", headers={**JSON, name: value})
    assert 400 <= response.status_code < 500, response.text
    assert len(response.text) < 1000
    assert not rest.dispatcher.submissions


@pytest.mark.parametrize("name", ["../../escape.zip", "/etc/passwd", "a\0b", "..", "", "x" * 5000])
def test_a_file_with_a_hostile_name_is_refused_and_not_stored(name: str) -> None:
    rest = RestHarness()
    request: Any = (
        "request",
        (None, json.dumps({"name": "x", "steps": STEPS, "artifacts": [name]}), "application/json"),
    )
    response = rest.call("POST", "/jobs", files=[request, ("file", (name or "unnamed", b"x"))])
    assert 400 <= response.status_code < 500, response.text
    assert not rest.dispatcher.submissions


def test_an_archive_is_stored_as_it_is_and_never_unpacked_here() -> None:
    rest = RestHarness()
    content = bomb()
    assert len(content) < 64 << 10
    response = rest.call("POST", "/blobs", content=content)
    assert response.json()["size"] == len(content)
