"""Quarantined jobs in REST."""

from __future__ import annotations

import pytest
from tests.unit.rest.rest_harness import A, B, RestHarness

from flintlock.model.jobs import QuarantinedJob

ENTRY = {
    "jid": A, "name": "revenue", "reason": "its artifact is gone", "since": 1_000, "readable": True,
    "directories": ["out/.flintlock-a"], "artifacts": ["lib.zip"],
}  # fmt: skip


@pytest.fixture
def rest() -> RestHarness:
    return RestHarness()


def quarantine(rest: RestHarness) -> None:
    rest.dispatcher.quarantine[A] = QuarantinedJob(
        job_id=A,
        name="revenue",
        reason="its artifact is gone",
        since_ms=1_000,
        readable=True,
        directories=("out/.flintlock-a",),
        artifacts=("lib.zip",),
    )


def test_quarantined_jobs_are_listed_and_shown(rest: RestHarness) -> None:
    """With the reason, and what is kept of them."""
    assert rest.call("GET", "/quarantine").json() == {"jobs": []}
    quarantine(rest)

    assert rest.call("GET", "/quarantine").json() == {"jobs": [ENTRY]}
    assert rest.call("GET", f"/quarantine/{A}").json() == ENTRY
    assert "is not quarantined" in rest.refused(404, "GET", f"/quarantine/{B}")[0]


def test_a_quarantined_job_is_put_back(rest: RestHarness) -> None:
    """Under its own id."""
    quarantine(rest)

    assert rest.call("POST", f"/quarantine/{A}/retry").status_code == 202

    assert rest.dispatcher.retried == [A]
    rest.refused(404, "POST", f"/quarantine/{B}/retry")
    rest.refused(400, "POST", "/quarantine/nonsense/retry")


def test_a_quarantined_job_is_dropped(rest: RestHarness) -> None:
    """For good."""
    quarantine(rest)

    assert rest.call("DELETE", f"/quarantine/{A}").status_code == 202

    assert rest.dispatcher.dropped == [A]
    rest.refused(404, "DELETE", f"/quarantine/{B}")
