"""What REST returns about the cluster, and its errors."""

from __future__ import annotations

import pytest
from tests.unit.rest.rest_harness import RESOURCES, SECRET, T0, A, B, RestHarness, ended, running

from flintlock.config.options import OPTIONS
from flintlock.gateways.leader import JobManagerInfo
from flintlock.model.errors import Fenced, FlintlockError, InvariantBroken, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import vertex_id
from flintlock.model.states import JobStatus
from flintlock.rest.server.routes import ROUTES
from flintlock.security.spark_ui_links import SparkUiLinks


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness(**{"rest.port": "0", "spark.ui.enabled": "false", "web.cancel.enable": "false"})
    made.dispatcher.put(running(A), ended(running(B), JobStatus.CANCELED))
    made.resource_manager.seen = RESOURCES
    return made


def test_the_overview_counts_what_there_is(rest: RestHarness) -> None:
    """TaskManagers, slots, and jobs by how they ended."""
    answer = rest.get("/overview")

    assert {key: answer[key] for key in ("taskmanagers", "slots-total", "slots-available")} == {
        "taskmanagers": 1,
        "slots-total": 4,
        "slots-available": 2,
    }
    assert [answer[f"jobs-{kind}"] for kind in ("running", "finished", "cancelled", "failed")] == [1, 0, 1, 0]
    assert (answer["flink-version"], answer["flink-commit"]) == ("0.1.0", "abc1234")


@pytest.mark.parametrize(
    "path",
    [
        "/overview",
        "/taskmanagers",
        f"/taskmanagers/{RESOURCES.task_managers[0].id}",
        f"/taskmanagers/{RESOURCES.task_managers[0].id}/metrics",
        "/taskmanagers/metrics",
        "/jobmanager/metrics",
    ],
)
def test_who_shows_no_request_does_not_ask_for_the_queue(rest: RestHarness, path: str) -> None:
    """A list of 50,000 requests holds the loop up for as long as they are many."""
    rest.get(path)

    assert (rest.resource_manager.looks, rest.resource_manager.overviews) == (1, 0)


def test_a_dashboard_learns_what_it_may_offer(rest: RestHarness) -> None:
    """As configured."""
    config = rest.get("/config")

    assert config["features"] == {
        "web-submit": False,
        "web-cancel": False,
        "web-rescale": True,
        "web-history": False,
    }
    assert config["refresh-interval"] == 3000


def test_the_leader_is_listed_with_its_standbys(rest: RestHarness) -> None:
    """The leader has its epoch, a standby has none."""
    rest.job_managers = (
        JobManagerInfo(rest="http://a:8081", rpc="a:1", host="a", epoch=3, since_ms=5),
        JobManagerInfo(rest="http://b:8081", rpc="b:1", host="b", since_ms=7),
    )

    assert rest.get("/jobmanagers")["jobmanagers"] == [
        {"rest": "http://a:8081", "rpc": "a:1", "host": "a", "epoch": 3, "since": 5},
        {"rest": "http://b:8081", "rpc": "b:1", "host": "b", "epoch": 0, "since": 7},
    ]


def test_taskmanagers_are_returned_with_the_jobs_in_their_slots(rest: RestHarness) -> None:
    """A share of the resources for each job."""
    (listed,) = rest.get("/taskmanagers")["taskmanagers"]
    one = rest.get("/taskmanagers/tm-1")

    assert (listed["id"], listed["slotsNumber"], listed["freeSlots"], listed["dataPort"]) == ("tm-1", 4, 2, 4711)
    assert {key: one[key] for key in listed} == listed
    assert [(share["jobId"], share["resource"]["cpuCores"]) for share in one["allocatedSlots"]] == [(A, 2.0)]
    assert one["metrics"]["heapMax"] == 1 << 30
    assert one["hardware"]["freeMemory"] == 1 << 30, "Flink's dashboard shows it as the size of the heap"


def test_an_unknown_taskmanager_is_not_found(rest: RestHarness) -> None:
    """404, with its name."""
    assert rest.refused(404, "GET", "/taskmanagers/tm-9") == ["TaskManager tm-9 was not found"]


def test_the_queue_for_slots_is_visible(rest: RestHarness) -> None:
    """Who waits, for how many, since when, how urgent; and how many TaskManagers are on their way."""
    assert rest.get("/resources") == {
        "waiting": [
            {
                "jobid": B,
                "name": "other",
                "priority": 5,
                "request": "r-1",
                "slots": 2,
                "since": T0 + 8000,
                "behind-streaming": False,
            },
        ],
        "starting": 1,
    }


def test_the_complete_configuration_is_returned(rest: RestHarness) -> None:
    """What was set, and what holds otherwise."""
    entries = {entry["key"]: entry["value"] for entry in rest.get("/jobmanager/config")}

    assert set(entries) == {option.key for option in OPTIONS} | {"spark.ui.enabled"}
    assert (entries["rest.port"], entries["rest.address"], entries["spark.ui.enabled"]) == ("0", "127.0.0.1", "false")


@pytest.mark.parametrize("path", ["/jobmanager/config", f"/jobs/{A}/jobmanager/config"])
def test_values_of_secrets_are_hidden(path: str) -> None:
    """Every setting is there; the values of secrets are not."""
    settings = {"spark.ssl.keyPassword": "hunter2", "spark.hadoop.fs.s3a.access.key": "AKIA", "rest.port": "0"}
    settings["containerized.taskmanager.env.DATABASE"] = "hunter2"  # whatever its name
    rest = RestHarness(**settings)
    rest.dispatcher.put(running(A))

    entries = {entry["key"]: entry["value"] for entry in rest.get(path)}

    assert (entries["spark.ssl.keyPassword"], entries["spark.hadoop.fs.s3a.access.key"]) == ("******", "******")
    assert entries["containerized.taskmanager.env.DATABASE"] == "******"
    assert entries["rest.port"] == "0"
    hidden = {key for key, value in entries.items() if value == "******"}
    assert hidden & {option.key for option in OPTIONS} == {"security.token"}  # no other of our own is taken for one


def test_versions_are_available_before_anything_is_pickled(rest: RestHarness) -> None:
    """Flintlock, Python and PySpark of the cluster."""
    assert rest.get("/versions") == {"flintlock": "0.1.0", "python": "3.11", "pyspark": "4.3.0"}


def test_a_cluster_is_alive_before_it_is_ready(rest: RestHarness) -> None:
    """Alive as soon as it answers; ready once a Dispatcher takes jobs."""
    assert rest.get("/readyz") == {"status": "ready"}
    rest.dispatcher.fail_with = Unavailable("no JobManager leads")

    assert rest.get("/healthz") == {"status": "ok"}
    response = rest.call("GET", "/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"errors": ["there is no leader"]}


@pytest.mark.parametrize("path", ["/assets", "/nothing", "/v2/jobs", "/jobs/x/y/z", "/jobs/overview/x", "/v1"])
def test_an_unknown_path_is_not_found(rest: RestHarness, path: str) -> None:
    """404, with the path."""
    assert rest.refused(404, "GET", path) == [f"{path} was not found"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/jobs", {"GET", "HEAD", "POST"}),
        ("POST", f"/jobs/{A}", {"GET", "HEAD", "PATCH"}),
        ("DELETE", "/jobs/overview", {"GET", "HEAD"}),
        ("GET", "/v1/blobs", {"POST"}),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(rest: RestHarness, method: str, path: str, allowed: set[str]) -> None:
    """405, and every method that the path has."""
    assert rest.refused(405, method, path) == [f"{method} is not allowed at {path}"]
    assert set(rest.call(method, path).headers["allow"].split(", ")) == allowed


def test_head_is_get_without_a_body(rest: RestHarness) -> None:
    """A client may only want to know whether it exists."""
    response = rest.call("HEAD", "/overview")

    assert (response.status_code, response.content) == (200, b"")


#: A leader answers, and asks no component.
WITHOUT = ("/readyz", "/whoami")
NEEDS_A_LEADER = [row for row in ROUTES if 503 in row.errors and row.method == "GET" and row.path not in WITHOUT]


@pytest.mark.parametrize("error", [Unavailable("no JobManager leads"), Fenced("epoch 1 is over")])
@pytest.mark.parametrize("path", [*(row.path for row in NEEDS_A_LEADER), "/events"])
def test_without_a_leader_every_request_may_be_repeated(rest: RestHarness, path: str, error: FlintlockError) -> None:
    """503 with Retry-After, at every path that needs one."""
    rest.dispatcher.fail_with = rest.resource_manager.fail_with = error
    filled = path.format(
        jobid=A,
        name="top",
        taskmanagerid="tm-1",
        vertexid=vertex_id(A, "clean"),
        subtaskindex=0,
        triggerid="0" * 32,
        file="taskmanager.log",
        **{"pass": SparkUiLinks(SECRET).make(TaskManagerId("tm-1"), rest.now_ms)},
    )

    response = rest.call("GET", filled)

    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"errors": [error.public]}


@pytest.mark.parametrize("path", ["/jobs", "/jobs/overview", f"/jobs/{A}"])
def test_a_bug_of_ours_is_an_error_of_ours(rest: RestHarness, path: str) -> None:
    """500, and in the same shape as every other error."""
    rest.dispatcher.fail_with = InvariantBroken("two jobs of one id")

    assert rest.refused(500, "GET", path) == ["two jobs of one id"]
