"""Access tokens: made, used, listed, revoked, expired; by the leader and through a standby."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from msgspec import structs
from starlette.types import Receive, Scope, Send
from tests.unit.rest.rest_harness import A, RestHarness, graph, running
from tests.unit.rest.test_access import bearer
from tests.unit.rest.test_forwarding import JobManagerPair, Leaders, own_upstream, run_scenario, serving

from flintlock.model.access.principals import Principal, Role
from flintlock.model.commands import CancelRequest, JobOperation, JobOperations, RescaleJob, RescaleRequest
from flintlock.model.errors import Unauthenticated
from flintlock.model.ids import TriggerId
from flintlock.rest.server.http import send_error
from flintlock.rest.server.remote_principals import MAX_QUESTIONS, LeadersVerdict

DAY_MS = 86_400_000


def create(rest: RestHarness, role: str = "submitter", **more: Any) -> dict[str, Any]:
    response = rest.call("POST", "/tokens", json={"name": "airflow", "role": role, **more})
    assert response.status_code == 201, response.text
    assert response.headers["cache-control"] == "no-store"
    return response.json()


def get(rest: RestHarness, token: str, path: str = "/whoami") -> httpx.Response:
    return rest.call("GET", path, headers=bearer(token))


def test_a_token_is_shown_once_and_only_its_hash_is_stored() -> None:
    rest = RestHarness()
    made = create(rest, **{"expires-in": "30 d"})
    (stored,) = rest.dispatcher.access_tokens.values()
    assert made["token"] not in repr(stored)
    (listed,) = rest.get("/tokens")["tokens"]
    assert listed == {
        "id": made["id"],
        "name": "airflow",
        "role": "submitter",
        "created": rest.now_ms,
        "created-by": "maria",
        "expires": rest.now_ms + 30 * DAY_MS,
    }
    assert made["token"] not in rest.call("GET", "/tokens").text


@pytest.mark.parametrize("role", list(Role))
def test_a_token_has_its_name_and_role(role: Role) -> None:
    rest = RestHarness()
    made = create(rest, role)
    assert get(rest, made["token"]).json() == {
        "name": "airflow",
        "role": role,
        "kind": "token",
        "expires": None,
        "token": made["id"],
    }


def test_an_expired_token_is_refused_from_that_moment_on() -> None:
    rest = RestHarness()
    made = create(rest, **{"expires-in": "10 s"})
    rest.now_ms += 9_999
    assert get(rest, made["token"]).status_code == 200
    rest.now_ms += 1  # though it was verified a moment ago
    response = get(rest, made["token"])
    assert (response.status_code, "has expired" in response.text) == (401, True)


def test_a_revoked_token_is_refused_at_once() -> None:
    rest = RestHarness()
    made, other = create(rest), create(rest)
    assert get(rest, made["token"]).status_code == 200
    assert rest.call("DELETE", f"/tokens/{made['id']}").status_code == 200
    response = get(rest, made["token"])
    assert (response.status_code, "revoked" in response.text) == (401, True)
    assert get(rest, other["token"]).status_code == 200
    assert rest.call("DELETE", f"/tokens/{made['id']}").status_code == 404


def test_a_token_that_differs_in_one_character_is_refused() -> None:
    rest = RestHarness()
    token = create(rest)["token"]
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert get(rest, wrong).status_code == 401
    assert get(rest, token[:-1]).status_code == 401
    assert get(rest, "flt_").status_code == 401


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"name": "", "role": "viewer"}, "'name': give one"),
        ({"name": "x" * 101, "role": "viewer"}, "'name': give one"),
        ({"name": "a\nb", "role": "viewer"}, "'name': give one"),
        ({"name": 5, "role": "viewer"}, "name: expected text, got a whole number"),
        ({"name": "a", "role": "root"}, "role: 'root' is not one of"),
        ({"name": "a"}, "the body: needs the key 'role'"),
        ({"name": "a", "role": "viewer", "expires-in": "soon"}, "soon"),
        ({"name": "a", "role": "viewer", "expires-in": "0 s"}, "0 s"),
        ({"name": "a", "role": "viewer", "other": 1}, "other: unknown key"),
        (["a"], "the body: must be a mapping"),
    ],
)
def test_a_token_that_cannot_be_is_refused_with_the_place_and_none_is_made(body: Any, named: str) -> None:
    rest = RestHarness()
    (line,) = rest.refused(400, "POST", "/tokens", json=body)
    assert named in line
    assert not rest.dispatcher.access_tokens


def test_only_administrators_handle_tokens() -> None:
    rest = RestHarness()
    operator = create(rest, "operator")["token"]
    for method, path in (("GET", "/tokens"), ("POST", "/tokens"), ("DELETE", "/tokens/x")):
        assert rest.call(method, path, headers=bearer(operator)).status_code == 403


def test_the_submitter_with_a_token_owns_what_is_submitted_with_it() -> None:
    rest = RestHarness()
    token = create(rest)["token"]
    spec: dict[str, Any] = {"name": "x", "steps": {"n": {"sql": "SELECT 1"}, "top": {"result": {}, "inputs": ["n"]}}}
    made = rest.call("POST", "/jobs", json=spec, headers=bearer(token)).json()["jobid"]
    (submission,) = rest.dispatcher.submissions
    assert submission.graph.submitted_by == "airflow"
    assert rest.get(f"/jobs/{made}/attempts")["submitted-by"] == "airflow"
    rest.dispatcher.put(running(A))
    assert rest.call("PATCH", f"/jobs/{A}", headers=bearer(token)).status_code == 403
    assert rest.call("PATCH", f"/jobs/{made}", headers=bearer(token)).status_code == 202
    assert rest.dispatcher.requested_by == ["airflow"]
    assert graph(A).submitted_by == ""


def test_a_standby_asks_the_leader_who_the_bearer_is_before_it_serves_anything() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        made = await client.post("/tokens", json={"name": "airflow", "role": "viewer"})
        token = made.json()["token"]
        wrong = [token[:-1] + letter for letter in "AEI" if letter != token[-1]]
        assert not pair.second.rest.dispatcher.access_tokens  # the leader has it
        for path in ("/jobs/overview", "/jobmanager/config", "/whoami"):
            assert (await client.get(path, headers=bearer(token))).status_code == 200
            assert (await client.get(path, headers=bearer(wrong[0]))).status_code == 401
        refused = await client.get("/jobmanager/environment", headers=bearer(token))
        assert (refused.status_code, "airflow has the role viewer" in refused.text) == (403, True)
        pair.leaders.lead(None)
        without = await client.get("/jobmanager/config", headers=bearer(wrong[1]))
        assert (without.status_code, without.headers["retry-after"]) == (503, "1")
        await asyncio.sleep(0)

    run_scenario(scenario)


def test_a_standby_asks_the_leader_once_for_a_wrong_credential_and_never_for_what_is_no_token() -> None:
    asked: list[str] = []

    async def refuse(credential: str) -> Principal:
        asked.append(credential)
        raise Unauthenticated("the token is not known")

    rest = RestHarness()
    rest.ask_leader = refuse
    wrong, other = (f"flt_{'0' * 16}_{letter * 43}" for letter in "ab")
    for token in (wrong, wrong, other, wrong):
        assert rest.refused(401, "GET", "/jobs", headers=bearer(token)) == ["the token is not known"]
    assert asked == [wrong, other]
    for token in ("flt_", "flt_0_a", wrong[:-1], f"{wrong}a", wrong.replace("0", "g"), wrong.upper()):
        assert rest.call("GET", "/jobs", headers=bearer(token)).status_code == 401
    assert asked == [wrong, other]
    rest.now_ms += 5_000
    assert rest.call("GET", "/jobs", headers=bearer(wrong)).status_code == 401
    assert asked == [wrong, other, wrong]


def test_a_flood_of_wrong_credentials_does_not_make_a_verified_one_forgotten() -> None:
    asked: list[str] = []
    good = f"flt_{'1' * 16}_{'a' * 43}"

    async def answer(credential: str) -> Principal:
        asked.append(credential)
        if credential != good:
            raise Unauthenticated("the token is not known")
        return Principal(name="airflow", role=Role.VIEWER, kind="token")

    async def flood() -> None:
        rest = RestHarness()
        rest.ask_leader = answer
        await rest.authentication.authenticate(good.encode())
        for number in range(3000):
            with pytest.raises(Unauthenticated):
                await rest.authentication.authenticate(f"flt_{number:016x}_{'a' * 43}".encode())
        assert (await rest.authentication.authenticate(good.encode())).name == "airflow"

    asyncio.run(flood())
    assert asked.count(good) == 1


def test_a_standby_asks_the_leader_for_few_credentials_at_a_time() -> None:
    async def scenario() -> int:
        at_once = most = 0
        release = asyncio.Event()

        async def slow_leader(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await release.wait()
            await asyncio.sleep(0.01)
            at_once -= 1
            await send_error(send, 401, "the token is not known")

        leaders = Leaders()
        async with asyncio.timeout(30), own_upstream() as upstream, serving(slow_leader) as url:
            leaders.lead(url)
            verdict = LeadersVerdict(upstream, leaders, "http://127.0.0.1:1")

            async def ask(number: int) -> None:
                with pytest.raises(Unauthenticated):
                    await verdict.principal(f"token {number}")

            async with asyncio.TaskGroup() as tasks:
                for number in range(3 * MAX_QUESTIONS):
                    tasks.create_task(ask(number))
                while most < MAX_QUESTIONS:  # noqa: ASYNC110 the questions arrive in other tasks of this loop
                    await asyncio.sleep(0.01)
                release.set()
        return most

    assert asyncio.run(scenario()) == MAX_QUESTIONS


def test_who_submitted_cancelled_and_rescaled_a_job_is_shown() -> None:
    rest = RestHarness()
    rest.dispatcher.put(structs.replace(running(A), graph=structs.replace(graph(A), submitted_by="airflow")))
    assert rest.get(f"/jobs/{A}/changes") == {"submitted-by": "airflow", "changes": []}
    rescale = JobOperation(
        trigger_id=TriggerId("7" * 32), command=RescaleJob(job_id=A, parallelism=2, requested_by="eve"), started_ms=5
    )
    cancel = CancelRequest(requested_ms=9, requested_by="maria")
    at_once = RescaleRequest(requested_ms=7, requested_by="joe")
    rest.dispatcher.changes[A] = JobOperations(job_id=A, operations=(rescale,), cancel=cancel, rescales=(at_once,))
    shown = rest.get(f"/jobs/{A}/changes")["changes"]
    assert [(each["kind"], each["requested"], each["requested-by"]) for each in shown] == [
        ("rescale", 5, "eve"),
        ("rescale", 7, "joe"),
        ("cancel", 9, "maria"),
    ]
