"""What a client sends is bounded, and never decided on by the loop for long."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from tests.unit.rest.rest_harness import A, RestHarness, running

from flintlock.model.checking.limits import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_VALUES
from flintlock.rest.server.request_body import SMALL_BYTES, off_loop

FINE: dict[str, Any] = {"name": "job", "steps": {"a": {"sql": "SELECT 1"}, "b": {"result": {}, "inputs": ["a"]}}}


@pytest.fixture
def rest() -> RestHarness:
    return RestHarness()


def large(size: int) -> bytes:
    """A valid document of about this many bytes."""
    return json.dumps({**FINE, "steps": {**FINE["steps"], "a": {"sql": "SELECT 1 -- " + "x" * size}}}).encode()


def test_a_document_is_limited_however_it_is_sent(rest: RestHarness) -> None:
    """As JSON, announced or not, as a field of a form, and as a file of a form."""
    body = large(MAX_DOCUMENT_BYTES)

    async def pieces() -> Any:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    json_type = {"content-type": "application/json"}
    assert rest.refused(413, "POST", "/jobs", content=body, headers=json_type) == [
        f"the body has {len(body)} bytes; the limit of a document allows {MAX_DOCUMENT_BYTES}"
    ]

    async def unannounced() -> int:
        return (await rest.request("POST", "/jobs", content=pieces(), headers=json_type)).status_code

    assert asyncio.run(unannounced()) == 413
    too_large = [f"the job document is larger than {MAX_DOCUMENT_BYTES} bytes"]
    assert rest.refused(413, "POST", "/jobs", files=[("request", (None, body, "application/json"))]) == too_large
    assert rest.refused(413, "POST", "/jobs", files=[("request", ("r.json", body, "application/json"))]) == too_large


def test_a_large_document_is_accepted(rest: RestHarness) -> None:
    """Up to the limit, as JSON and in a form."""
    body = large(MAX_DOCUMENT_BYTES - 1000)

    for arguments in (
        {"content": body, "headers": {"content-type": "application/json"}},
        {"files": [("request", (None, body, "application/json"))]},
    ):
        assert rest.call("POST", "/jobs", **arguments).status_code == 202


def test_the_values_of_a_document_are_limited(rest: RestHarness) -> None:
    """They are counted before the document is decoded: decoding is one step."""
    body = b'{"name":[' + b"[]," * MAX_DOCUMENT_VALUES + b"[]]}"

    (error,) = rest.refused(400, "POST", "/jobs", content=body, headers={"content-type": "application/json"})

    assert error.endswith(f"values; at most {MAX_DOCUMENT_VALUES} are allowed")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/jobs"), ("PUT", f"/jobs/{A}/resource-requirements"), ("PATCH", f"/jobs/{A}/clientHeartbeat")],
)
def test_text_that_is_not_utf8_is_refused_with_its_place(rest: RestHarness, method: str, path: str) -> None:
    """400, where the bytes are."""
    rest.dispatcher.put(running(A))

    errors = rest.refused(400, method, path, content=b'{"name":"ab\xff"}', headers={"content-type": "application/json"})

    assert errors == ["the request is not JSON: it is not UTF-8: invalid start byte at byte 11"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, "the part 'request' cannot be read: it is not UTF-8: invalid start byte at byte 11"),
        ("r.json", "the request is not JSON: it is not UTF-8: invalid start byte at byte 11"),
    ],
)
def test_a_form_whose_document_is_not_utf8_is_refused_with_its_place(
    rest: RestHarness, name: str | None, text: str
) -> None:
    """It is never read in another encoding."""
    body = b'{"name":"ab\xff"}'

    assert rest.refused(400, "POST", "/jobs", files=[("request", (name, body, "application/json"))]) == [text]


def test_an_answer_to_a_wrong_document_is_small(rest: RestHarness) -> None:
    """The first problems, and how many more there are."""
    keys = {f"unknown{n}": n for n in range(20_000)}
    documents = {"/jobs": ("POST", keys), f"/jobs/{A}/resource-requirements": ("PUT", {"v": keys})}

    for path, (method, document) in documents.items():
        errors = rest.refused(400, method, path, json=document)
        assert len(errors) == 101
        assert errors[-1] == "and at least 9900 more problems"
        assert sum(map(len, errors)) < 50_000


def test_large_documents_are_checked_in_another_thread() -> None:
    """Small ones are not worth it."""

    async def threads() -> tuple[int, int, int]:
        small = await off_loop(SMALL_BYTES, threading.get_ident)
        return threading.get_ident(), small, await off_loop(SMALL_BYTES + 1, threading.get_ident)

    own, small, other = asyncio.run(threads())

    assert own == small != other


def test_the_loop_goes_on_while_a_hostile_document_is_checked(rest: RestHarness) -> None:
    """A thousand misspelt inputs and a thousand unknown options cost the loop's thread next to nothing."""
    steps = {f"step_{n:04}": {"sql": "SELECT 1", "inputs": [f"stepp_{n:04}"]} for n in range(999)}
    config = {f"restart-strateqy.attempts.{n}": "1" for n in range(999)}
    document: dict[str, Any] = {
        "name": "job",
        "config": config,
        "steps": {**steps, "top": {"result": {}, "inputs": ["step_0000"]}},
    }

    async def spent_s() -> float:
        body = json.dumps(document).encode()
        begun_s = time.thread_time()
        response = await rest.request("POST", "/jobs", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert "did you mean 'step_0000'?" in response.json()["errors"][0]
        return time.thread_time() - begun_s

    assert asyncio.run(spent_s()) < 0.1
