"""Figures of the dashboard in a real browser, and of what many open ones cost the JobManager."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, cast

import httpx
import psutil
from dashboard.build import build
from tests.browser.chromium import Chromium, running_chromium

from bench.control_plane import SMALL_JOB
from bench.figures import Bound, Figure, percentile, spread
from bench.load import http
from bench.many_jobs import with_ended_jobs
from bench.servers import Cluster, cluster
from flintlock.testing import rest_requests
from flintlock.testing.rest_requests import OWN_CREDENTIAL

_OPEN: Final = ("security.authentication=none",)
_DASHBOARDS: Final = 20
_CHANGES_A_SECOND: Final = 50
_WINDOW_S: Final = 10.0
_REFRESH_S: Final = 0.5  # how often a page reads documents again while jobs change

#: Opens the overview and returns when a job of it was shown, and what was transferred until then.
_PAINT: Final = """
    await page.goto(argument.origin);
    await page.getByRole("link", {name: argument.name}).first().waitFor();
    return page.evaluate(() => {
        const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
        const files = entries.filter(entry => entry.entryType === "navigation" || entry.name.includes("/assets/"));
        return {ms: performance.now(), bytes: files.reduce((sum, entry) => sum + entry.transferSize, 0)};
    });
"""
#: Submits jobs one after the other, and measures for each how long it takes until its name is on the page.
_EVENTS: Final = """
    await page.goto(argument.origin);
    await page.getByText("Live", {exact: true}).waitFor();
    return page.evaluate(async ({job, count}) => {
        const found = [];
        for (let number = 0; number < count; number += 1) {
            const name = `measured-${number}`;
            const options = {method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({...job, name})};
            const shown = new Promise(resolve => {
                const observer = new MutationObserver(() => {
                    if (![...document.querySelectorAll("td a")].some(link => link.textContent === name)) return;
                    observer.disconnect();
                    resolve(performance.now());
                });
                observer.observe(document.querySelector("main"), {childList: true, subtree: true, characterData: true});
            });
            const begun = performance.now();
            const {jobid} = await (await fetch("/jobs", options)).json();
            found.push(await shown - begun);
            await fetch(`/jobs/${jobid}`, {method: "PATCH"});
        }
        return found;
    }, argument);
"""
#: Scrolls and filters the list, and returns the longest task of the page.
_LIST: Final = """
    await page.goto(`${argument.origin}/#/jobs`);
    await page.getByText("Live", {exact: true}).waitFor();
    await page.getByRole("link", {name: "nightly revenue"}).first().waitFor();
    await page.evaluate(() => {
        window.tasks = [];
        new PerformanceObserver(list => window.tasks.push(...list.getEntries().map(entry => entry.duration)))
            .observe({type: "longtask"});
    });
    for (let turn = 0; turn < 20; turn += 1) {
        await page.mouse.wheel(0, turn % 2 ? -4000 : 4000);
        await page.waitForTimeout(50);
    }
    await page.getByRole("checkbox", {name: "FINISHED"}).check();
    await page.getByRole("link", {name: "nightly revenue"}).first().waitFor();
    await page.getByLabel("Name").fill("nightly");
    await page.keyboard.press("Enter");
    await page.getByRole("link", {name: "Next page"}).click();
    await page.getByRole("link", {name: "First page"}).waitFor();
    await page.waitForTimeout(300);
    return page.evaluate(() => window.tasks);
"""


def dashboard() -> Iterator[Figure]:
    """The first page, a change on the page, a long list, and the load of many dashboards."""
    build()
    with running_chromium() as chromium:
        with cluster(taskmanagers=0, settings=_OPEN) as running:
            yield from _pages(chromium, running)
        with cluster(taskmanagers=0, settings=_OPEN, prepare=with_ended_jobs(10_000)) as running:
            tasks = chromium.run(_LIST, {"origin": running.url}, limit_s=120)
    yield Figure(
        name="dashboard-long-list", what="dashboard, 10,000 jobs: longest task while the list is scrolled and filtered",
        value=max([0.0, *tasks]), unit="ms", bound=Bound(limit=100), against="absolute; tasks below 50 ms count as 0",
    )  # fmt: skip
    with cluster(taskmanagers=0, settings=_OPEN) as running:
        alone, watched = _load(running, 0), _load(running, _DASHBOARDS)
    yield Figure(
        name="dashboard-load", what="JobManager, 20 open dashboards, 50 state changes a second: more of a core",
        value=(watched - alone) * 100, unit="%", bound=Bound(limit=25), against=f"without dashboards {alone:.0%}",
    )  # fmt: skip


def _pages(chromium: Chromium, running: Cluster) -> Iterator[Figure]:
    rest_requests.post(f"{running.url}/jobs", json={**SMALL_JOB, "name": "first"}).raise_for_status()
    paints = [chromium.run(_PAINT, {"origin": running.url, "name": "first"}) for _ in range(10)]
    times = spread([paint["ms"] for paint in paints])
    changes = chromium.run(_EVENTS, {"origin": running.url, "job": SMALL_JOB, "count": 200}, limit_s=300)
    yield Figure(
        name="dashboard-transfer", what="dashboard, transferred for the first page", value=paints[0]["bytes"] / 1000,
        unit="kB", bound=Bound(limit=300), against="absolute",
    )  # fmt: skip
    yield Figure(
        name="dashboard-paint", what="dashboard, navigation -> a job is shown, p50", value=times.median / 1000,
        low=times.low / 1000, high=times.high / 1000, samples=times.samples, unit="s", bound=Bound(limit=1),
        against="absolute",
    )  # fmt: skip
    yield Figure(
        name="dashboard-change", what="submission -> the job is on an open page, p99", value=percentile(changes, 0.99),
        unit="ms", bound=Bound(limit=300), samples=len(changes), against=f"p50 {percentile(changes, 0.5):.0f} ms",
    )  # fmt: skip


def _load(running: Cluster, dashboards: int) -> float:
    """Return which part of a core the JobManager uses while jobs change, with so many dashboards."""
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            following = pool.submit(_follow, running.port, dashboards, ended)
            changing = pool.submit(_change, running.url, ended)
            ended.wait(2.0)  # all streams are open
            process = psutil.Process(running.jobmanager_pid)
            begun, before = time.perf_counter(), sum(process.cpu_times()[:2])
            ended.wait(_WINDOW_S)
            used = (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - begun)
        finally:
            ended.set()
        following.result()
        rate = changing.result()
    if rate < 0.9 * _CHANGES_A_SECOND:
        raise RuntimeError(
            f"this machine is too busy: it made {rate:.0f} instead of {_CHANGES_A_SECOND} changes a second"
        )
    return used


def _change(url: str, ended: threading.Event) -> float:
    """Submit and cancel jobs at the rate; return the rate that was reached."""
    with httpx.Client(auth=OWN_CREDENTIAL, base_url=url, timeout=30) as client:
        begun = time.perf_counter()
        jobs = 0
        while not ended.is_set():
            job: Any = client.post("/jobs", json=SMALL_JOB).raise_for_status().json()["jobid"]
            client.patch(f"/jobs/{job}")
            jobs += 1
            ended.wait(max(0.0, begun + jobs * 2 / _CHANGES_A_SECOND - time.perf_counter()))
        return jobs * 2 / (time.perf_counter() - begun)


def _follow(port: int, dashboards: int, ended: threading.Event) -> None:
    """Do what so many open overviews do: follow the events, and read documents again when jobs have changed.

    Over plain sockets, so that this costs less than what it measures.
    """
    with ExitStack() as open_sockets, selectors.DefaultSelector() as selector:
        read_at: dict[socket.socket, float] = {}
        documents: dict[socket.socket, socket.socket] = {}
        for _ in range(dashboards):
            stream = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            other = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            stream.sendall(http("GET", "/events?cluster=true"))
            read_at[stream], documents[stream] = 0.0, other
            selector.register(stream, selectors.EVENT_READ)
            selector.register(other, selectors.EVENT_READ)
        while not ended.is_set():
            for key, _ in selector.select(timeout=0.1):
                ready = cast("socket.socket", key.fileobj)
                if not ready.recv(1 << 20):
                    raise RuntimeError("the JobManager has closed a connection")
                if ready in documents and time.perf_counter() - read_at[ready] >= _REFRESH_S:
                    read_at[ready] = time.perf_counter()
                    documents[ready].sendall(
                        http("GET", "/overview") + http("GET", "/resources") + http("GET", "/jobmanagers")
                    )
        if not all(read_at.values()):
            raise RuntimeError("an open dashboard has received no event")
