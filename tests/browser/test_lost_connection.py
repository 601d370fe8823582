"""A page whose JobManager is killed and started again."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.browser.chromium import Chromium
from tests.browser.dashboard_pages import JOB, Cluster
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests

#: Watches a page while its JobManager dies; submits a job when the page is ready for that.
WATCH: Final = """
    await page.goto(argument.origin);
    await page.getByRole("link", {name: "before"}).waitFor();
    await page.evaluate(async job => {
        window.same = true;
        const headers = {"Content-Type": "application/json"};
        await fetch("/jobs", {method: "POST", headers, body: JSON.stringify(job)});
    }, argument.job);
    await page.getByText("Connection lost").waitFor();
    const kept = await page.getByRole("link", {name: "before"}).count();
    await page.getByText("Live", {exact: true}).waitFor();
    await page.getByRole("link", {name: "after"}).waitFor();
    return {kept, same: await page.evaluate(() => window.same)};
"""


def test_a_lost_connection_is_shown_with_its_time_and_the_page_catches_up_by_itself(
    chromium: Chromium, dashboard: Path, tmp_path: Path
) -> None:
    """The JobManager is killed and started again at the same address while the page is open."""
    processes = Processes(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        processes.settings = (f"rest.port={free.getsockname()[1]}", "security.authentication=none")
    try:
        processes.start_jobmanager()
        processes.await_leader()
        cluster = Cluster(processes, {})
        cluster.submit("before")
        origin = processes.url
        with ThreadPoolExecutor(1) as pool:
            page = pool.submit(chromium.run, WATCH, {"origin": origin, "job": {**JOB, "name": "loaded"}}, limit_s=110)
            until("the page", lambda: page.done() or "loaded" in rest_requests.get(f"{origin}/jobs/overview").text)
            processes.kill_jobmanager()
            processes.start_jobmanager()
            processes.await_leader()
            cluster.submit("after")
            assert page.result(120) == {"kept": 1, "same": True}
    finally:
        processes.stop()
