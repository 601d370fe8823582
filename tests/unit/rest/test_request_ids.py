"""Every request has an id: the client's if it is well-formed, else a new one."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from flintlock.model.causes import CauseId, current_cause
from flintlock.rest.server.request_ids import RequestIds


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the cause and the header that a forwarding layer would pass on; the leader's own id is in it too."""
    passed_on = Request(scope).headers.getlist("x-request-id")
    response = PlainTextResponse(f"{current_cause()} {passed_on}", headers={"X-Request-Id": "from-the-leader"})
    await response(scope, receive, send)


def _get(headers: dict[str, str]) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(RequestIds(_application, lambda: CauseId("made-here")))
        async with httpx.AsyncClient(transport=transport, base_url="http://flintlock") as client:
            response = await client.get("/jobs", headers=headers)
        assert current_cause() is None
        return response

    return asyncio.run(main())


def test_the_id_of_the_client_is_the_cause_and_comes_back() -> None:
    response = _get({"X-Request-Id": "order-17"})
    assert response.text == "order-17 ['order-17']"
    assert response.headers.get_list("x-request-id") == ["order-17"]


@pytest.mark.parametrize("headers", [{}, {"X-Request-Id": "x" * 65}, {"X-Request-Id": "a b"}])
def test_one_that_is_missing_or_malformed_is_replaced(headers: dict[str, str]) -> None:
    response = _get(headers)
    assert response.text == "made-here ['made-here']"
    assert response.headers.get_list("x-request-id") == ["made-here"]
