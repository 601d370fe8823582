from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.answering import Server, serving, wait_for

from flintlock.client.authoring.job import Job
from flintlock.client.connection.attachment import Attachment, attached
from flintlock.client.connection.http import Http
from flintlock.config.configuration import Configuration
from flintlock.model.ids import JobId

JOB = JobId("0123456789abcdef" * 2)
PATH = f"PATCH /jobs/{JOB}/clientHeartbeat"
OFTEN = Attachment(interval_s=0.02, timeout_s=60.0)


def clock() -> int:
    return 1_000


def beating(server: Server, attachment: Attachment = OFTEN, clock_ms: Callable[[], int] = clock) -> Any:
    return attached([server.url], JOB, attachment, clock_ms)


def small(**config: str) -> Job:
    job = Job("small", config=config)
    job.result("r", job.sql("a", "SELECT 1"))
    return job


def test_signs_are_sent_at_once_and_again_and_end_with_the_context() -> None:
    """Each says until when the client may be counted on."""
    with serving({PATH: [(202, {})]}) as server:
        with beating(server):
            wait_for(lambda: len(server.seen) >= 3)
        sent = len(server.seen)
        assert "client-heartbeat" not in {thread.name for thread in threading.enumerate()}

    assert len(server.seen) == sent
    assert [json.loads(seen.body) for seen in server.seen] == [{"expiredTimestamp": 61_000}] * sent
    assert server.seen[0].headers["content-type"] == "application/json"


def test_a_sign_that_was_lost_is_soon_followed_by_another() -> None:
    """No leader, then a broken connection, then a response: long before the interval is over."""
    rarely = Attachment(interval_s=60.0, timeout_s=180.0)
    with (
        serving({PATH: [(503, {"errors": ["no JobManager leads"]}), (0, None), (202, {})]}) as server,
        beating(server, rarely),
    ):
        wait_for(lambda: len(server.seen) >= 3)


def test_heartbeats_end_when_the_job_is_removed() -> None:
    """The thread ends by itself."""
    with serving({PATH: [(404, {"errors": ["job was not found"]})]}) as server, beating(server):
        wait_for(lambda: "client-heartbeat" not in {thread.name for thread in threading.enumerate()})
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("cluster", "job", "interval_s", "timeout_s"),
    [
        ({}, {}, 30.0, 180.0),
        ({"client.heartbeat.interval": "5 s"}, {}, 5.0, 180.0),
        ({"client.heartbeat.timeout": "1 min"}, {"client.heartbeat.timeout": "9 s"}, 3.0, 9.0),
        ({}, {"client.heartbeat.interval": "1 min", "client.heartbeat.timeout": "30 s"}, 10.0, 30.0),
    ],
)
def test_several_heartbeats_are_sent_within_a_timeout(
    cluster: dict[str, str], job: dict[str, str], interval_s: float, timeout_s: float
) -> None:
    """The job's own settings count before the others."""
    package = small(**job).package()

    attachment = Attachment.of(Configuration(cluster), package)

    assert (attachment.interval_s, attachment.timeout_s) == (interval_s, timeout_s)
    bound = attachment.bind(package)
    assert (bound.spec.client_timeout, bound.graph.client_timeout_s) == (timeout_s, timeout_s)
    assert bound.files == package.files


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_moments_are_named_by_the_clusters_clock(ahead_s: float) -> None:
    """A client whose clock is wrong by an hour has its job neither cancelled immediately nor kept alive for an hour."""
    with serving({"GET /x": [(200, {})]}) as server:
        server.ahead_s = ahead_s
        http = Http([server.url])
        assert http.server_ms() == pytest.approx(time.time() * 1000, abs=5_000)
        http.call("GET", "/x")

        assert http.server_ms() == pytest.approx((time.time() + ahead_s) * 1000, abs=5_000)
        http.close()


def test_clocks_that_differ_by_a_second_agree() -> None:
    """Responses have full seconds only: a small difference is no difference, and does not make the clock jump."""
    with serving({"GET /x": [(200, {})]}) as server:
        server.ahead_s = 0.9
        http = Http([server.url])
        http.call("GET", "/x")

        assert abs(http.server_ms() - time.time() * 1000) < 500
        http.close()
