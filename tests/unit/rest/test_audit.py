"""The audit log: a line for each change and each refusal, and none for what is read."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import msgspec
from tests.unit.rest.rest_harness import A, RestHarness, running
from tests.unit.rest.test_access import CLOSED, bearer, path_of, send

from flintlock.security.audit import AuditRecord, audit_log


def test_every_change_has_a_line_with_who_what_and_the_outcome() -> None:
    rest = RestHarness()
    rest.dispatcher.put(running(A))
    rest.call("PATCH", f"/jobs/{A}?mode=cancel")
    rest.call("PATCH", f"/v1/jobs/{'b' * 32}")
    cancelled, unknown = rest.audit.records
    assert (cancelled.who, cancelled.role, cancelled.credential) == ("maria", "admin", "local")
    assert (cancelled.request, cancelled.job, cancelled.status) == (f"PATCH /jobs/{A}", A, 202)
    assert (unknown.job, unknown.status) == ("b" * 32, 404)
    assert cancelled.from_ == "127.0.0.1"


def test_what_is_read_has_no_line() -> None:
    rest = RestHarness()
    assert rest.call("GET", "/jobs").status_code == 200
    assert not rest.audit.records


def test_every_refusal_of_every_route_has_a_line_with_its_reason() -> None:
    rest = RestHarness()
    viewer = rest.call("POST", "/tokens", json={"name": "eve", "role": "viewer"}).json()["token"]
    for row in CLOSED:
        rest.audit.records.clear()
        assert send(rest.app, row.method, path_of(row)).status_code == 401
        assert send(rest.app, row.method, path_of(row), {"Origin": "http://evil.example"}).status_code == 403
        anonymous, page = rest.audit.records
        assert (anonymous.who, anonymous.status) == ("-", 401)
        assert "no credential" in anonymous.reason
        assert (page.status, "another origin" in page.reason) == (403, True)
    rest.audit.records.clear()
    send(rest.app, "DELETE", "/cluster", bearer(viewer))
    (refused,) = rest.audit.records
    assert (refused.who, refused.status, "eve has the role viewer" in refused.reason) == ("eve", 403, True)


def test_no_credential_is_ever_in_a_line() -> None:
    rest = RestHarness()
    token = rest.call("POST", "/tokens", json={"name": "eve", "role": "viewer"}).json()["token"]
    rest.call("DELETE", "/cluster", headers=bearer(token))
    rest.call("DELETE", "/cluster", headers=bearer(token + "x"))
    text = msgspec.json.encode(rest.audit.records).decode()
    assert token not in text
    assert rest.credential not in text


def test_what_a_client_chooses_cannot_forge_or_flood_a_line(tmp_path: Path) -> None:
    rest = RestHarness()
    rest.call("DELETE", "/" + "x" * 5000)
    rest.call("DELETE", "/a%0A%7B%22who%22")
    assert all(len(record.request) <= 300 for record in rest.audit.records)
    path = tmp_path / "log" / "audit.log"

    async def write() -> None:
        async with audit_log(path) as log:
            for record in rest.audit.records:
                log.write(record)

    asyncio.run(write())
    lines = path.read_text().splitlines()
    assert [msgspec.json.decode(line, type=AuditRecord) for line in lines] == rest.audit.records
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
