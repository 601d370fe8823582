"""The dashboard in a real browser, at a real JobManager without TaskManagers: jobs wait, and are cancelled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.browser.chromium import Chromium
from tests.browser.dashboard_pages import BUSY, HOSTILE, JOB, LOOK, Cluster, look_arguments, run

from flintlock.testing import rest_requests


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
        return texts;
        """,
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
        await open("#/jobs?name=*script*");
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
        // The list is empty while the jobs of another filter are read.
        await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
        const fits = await page.getByRole("table").locator("tbody tr td:first-child").allInnerTexts();
        await open("#/jobs?state=FAILED");
        await page.getByText("No job fits the filter").waitFor();
        return fits;
        """,
    )
    assert outcome == ["revenue"]


def test_the_list_is_sorted_by_the_server_over_all_its_pages_and_the_order_is_in_the_address(
    chromium: Chromium, cluster: Cluster
) -> None:
    """More jobs than a page has: the first page by name has what the last page of the newest jobs has."""
    with ThreadPoolExecutor(8) as pool:
        names = [f"sorted-{number:02}" for number in range(60)]
        list(pool.map(cluster.submit, names))
    outcome = run(
        chromium,
        cluster,
        """
        await open("#/jobs?name=sorted-*");
        await page.getByText("Newest first").waitFor();
        const shown = () => page.getByRole("table").locator("tbody tr td:first-child").allInnerTexts();
        await page.getByRole("columnheader").getByRole("link", {name: "Job"}).click();
        await page.locator("th[aria-sort=ascending]").getByRole("link", {name: "Job"}).waitFor();
        await page.waitForURL(/sort=name/);
        await page.getByRole("link", {name: "sorted-00"}).waitFor();
        const first = await shown();
        await page.getByRole("link", {name: "Next page"}).click();
        await page.getByRole("link", {name: "sorted-59"}).waitFor();
        const second = await shown();
        await page.getByRole("columnheader").getByRole("link", {name: "Job"}).click();
        await page.locator("th[aria-sort=descending]").waitFor();
        await page.getByRole("link", {name: "sorted-59"}).waitFor();
        const down = await shown();
        await page.reload();
        await page.locator("th[aria-sort=descending]").waitFor();
        await page.getByRole("link", {name: "sorted-59"}).waitFor();
        const again = await shown();
        await page.getByRole("columnheader").getByRole("link", {name: "Started"}).click();
        await page.getByText("Newest first").waitFor();
        return {first, second, down, again};
        """,
    )
    assert [*outcome["first"], *outcome["second"]] == names
    assert len(outcome["first"]) == 50
    assert outcome["down"] == outcome["again"] == names[:9:-1]


def test_axe_finds_nothing_serious_on_any_page_in_light_and_dark_and_nothing_is_cut_off_on_a_phone(
    chromium: Chromium, cluster: Cluster
) -> None:
    found = run(
        chromium,
        cluster,
        LOOK
        + """
        const job = argument.jobs.revenue;
        const tabs = ["graph?step=clean", "timeline", "failures", "logs", "results", "configuration"];
        const others = ["#/", "#/jobs", "#/new", "#/taskmanagers", "#/jobmanagers", "#/jobmanager", "#/quarantine"];
        const pages = [...others, "#/nothing", ...tabs.map(tab => `#/jobs/${job}/${tab}`)];
        for (const hash of pages) {
            await open(hash);
            await look(hash.replace(job, "ID").replaceAll(/[^a-zA-Z]+/g, "-"));
        }
        for (const name of ["Rescale", "Cancel"]) {
            await page.getByRole("button", {name}).click();
            await look(`dialog-${name}`);
            await page.keyboard.press("Escape");
        }
        return found;
        """,
        limit_s=120,
        **look_arguments(),
    )
    assert found == []


def test_a_failure_message_of_a_megabyte_leaves_the_page_usable(chromium: Chromium, cluster: Cluster) -> None:
    """The cluster shortens messages. The page does not depend on it: each text is a megabyte in what it reads here."""
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
        limit_s=60,
        **look_arguments(),
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
        await open("#/jobs?name=large");
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
