"""Web pages in a real browser, at a real JobManager: the cluster's own can use it, all others neither read nor change.

The browser is logged in where the cluster needs that. The foreign pages are served from this machine too, so that it is
the cluster that refuses them, and not the browser for being pages of the internet: the audit log has every request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.browser.chromium import Chromium
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests

JOB: dict[str, Any] = {
    "name": "of_the_user",
    "steps": {"n": {"sql": "SELECT 1 AS n"}, "top": {"result": {}, "inputs": ["n"]}},
}
FORGED: dict[str, Any] = {**JOB, "name": "forged"}

#: What pages try: the body of a function that returns what it could read, null if the browser shows it nothing.
ATTEMPTS: dict[str, str] = {
    "no-cors": """
        const answer = await fetch(`${target}/jobs`, {method: "POST", mode: "no-cors", credentials: "include",
            headers: {"Content-Type": "text/plain"}, body: JSON.stringify(forged)});
        return (await answer.text()) || null;
    """,
    "no-cors-read": """
        const answer = await fetch(`${target}/jobs/overview`, {mode: "no-cors", credentials: "include"});
        return (await answer.text()) || null;
    """,
    "cors-submit": """
        const answer = await fetch(`${target}/jobs`, {method: "POST", credentials: "include",
            headers: {"Content-Type": "application/json"}, body: JSON.stringify(forged)});
        return await answer.text();
    """,
    "cors-simple": """
        const body = new FormData();
        body.append("request", new Blob([JSON.stringify(forged)], {type: "application/json"}));
        return await (await fetch(`${target}/jobs`, {method: "POST", credentials: "include", body})).text();
    """,
    "cors-read": "return await (await fetch(`${target}/jobs/overview`, {credentials: 'include'})).text();",
    "cors-cancel": """
        return await (await fetch(`${target}/jobs/${job}`, {method: "PATCH", credentials: "include"})).text();
    """,
    "cors-shut-down": """
        return await (await fetch(`${target}/cluster`, {method: "DELETE", credentials: "include"})).text();
    """,
    "beacon": """
        navigator.sendBeacon(`${target}/jobs`, new Blob([JSON.stringify(forged)], {type: "text/plain"}));
        return null;
    """,
    "image": "return await shown(new Image(), 'src', `${target}/jobs/overview?image`);",
    "script": "return await shown(document.createElement('script'), 'src', `${target}/jobs/overview?script`);",
    "style": """
        const link = document.createElement("link");
        link.rel = "stylesheet";
        return await shown(link, "href", `${target}/jobs/overview?style`);
    """,
    "frame": """
        const frame = document.createElement("iframe");
        await shown(frame, "src", `${target}/jobs/overview?frame`);
        return frame.contentDocument === null ? null : frame.contentDocument.body.textContent;
    """,
    "events": """
        const events = new EventSource(`${target}/events`, {withCredentials: true});
        return await new Promise(done => {
            events.onerror = () => { events.close(); done(null); };
            events.onopen = () => done("open");
            events.onmessage = message => done(message.data);
        });
    """,
    "socket": """
        const socket = new WebSocket(`${target.replace("http", "ws")}/events`);
        return await new Promise(done => {
            socket.onerror = () => done(null);
            socket.onopen = () => done("open");
        });
    """,
    "form": """
        const frame = document.createElement("iframe");
        frame.name = "answer";
        const form = document.createElement("form");
        Object.assign(form, {method: "POST", action: `${target}/jobs`, target: "answer", enctype: "text/plain"});
        const field = document.createElement("input");
        // As text it is the document, with a field more.
        Object.assign(field, {name: `${JSON.stringify(forged).slice(0, -1)},"x":"`, value: '"}'});
        form.append(field);
        document.body.append(frame, form);
        const loaded = new Promise(done => { frame.onload = done; });
        form.submit();
        await loaded;
        return frame.contentDocument === null ? null : frame.contentDocument.body.textContent;
    """,
}

#: Tries everything in one page, with the session of the user in the browser, if there is one.
ATTACK = """
    if (argument.link) {
        await page.goto(argument.link);
        await page.waitForURL(url => url.pathname === "/");
    }
    const foreign = await context.newPage();
    if (argument.rebound)  // the page is the attacker's, and from then on its name leads to the cluster
        await foreign.route(argument.page, route => route.fulfill({contentType: "text/html", body: "<p>foreign"}));
    await foreign.goto(argument.page);
    const read = {};
    for (const [name, body] of Object.entries(argument.attempts)) {
        read[name] = await foreign.evaluate(async ({body, target, job, forged}) => {
            const shown = (element, attribute, url) => new Promise(done => {
                element.onload = () => done("loaded");
                element.onerror = () => done(null);
                element[attribute] = url;
                document.body.append(element);
            });
            const attempt = new (async () => {}).constructor("target", "job", "forged", "shown", body);
            try { return await attempt(target, job, forged, shown); }
            catch (error) { return error instanceof TypeError ? null : `${error}`; }
        }, {...argument, body});
    }
    return {read, cookies: (await context.cookies()).length};
"""


class Cluster(NamedTuple):
    """A JobManager, a job in it that waits for slots, and whether callers need a credential."""

    processes: Processes
    job: str
    guarded: bool

    @property
    def port(self) -> str:
        return self.processes.url.rpartition(":")[2]

    def link(self, directory: Path) -> str:
        """Return a link that logs a browser in; an empty one where no credential is needed."""
        if not self.guarded:
            return ""
        return flintlock("dashboard", "-m", self.processes.url, cwd=directory).stdout.strip()

    def state(self) -> Any:
        """Return all that an attack could change."""
        listed = rest_requests.get(f"{self.processes.url}/jobs/overview").json()["jobs"]
        return sorted((job["jid"], job["name"], job["state"]) for job in listed)

    def audited(self) -> list[dict[str, Any]]:
        """Return the lines of the audit log."""
        log = self.processes.state_dir / "log" / "jobmanager-audit.log"
        return [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]


@pytest.fixture(scope="module", params=["required", "none"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Also one without authentication: that only programs of this machine use it must hold all the more there."""
    processes = Processes(tmp_path_factory.mktemp(f"cluster-{request.param}"))
    try:
        processes.start_jobmanager(settings=(f"security.authentication={request.param}",))
        processes.await_leader()
        submitted = rest_requests.post(f"{processes.url}/jobs", json=JOB)
        assert submitted.status_code == 202, submitted.text
        yield Cluster(processes, submitted.json()["jobid"], guarded=request.param == "required")
    finally:
        processes.stop()


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>foreign</title><p>foreign")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        """Write nothing."""


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """The port of a web server on this machine that is not the cluster's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, name="foreign pages")
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("host", ["foreign.test", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_reads_and_changes_nothing(
    chromium: Chromium, cluster: Cluster, foreign_port: int, tmp_path: Path, host: str
) -> None:
    before, lines = cluster.state(), len(cluster.audited())
    argument = {
        "link": cluster.link(tmp_path),
        "page": f"http://{host}:{foreign_port}/",
        "target": cluster.processes.url,
        "job": cluster.job,
        "forged": FORGED,
        "attempts": ATTEMPTS,
    }
    outcome = chromium.run(ATTACK, argument)
    assert outcome["read"] == dict.fromkeys(ATTEMPTS)
    assert outcome["cookies"] == cluster.guarded
    refused = _refused(cluster, lines, 15)
    assert {line["status"] for line in refused} == {403}
    # What a page may not send without a permission, the browser asks for first.
    methods = ["GET"] * 8 + ["OPTIONS"] * 3 + ["POST"] * 4
    assert sorted(line["request"].split()[0] for line in refused) == methods
    assert cluster.state() == before


def test_a_page_whose_name_leads_to_the_cluster_reads_and_changes_nothing(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    """After DNS rebinding the browser takes the cluster for the origin of the page: it may read every response."""
    before, lines = cluster.state(), len(cluster.audited())
    origin = f"http://rebound.test:{cluster.port}"
    argument = {
        "link": cluster.link(tmp_path),
        "rebound": True,
        "page": f"{origin}/page",
        "target": origin,
        "job": cluster.job,
        "forged": FORGED,
        "attempts": ATTEMPTS,
    }
    read = chromium.run(ATTACK, argument)["read"]
    assert not [name for name, text in read.items() if text is not None and "no name of this cluster" not in text]
    assert "no name of this cluster" in read["cors-read"]
    assert cluster.job not in str(read)
    refused = _refused(cluster, lines, 15)
    assert {line["status"] for line in refused} == {403}
    assert cluster.state() == before


def test_a_link_logs_a_browser_in_and_its_page_reads_and_changes(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    """What foreign pages cannot do works for a page of the cluster: their requests fail for where they come from."""
    argument = {"link": cluster.link(tmp_path) or f"{cluster.processes.url}/", "forged": FORGED}
    outcome = chromium.run(
        """
        const problems = [];
        page.on("console", message => { if (message.type() === "error") problems.push(message.text()); });
        page.on("pageerror", error => problems.push(`${error}`));
        await page.goto(argument.link);
        await page.waitForURL(url => url.pathname === "/");
        const shown = await page.evaluate(async ({forged}) => {
            const list = await (await fetch("/jobs/overview")).json();
            const options = {method: "POST", headers: {"Content-Type": "application/json"}};
            const submitted = await fetch("/jobs", {...options, body: JSON.stringify({...forged, name: "own"})});
            const {jobid} = await submitted.json();
            const cancelled = await fetch(`/jobs/${jobid}`, {method: "PATCH"});
            return {jobs: list.jobs.map(job => job.jid), submitted: submitted.status, cancelled: cancelled.status,
                    cookie: document.cookie, jobid, address: location.href};
        }, argument);
        const cookies = (await context.cookies()).map(each => [each.httpOnly, each.sameSite]);
        return {...shown, problems, cookies};
        """,
        argument,
    )
    assert outcome["problems"] == []
    assert outcome["address"] == f"{cluster.processes.url}/"
    assert cluster.job in outcome["jobs"]
    assert (outcome["submitted"], outcome["cancelled"]) == (202, 202)
    assert outcome["cookie"] == ""
    assert outcome["cookies"] == ([[True, "Strict"]] if cluster.guarded else [])


@pytest.mark.parametrize("cluster", ["required"], indirect=True)
def test_a_link_works_once(chromium: Chromium, cluster: Cluster, tmp_path: Path) -> None:
    link = cluster.link(tmp_path)
    script = """
        await page.goto(argument);
        await page.waitForFunction(() => document.body?.innerText && !document.body.innerText.startsWith("Logging in"));
        return page.evaluate(() => [location.pathname, document.body.innerText]);
    """
    assert chromium.run(script, link)[0] == "/"
    path, text = chromium.run(script, link)
    assert path == "/login"
    assert "the link was used already" in text


def _refused(cluster: Cluster, lines: int, count: int) -> list[dict[str, Any]]:
    """Return the lines of refusals since there were `lines`, when there are `count` of them: they are queued."""

    def found() -> list[dict[str, Any]]:
        return [line for line in cluster.audited()[lines:] if line["status"] >= 400]

    until(f"{count} refusals", lambda: len(found()) >= count, 20)
    return found()
