"""Applications: one with its program and jobs on its own cluster, each job as one on any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.rest.rest_harness import A, B, RestHarness, running

from flintlock.api.applications import ApplicationState
from flintlock.model.ids import JobId
from flintlock.model.states import JobStatus
from flintlock.rest.jobs.applications import application_state
from flintlock.rest.server.app import rest_app


def harness(application: JobId | None = None) -> RestHarness:
    rest = RestHarness()
    rest.app = rest.protected(rest_app(replace(rest.services, application=application, registry=CollectorRegistry())))
    rest.dispatcher.put(running(A, "nightly"), running(B, "part"))
    return rest


def test_on_a_session_cluster_each_job_is_an_application() -> None:
    rest = harness()
    listed = {entry["id"]: entry for entry in rest.get("/applications/overview")["applications"]}
    assert {key: (entry["name"], entry["jobs"]) for key, entry in listed.items()} == {
        A: ("SingleJobApplication(nightly)", {"RUNNING": 1}),
        B: ("SingleJobApplication(part)", {"RUNNING": 1}),
    }
    assert [job["jid"] for job in rest.get(f"/applications/{B}")["jobs"]] == [B]
    assert rest.get(f"/jobs/{B}")["application-id"] == B


def test_the_cluster_of_an_application_has_one_with_the_jobs_of_its_program() -> None:
    rest = harness(application=A)
    (entry,) = rest.get("/applications/overview")["applications"]
    assert (entry["id"], entry["name"], entry["status"], entry["jobs"]) == (A, "nightly", "RUNNING", {"RUNNING": 1})
    details = rest.get(f"/applications/{A}")
    assert [job["jid"] for job in details["jobs"]] == [B]
    assert details["timestamps"].keys() == {*ApplicationState}
    assert rest.get(f"/jobs/{B}")["application-id"] == A
    assert rest.get(f"/applications/{A}/exceptions") == {
        "exceptionHistory": {"entries": rest.get(f"/jobs/{A}/exceptions")["exceptionHistory"]["entries"]}
    }
    assert rest.get(f"/applications/{A}/jobmanager/config") == rest.get("/jobmanager/config")
    for path in ("", "/exceptions", "/jobmanager/config"):
        assert rest.call("GET", f"/applications/{B}{path}").status_code == 404


def test_an_application_is_cancelled_by_its_program_and_none_of_its_jobs_in_its_place() -> None:
    rest = harness(application=A)
    assert rest.call("POST", f"/applications/{B}/cancel").status_code == 404
    assert rest.call("POST", f"/applications/{A}/cancel").status_code == 202
    assert rest.dispatcher.cancelled == [A]


@pytest.mark.parametrize(
    ("program", "job", "state"),
    [
        (JobStatus.INITIALIZING, JobStatus.FINISHED, "CREATED"),
        (JobStatus.RESTARTING, JobStatus.FINISHED, "RUNNING"),
        (JobStatus.FINISHED, JobStatus.RUNNING, "RUNNING"),
        (JobStatus.FINISHED, JobStatus.FAILED, "FINISHED"),
        (JobStatus.FAILED, JobStatus.CANCELLING, "FAILING"),
        (JobStatus.CANCELED, JobStatus.RUNNING, "CANCELING"),
        (JobStatus.CANCELLING, JobStatus.RUNNING, "CANCELING"),
        (JobStatus.CANCELED, JobStatus.CANCELED, "CANCELED"),
    ],
)
def test_an_application_has_not_ended_before_its_jobs(program: JobStatus, job: JobStatus, state: str) -> None:
    assert application_state(program, (job,)) == state
