"""The dashboard in a real browser, at a real JobManager without TaskManagers: jobs wait, and are cancelled."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from dashboard.build import HERE, install_packages
from tests.browser.chromium import Chromium
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests

#: How many times longer something may take on a machine that runs other tests as well.
BUSY: Final = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
HOSTILE: Final = '<script>window.harmed = true</script><img src=x onerror="window.harmed = true"> ☃ 漢字'
JOB: Final[dict[str, Any]] = {
    "name": "revenue",
    "labels": {"team": "core"},
    "steps": {
        "orders": {"source": {"format": "parquet", "path": "/nowhere/orders"}},
        "clean": {"sql": "SELECT * FROM orders", "inputs": ["orders"], "exchange": "blocking"},
        "top": {"result": {}, "inputs": ["clean"]},
    },
}

#: Opens a page of the dashboard and notes everything that a browser reports as wrong, or asks another server for.
PRELUDE: Final = """
    const problems = [];
    page.on("console", message => { if (message.type() !== "log") problems.push(message.text()); });
    page.on("pageerror", error => problems.push(`${error}`));
    page.on("requestfailed", request => {
        const failure = request.failure()?.errorText;  // aborted: the page was left, or asks for something else
        if (failure !== "net::ERR_ABORTED") problems.push(`${failure} ${request.url()}`);
    });
    page.on("response", response => {
        if (response.status() >= 400) problems.push(`${response.status()} ${response.url()}`);
    });
    page.on("request", request => {
        if (new URL(request.url()).origin !== argument.origin && !request.url().startsWith("blob:"))
            problems.push(`another server: ${request.url()}`);
    });
    await page.addInitScript(() => addEventListener("securitypolicyviolation",
        event => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`)));
    const open = async hash => {
        await page.goto(`${argument.origin}/${hash}`);
        await page.getByText("Live", {exact: true}).waitFor();
    };
"""


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


class Cluster(NamedTuple):
    """A JobManager without TaskManagers, and jobs that wait in its queue."""

    processes: Processes
    jobs: dict[str, str]

    def submit(self, name: str) -> str:
        """Submit a job, which waits for slots; return its id."""
        submitted = rest_requests.post(f"{self.processes.url}/jobs", json={**JOB, "name": name})
        assert submitted.status_code == 202, submitted.text
        return str(submitted.json()["jobid"])


@pytest.fixture(scope="module")
def cluster(dashboard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that needs no login."""
    processes = Processes(tmp_path_factory.mktemp("cluster"))
    try:
        processes.start_jobmanager(settings=("security.authentication=none",))
        processes.await_leader()
        found = Cluster(processes, {})
        for name in ("revenue", HOSTILE):
            found.jobs[name] = found.submit(name)
        yield found
    finally:
        processes.stop()


def run(chromium: Chromium, cluster: Cluster, script: str, *, limit_s: float = 60, **argument: object) -> Any:
    """Run a script after the prelude; fail for everything that was noted."""
    argument = {"origin": cluster.processes.url, "jobs": cluster.jobs, "hostile": HOSTILE, **argument}
    body = f"{PRELUDE}\nconst value = await (async () => {{ {script} }})();\nreturn {{value: value ?? null, problems}};"
    outcome = chromium.run(body, argument, limit_s=limit_s)
    assert outcome["problems"] == []
    return outcome["value"]


def test_every_page_of_waiting_jobs_is_shown_without_an_error_or_a_request_to_another_server(
    chromium: Chromium, cluster: Cluster
) -> None:
    texts = run(
        chromium,
        cluster,
        """
        const job = argument.jobs.revenue;
        const pages = {
            "#/": "Waiting for slots", "#/jobs": "Newest first", "#/taskmanagers": "flintlock taskmanager",
            "#/jobmanager": "security.authentication", "#/jobmanagers": "LEADER",
            "#/quarantine": "No job is quarantined", [`#/jobs/${job}/graph`]: "a blocking exchange",
            [`#/jobs/${job}/timeline`]: "SCHEDULED", [`#/jobs/${job}/failures`]: "Nothing of this job has failed",
            [`#/jobs/${job}/logs`]: "Nothing of this job has run yet", [`#/jobs/${job}/results`]: "none yet",
            [`#/jobs/${job}/configuration`]: "Restart strategy", "#/nothing": "There is no such page",
        };
        const texts = {};
        for (const [hash, text] of Object.entries(pages)) {
            await open(hash);
            await page.getByText(text).first().waitFor();
            texts[hash.replace(job, "ID")] = await page.locator("main").innerText();
        }
        if (argument.screenshots) {
            for (const hash of Object.keys(pages)) {
                await open(hash);
                await page.waitForLoadState("load");
                const name = hash.replace(job, "ID").replaceAll(/[^a-zA-Z]+/g, "-");
                await page.screenshot({path: `${argument.screenshots}/page${name}.png`});
            }
        }
        return texts;
        """,
        screenshots=os.environ.get("SCREENSHOTS", ""),
    )
    assert "team=core" in texts["#/jobs"]
    assert "1 slot" in texts["#/"]
    assert "1\nTerm of the leader" in texts["#/"]


def test_the_dashboard_transfers_no_more_than_300_kb(dashboard: Path) -> None:
    assert 0 < sum(path.stat().st_size for path in dashboard.rglob("*.gz")) <= 300_000


def test_a_job_is_opened_from_the_list_and_its_steps_by_the_keyboard(chromium: Chromium, cluster: Cluster) -> None:
    shown = run(
        chromium,
        cluster,
        """
        await open("#/jobs?name=revenue");
        await page.getByRole("link", {name: "revenue"}).click();
        await page.getByRole("heading", {name: "revenue", level: 1}).waitFor();
        const step = page.getByRole("button", {name: "clean SCHEDULED"});
        await step.focus();
        await page.keyboard.press("Enter");
        await page.getByRole("heading", {name: "clean"}).waitFor();
        const shown = await page.locator("main").innerText();
        const address = page.url();
        await page.reload();
        await page.getByRole("heading", {name: "clean"}).waitFor();
        return {shown, address};
        """,
    )
    assert shown["address"].endswith("/graph?step=clean")
    assert "0, with orders" in shown["shown"]


def test_names_that_look_like_markup_are_shown_as_they_are(chromium: Chromium, cluster: Cluster) -> None:
    outcome = run(
        chromium,
        cluster,
        """
        await open("#/jobs");
        const row = await page.getByRole("link", {name: argument.hostile}).innerText();
        await page.goto(`${argument.origin}/#/jobs/${argument.jobs[argument.hostile]}/graph`);
        const title = await page.getByRole("heading", {level: 1}).innerText();
        return {row, title, harmed: await page.evaluate(() => window.harmed ?? false)};
        """,
    )
    assert outcome == {"row": HOSTILE, "title": HOSTILE, "harmed": False}


def test_a_new_job_appears_and_is_cancelled_after_a_question(chromium: Chromium, cluster: Cluster) -> None:
    shown = run(
        chromium,
        cluster,
        """
        await open("#/");
        const headers = {"Content-Type": "application/json"};
        const options = {method: "POST", headers, body: JSON.stringify(argument.job)};
        const {jobid} = await page.evaluate(async options => (await fetch("/jobs", options)).json(), options);
        await page.getByRole("link", {name: "appears"}).click();
        await page.getByRole("button", {name: "Cancel"}).click();
        const question = await page.getByRole("dialog").innerText();
        await page.keyboard.press("Escape");
        await page.getByText("WAITING", {exact: true}).waitFor();
        await page.getByRole("button", {name: "Cancel"}).click();
        await page.getByRole("dialog").getByRole("button", {name: "Cancel"}).click();
        await page.locator("main header").getByText("CANCELED", {exact: true}).waitFor();
        await page.getByRole("button", {name: "Run again"}).waitFor();
        return {question, jobid};
        """,
        job={**JOB, "name": "appears"},
    )
    assert "Cancel appears?" in shown["question"]
    assert "cannot be resumed" in shown["question"]
    status = rest_requests.get(f"{cluster.processes.url}/jobs/{shown['jobid']}/status").json()
    assert status == {"status": "CANCELED"}


def test_the_filter_of_the_list_is_in_the_address(chromium: Chromium, cluster: Cluster) -> None:
    outcome = run(
        chromium,
        cluster,
        """
        await open("#/jobs");
        await page.getByLabel("Name").fill("reven");
        await page.keyboard.press("Enter");
        await page.getByRole("checkbox", {name: "WAITING"}).check();
        await page.waitForURL(/name=reven&state=WAITING/);
        await page.getByRole("link", {name: argument.hostile}).waitFor({state: "detached"});
        await page.getByRole("link", {name: "revenue"}).waitFor();
        const fits = await page.getByRole("row").count() - 1;
        await open("#/jobs?state=FAILED");
        await page.getByText("No job fits the filter").waitFor();
        return fits;
        """,
    )
    assert outcome == 1


def test_the_list_is_sorted_by_the_server_over_all_its_pages_and_the_order_is_in_the_address(
    chromium: Chromium, cluster: Cluster
) -> None:
    """More jobs than a page has: the first page by name has what the last page of the newest jobs has."""
    with ThreadPoolExecutor(8) as pool:
        names = [f"a{number:02}" for number in range(60)]
        list(pool.map(cluster.submit, names))
    outcome = run(
        chromium,
        cluster,
        """
        await open("#/jobs?name=a*");
        await page.getByText("Newest first").waitFor();
        const shown = () => page.getByRole("table").locator("tbody tr td:first-child").allInnerTexts();
        await page.getByRole("columnheader").getByRole("link", {name: "Job"}).click();
        await page.locator("th[aria-sort=ascending]").getByRole("link", {name: "Job"}).waitFor();
        await page.waitForURL(/sort=name/);
        await page.getByRole("link", {name: "a00"}).waitFor();
        const first = await shown();
        await page.getByRole("link", {name: "Next page"}).click();
        await page.getByRole("link", {name: "a59"}).waitFor();
        const second = await shown();
        await page.getByRole("columnheader").getByRole("link", {name: "Job"}).click();
        await page.locator("th[aria-sort=descending]").waitFor();
        await page.getByRole("link", {name: "a59"}).waitFor();
        const down = await shown();
        await page.reload();
        await page.locator("th[aria-sort=descending]").waitFor();
        await page.getByRole("link", {name: "a59"}).waitFor();
        const again = await shown();
        await page.getByRole("columnheader").getByRole("link", {name: "Started"}).click();
        await page.getByText("Newest first").waitFor();
        return {first, second, down, again};
        """,
    )
    assert [*outcome["first"], *outcome["second"]] == names
    assert len(outcome["first"]) == 50
    assert outcome["down"] == outcome["again"] == names[:9:-1]


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


def test_axe_finds_nothing_serious_on_any_page_in_light_and_dark_and_nothing_is_cut_off_on_a_phone(
    chromium: Chromium, cluster: Cluster
) -> None:
    install_packages()
    axe = (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    found = run(
        chromium,
        cluster,
        """
        const job = argument.jobs.revenue;
        const tabs = ["graph?step=clean", "timeline", "failures", "logs", "results", "streaming", "checkpoints"];
        const others = ["#/", "#/jobs", "#/new", "#/taskmanagers", "#/jobmanagers", "#/jobmanager", "#/quarantine"];
        tabs.push("configuration");
        others.push("#/nothing");
        const pages = [...others, ...tabs.map(tab => `#/jobs/${job}/${tab}`)];
        const found = [];
        for (const hash of pages) {
            const name = hash.replace(job, "ID");
            await page.setViewportSize({width: 1280, height: 720});
            await open(hash);
            await page.getByText("Reading …").first().waitFor({state: "detached"});
            await page.evaluate(argument.axe);
            for (const colorScheme of ["light", "dark"]) {
                await page.emulateMedia({colorScheme});
                const {violations} = await page.evaluate(() => axe.run());
                for (const {id, impact, nodes} of violations)
                    if (["serious", "critical"].includes(impact))
                        found.push(`${name} ${colorScheme}: ${id} ${nodes[0].html.slice(0, 200)}`);
            }
            await page.setViewportSize({width: 390, height: 844});
            const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
            if (wide > 0) found.push(`${name}: ${wide} pixels wider than a phone`);
        }
        return found;
        """,
        axe=axe,
        limit_s=120,
    )
    assert found == []


def test_a_failure_message_of_a_megabyte_leaves_the_page_usable(chromium: Chromium, cluster: Cluster) -> None:
    """The cluster shortens messages. The page does not depend on it: each text is a megabyte in what it reads here."""
    install_packages()
    axe = (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    outcome = run(
        chromium,
        cluster,
        """
        const job = argument.jobs.revenue;
        const long = argument.hostile + "x".repeat(500_000) + " line\\n".repeat(100_000);
        const failure = {
            kind: "user code", message: long, step: "clean", "error-class": "SOME_CLASS", "query-context": long,
            frames: [{file: "job.py", line: 7, function: "clean", source: long}],
            "stack-trace": long, "jvm-stack-trace": long,
        };
        await page.route(`**/jobs/${job}/attempts`, async route => {
            const response = await route.fetch();
            const attempts = await response.json();
            attempts.failure = attempts.regions[0].attempts[0].failure = failure;
            attempts.failures = [1, 2].map(timestamp => ({timestamp, kind: "user code", headline: long}));
            await route.fulfill({response, json: attempts});
        });
        await open(`#/jobs/${job}/failures`);
        await page.getByText("The JVM's stack trace").click();
        await page.getByLabel("The JVM's stack trace").getByText("characters more").waitFor();
        const shown = await page.evaluate(() => document.querySelector("main").textContent.length);
        await page.setViewportSize({width: 390, height: 844});
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        await page.evaluate(argument.axe);
        const {violations} = await page.evaluate(() => axe.run());
        const serious = violations.filter(({impact}) => ["serious", "critical"].includes(impact));
        await page.getByRole("link", {name: "graph"}).click();
        await page.getByRole("button", {name: /^clean /}).click();
        await page.getByLabel("Message").waitFor();
        const harmed = await page.evaluate(() => window.harmed ?? false);
        return {shown, wide, harmed, serious: serious.map(({id, nodes}) => `${id} ${nodes[0].html.slice(0, 200)}`)};
        """,
        axe=axe,
    )
    assert (outcome["serious"], outcome["harmed"]) == ([], False)
    assert outcome["wide"] <= 0
    assert outcome["shown"] < 200_000


def test_a_graph_of_300_steps_is_drawn_and_can_be_used(chromium: Chromium, cluster: Cluster) -> None:
    steps: dict[str, Any] = {"s0": {"sql": "SELECT 1 AS n"}}
    for number in range(1, 299):
        blocking: dict[str, Any] = {"exchange": "blocking"} if number % 10 == 0 else {}
        before = f"s{number - 1 - number % 3 if number > 3 else 0}"
        steps[f"s{number}"] = {"sql": f"SELECT n + 1 AS n FROM {before}", "inputs": [before], **blocking}
    steps["top"] = {"result": {}, "inputs": ["s298"]}
    submitted = rest_requests.post(f"{cluster.processes.url}/jobs", json={"name": "large", "steps": steps})
    assert submitted.status_code == 202, submitted.text
    drawn = run(
        chromium,
        cluster,
        """
        await open("#/");
        await page.getByRole("link", {name: "large"}).first().waitFor();
        const ms = await page.evaluate(() => new Promise(resolve => {
            const begun = performance.now();
            new MutationObserver((_, observer) => {
                if (document.querySelectorAll("svg [role=button]").length < 300) return;
                observer.disconnect();
                requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - begun)));  // it is painted
            }).observe(document.body, {childList: true, subtree: true});
            [...document.querySelectorAll("a")].find(link => link.textContent === "large").click();
        }));
        await page.getByRole("button", {name: /^s298 /}).click();
        await page.getByRole("heading", {name: "s298"}).waitFor();
        return {ms, steps: await page.locator("svg [role=button]").count()};
        """,
        limit_s=120,
    )
    assert drawn["steps"] == 300
    assert drawn["ms"] < 1000 * BUSY


@pytest.fixture(scope="module")
def guarded(dashboard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager that wants a credential."""
    processes = Processes(tmp_path_factory.mktemp("guarded"))
    try:
        processes.start_jobmanager()
        processes.await_leader()
        yield processes
    finally:
        processes.stop()


def test_a_link_opens_the_dashboard_logged_in(chromium: Chromium, guarded: Processes, tmp_path: Path) -> None:
    link = flintlock("dashboard", "-m", guarded.url, cwd=tmp_path).stdout.strip()
    text = chromium.run(
        """
        await page.goto(argument);
        await page.getByText("Live", {exact: true}).waitFor();
        await page.getByText("This cluster has no job yet").waitFor();
        return page.locator("main").innerText();
        """,
        link,
    )
    assert "flintlock init words.py" in text


def test_without_a_session_a_token_is_asked_for_and_kept_for_the_tab(
    chromium: Chromium, guarded: Processes, tmp_path: Path
) -> None:
    create = ("token", "create", "--role", "viewer", "--name", "eve", "-m", guarded.url)
    made = flintlock(*create, cwd=tmp_path).stdout.strip()
    job = rest_requests.post(f"{guarded.url}/jobs", json=JOB).json()["jobid"]
    outcome = chromium.run(
        """
        await page.goto(`${argument.origin}/#/jobs/${argument.job}/graph`);
        const enter = async token => {
            await page.getByLabel("Or enter a token").fill(token);
            await page.keyboard.press("Enter");
        };
        await enter("flt_wrong");
        const refused = await page.getByRole("alert").innerText();
        await enter(argument.token);
        await page.getByRole("heading", {name: "revenue"}).waitFor();
        await page.reload();
        await page.getByRole("heading", {name: "revenue"}).waitFor();
        await page.getByRole("link", {name: "JobManagers"}).click();
        await page.getByRole("link", {name: "The one that serves this page"}).click();
        await page.getByText("eve, viewer").waitFor();  // from now on the page knows the role
        await page.goBack();
        await page.goBack();
        await page.getByText("a blocking exchange").waitFor();
        const buttons = await page.getByRole("button", {name: "Cancel"}).count();
        const other = await context.newPage();
        await other.goto(argument.origin);
        await other.getByLabel("Or enter a token").waitFor();
        return {refused, buttons};
        """,
        {"origin": guarded.url, "job": job, "token": made},
    )
    assert outcome["refused"]
    assert outcome["buttons"] == 0  # a viewer may not


def test_when_access_expires_the_page_says_so_and_continues_with_another_token(
    chromium: Chromium, guarded: Processes, tmp_path: Path
) -> None:
    def token(*options: str) -> str:
        create = ("token", "create", "--role", "viewer", "--name", "eve", "-m", guarded.url, *options)
        return flintlock(*create, cwd=tmp_path).stdout.strip()

    job = rest_requests.post(f"{guarded.url}/jobs", json={**JOB, "name": "stays"}).json()["jobid"]
    lasting = token()
    axe = (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    outcome = chromium.run(
        """
        await page.goto(`${argument.origin}/#/jobs/${argument.job}/configuration`);
        const enter = async token => {
            await page.getByLabel("Or enter a token").fill(token);
            await page.keyboard.press("Enter");
            await page.getByRole("heading", {name: "stays"}).waitFor();
        };
        await enter(argument.short);
        await page.getByText("Your access has ended").waitFor();
        const shown = await page.locator("main").innerText();
        await page.evaluate(argument.axe);
        const {violations} = await page.evaluate(() => axe.run());
        const serious = violations.filter(({impact}) => ["serious", "critical"].includes(impact)).map(({id}) => id);
        await enter(argument.lasting);
        return {shown, serious, address: page.url()};
        """,
        {"origin": guarded.url, "job": job, "short": token("--expires", "20s"), "lasting": lasting, "axe": axe},
        limit_s=120,
    )
    assert "Log in again" in outcome["shown"]
    assert outcome["serious"] == []
    assert outcome["address"].endswith(f"/#/jobs/{job}/configuration")


def test_a_waiting_job_is_rescaled_in_the_browser_after_a_question(chromium: Chromium, cluster: Cluster) -> None:
    job = cluster.submit("rescaled")
    question = run(
        chromium,
        cluster,
        """
        await open(`#/jobs/${argument.job}/configuration`);
        await page.getByRole("button", {name: "Rescale"}).click();
        const dialog = page.getByRole("dialog");
        const question = await dialog.innerText();
        await dialog.getByLabel("Slots for each step").fill("3");
        await dialog.getByRole("button", {name: "Rescale"}).click();
        await dialog.waitFor({state: "hidden"});
        await page.getByRole("region", {name: "Changes"}).getByText("rescale").waitFor();
        return question;
        """,
        job=job,
    )
    assert "Rescale rescaled?" in question
    assert "attempts that run are not changed" in question
    changes = rest_requests.get(f"{cluster.processes.url}/jobs/{job}/changes").json()["changes"]
    assert [change["kind"] for change in changes] == ["rescale"]
