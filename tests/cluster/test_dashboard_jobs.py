"""The dashboard with jobs that really ran: their results, failures and output, and the TaskManager that ran them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tests.browser import conftest as browser
from tests.browser.chromium import Chromium
from tests.browser.dashboard_pages import LOOK, PRELUDE, look_arguments
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

from flintlock.model.streaming.savepoints import MANIFEST, decode_manifest
from flintlock.testing import rest_requests

pytestmark = pytest.mark.cluster
chromium, dashboard = browser.chromium, browser.dashboard  # the fixtures of tests/browser

FINISHED: Final[dict[str, Any]] = {
    "name": "squares",
    "steps": {
        "numbers": {"sql": "SELECT id, id * id AS square FROM range(3)", "exchange": "blocking"},
        "top": {"result": {}, "inputs": ["numbers"]},
    },
}
FAILED: Final[dict[str, Any]] = {
    "name": "typo",
    "steps": {"names": {"sql": "SELECT nme FROM range(5)"}, "top": {"result": {}, "inputs": ["names"]}},
}
WORDY: Final[dict[str, Any]] = {
    "name": "wordy",
    "steps": {
        "long": {"sql": "SELECT raise_error(repeat('words ', 200000)) AS n"},
        "top": {"result": {}, "inputs": ["long"]},
    },
}
CLICKS: Final[dict[str, Any]] = {
    "name": "clicks",
    "steps": {
        "clicks": {"source": {"format": "rate", "stream": True, "options": {"rowsPerSecond": "20"}}},
        "out": {"sink": {"format": "noop"}, "inputs": ["clicks"], "uid": "out"},
    },
}
PROGRAM: Final = "print('<b>printed</b> by a program')\n"

#: The page that logs in has ended, and what goes wrong from now on is noted.
LOGGED_IN: Final = f"""
    await page.goto(argument.link);
    await page.getByText("Live", {{exact: true}}).waitFor();
    {PRELUDE}
"""


def test_finished_and_failed_jobs_are_shown_with_results_failures_and_output(
    standing: Processes, chromium: Chromium, dashboard: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    jobs = {job["name"]: _run(standing.url, job) for job in (FINISHED, FAILED, WORDY)}
    ran = flintlock("run", "-m", standing.url, "--name", "printing", "program.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    listed = rest_requests.get(f"{standing.url}/jobs/overview?name=printing").json()["jobs"]
    jobs["printing"] = listed[0]["jid"]
    link = flintlock("dashboard", "-m", standing.url, cwd=tmp_path).stdout.strip()
    outcome = chromium.run(
        f"""
        {LOGGED_IN}
        await page.reload();
        const shown = {{}};
        const show = async (name, tab, text, where = "main") => {{
            await open(`#/jobs/${{argument.jobs[name]}}/${{tab}}`);
            await page.locator(where).getByText(text).first().waitFor();
            shown[name] = await page.locator("main").innerText();
        }};
        await show("squares", "results", "square", "main table");
        await show("typo", "failures", "UNRESOLVED_COLUMN");
        await show("wordy", "failures", "words words");
        await show("printing", "logs", "by a program");
        await open("#/taskmanagers");
        await page.getByRole("table").getByRole("link").first().click();
        await page.getByText("Heap of the engine").waitFor();
        await page.getByRole("img", {{name: /^Memory of the engine: [1-9]/}}).waitFor();
        await page.getByText("Log of the Spark engine").click();
        await page.getByLabel("Log", {{exact: true}}).waitFor();
        const opened = context.waitForEvent("page");
        await page.getByText("Open the UI of Spark").click();
        const spark = await opened;
        spark.on("pageerror", error => problems.push(`Spark: ${{error}}`));
        await spark.getByRole("link", {{name: "Executors"}}).click();
        await spark.getByText("Summary").first().waitFor();
        await spark.locator("#active-executors-table td").first().waitFor();  // its script has read its data
        const reached = await spark.evaluate(async () => {{
            try {{ return (await fetch("/jobs/overview")).status; }} catch {{ return "nothing"; }}
        }});
        const sparks = {{origin: await spark.evaluate(() => self.origin), title: await spark.title(), reached}};
        return {{shown, problems, sparks}};
        """,
        {"origin": standing.url, "link": link, "jobs": jobs},
    )
    assert outcome["problems"] == []
    # A page of Spark's UI works, and is none of the cluster's: it has no cookie, and no other route for its scripts.
    assert outcome["sparks"] == {"origin": "null", "title": "flintlock - Executors", "reached": "nothing"}
    assert "2\t4" in outcome["shown"]["squares"]
    assert "SELECT nme FROM range(5)" in outcome["shown"]["typo"]
    assert len(outcome["shown"]["wordy"]) < 200_000  # of a message of more than a megabyte
    assert "<b>printed</b> by a program" in outcome["shown"]["printing"]


def test_the_batches_of_a_streaming_job_are_shown_and_it_is_saved_and_stopped_in_the_browser(
    standing: Processes, chromium: Chromium, dashboard: Path, tmp_path: Path
) -> None:
    job = rest_requests.post(f"{standing.url}/jobs", json=CLICKS).json()["jobid"]
    link = flintlock("dashboard", "-m", standing.url, cwd=tmp_path).stdout.strip()
    outcome = chromium.run(
        f"""
        {LOGGED_IN}
        await page.reload();
        await open(`#/jobs/${{argument.job}}/streaming`);
        await page.getByRole("region", {{name: "Sources of out"}}).waitFor();
        const shown = await page.locator("main").innerText();
        await open(`#/jobs/${{argument.job}}/checkpoints`);
        await page.getByText("Latest batches of out").waitFor();
        const request = async label => {{
            await page.getByRole("button", {{name: label}}).click();
            const question = await page.getByRole("dialog").innerText();
            await page.getByRole("dialog").getByRole("button", {{name: label}}).click();
            await page.getByRole("dialog").waitFor({{state: "hidden"}});
            return question;
        }};
        const outcome = page.getByRole("status").filter({{hasText: "flintlock run -s"}}).locator("div > code");
        const saving = await request("Take a savepoint");
        const saved = await outcome.innerText();
        const stopping = await request("Stop with a savepoint");
        await page.locator("main header").getByText("FINISHED", {{exact: true}}).first().waitFor();
        const stopped = await outcome.innerText();
        await page.getByRole("button", {{name: "Run again"}}).waitFor();
        const table = page.getByRole("region", {{name: "Savepoints"}}).filter({{hasText: stopped}});
        await table.getByText(saved, {{exact: true}}).waitFor();  // both: they are the cluster's
        await page.reload();
        await table.getByText(saved, {{exact: true}}).waitFor();
        return {{shown, saving, stopping, saved, stopped, problems}};
        """,
        {"origin": standing.url, "link": link, "job": job},
        limit_s=90,
    )
    assert outcome["problems"] == []
    assert "Duration of a batch" in outcome["shown"]
    assert "rows/s" in outcome["shown"]
    assert "The job continues" in outcome["saving"]
    assert "the job is FINISHED" in outcome["stopping"]
    assert outcome["saved"] != outcome["stopped"]
    for place in (outcome["saved"], outcome["stopped"]):
        (query,) = decode_manifest((Path(place) / MANIFEST).read_bytes()).queries
        assert query.uid == "out"
    assert rest_requests.get(f"{standing.url}/jobs/{job}/status").json() == {"status": "FINISHED"}


def _run(url: str, job: dict[str, Any]) -> str:
    """Submit a job and wait for its end; return its id."""
    job_id = str(rest_requests.post(f"{url}/jobs", json=job).json()["jobid"])
    ended = rest_requests.get(f"{url}/jobs/{job_id}/execution-result?wait=100s", timeout=120).json()
    assert ended["status"]["id"] == "COMPLETED"
    return job_id


def test_axe_finds_nothing_serious_on_pages_of_jobs_that_run_have_run_and_have_failed(
    standing: Processes, chromium: Chromium, dashboard: Path, tmp_path: Path
) -> None:
    """Results, failures, timelines, charts of a streaming job, the page of a TaskManager, dialogs; and on a phone."""
    jobs = {job["name"]: _run(standing.url, job) for job in (FINISHED, FAILED)}
    jobs["clicks"] = rest_requests.post(f"{standing.url}/jobs", json=CLICKS).json()["jobid"]
    link = flintlock("dashboard", "-m", standing.url, cwd=tmp_path).stdout.strip()
    outcome = chromium.run(
        f"""
        {LOGGED_IN}
        {LOOK}
        await open("#/");
        const show = async (name, tab, ready) => {{
            await open(`#/jobs/${{argument.jobs[name]}}/${{tab}}`);
            await ready.first().waitFor();
            await look(`${{name}}-${{tab}}`.replaceAll(/[^a-z]+/g, "-"));
        }};
        await show("squares", "results", page.getByText("3 rows"));
        await show("squares", "graph?step=numbers", page.getByRole("heading", {{name: "numbers"}}));
        await show("squares", "timeline", page.getByText("FINISHED"));
        await page.getByRole("button", {{name: "Run again"}}).click();
        await look("dialog-rerun");
        await page.keyboard.press("Escape");
        await show("typo", "failures", page.getByText("UNRESOLVED_COLUMN"));
        await show("clicks", "streaming", page.getByRole("region", {{name: "Sources of out"}}));
        const bars = page.getByRole("img", {{name: /^Rows in a batch/}}).locator("rect");
        const before = await bars.count();
        while (await bars.count() < before + 3)  // three batches, while the page is open
            await bars.nth(await bars.count()).waitFor({{state: "attached"}});
        await show("clicks", "checkpoints", page.getByText("Latest batches of out"));
        await show("clicks", "graph?step=out", page.getByRole("heading", {{name: "Sink: out"}}));
        await page.getByRole("button", {{name: "Stop with a savepoint"}}).click();
        await look("dialog-stop");
        await page.keyboard.press("Escape");
        await open("#/taskmanagers");
        await page.getByRole("table").getByRole("link").first().click();
        await page.getByRole("img", {{name: /^Memory of the engine: [1-9]/}}).waitFor();
        await look("taskmanager");
        await open("#/");
        await page.getByRole("link", {{name: "clicks"}}).first().waitFor();
        await look("overview");
        return {{found, problems}};
        """,
        {"origin": standing.url, "link": link, "jobs": jobs, **look_arguments()},
        limit_s=150,
    )
    rest_requests.patch(f"{standing.url}/jobs/{jobs['clicks']}")
    assert (outcome["found"], outcome["problems"]) == ([], [])


GRAPH: Final = """\
import flintlock as fl

job = fl.Job("cubes", params={"many": 4})
numbers = job.sql("numbers", "SELECT id FROM range(:many)")


@job.step(inputs=[numbers])
def cubes(numbers):
    return numbers.selectExpr("id * id * id AS cube")


job.result("top", cubes)
"""


def test_a_graph_in_python_is_read_by_a_taskmanager_its_problems_are_marked_and_it_is_run_with_other_parameters(
    standing: Processes, chromium: Chromium, dashboard: Path, tmp_path: Path
) -> None:
    """First with a mistake, then without; then the job is run again with yet another parameter."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "cubes.py").write_text(GRAPH.replace("def cubes(numbers)", "def cubes()"))
    (tmp_path / "cubes.py").write_text(GRAPH)
    link = flintlock("dashboard", "-m", standing.url, cwd=tmp_path).stdout.strip()
    outcome = chromium.run(
        f"""
        {LOGGED_IN}
        await open("#/new");
        const choose = file => page.locator("input[type=file]").setInputFiles([`${{argument.directory}}/${{file}}`]);
        await choose("wrong/cubes.py");
        const wrong = await page.getByRole("list", {{name: "Problems"}}).innerText();
        const refused = await page.getByRole("button", {{name: "Submit"}}).isDisabled();
        await page.getByRole("button", {{name: "Write a document instead"}}).click();
        await choose("cubes.py");
        await page.getByRole("button", {{name: /^cubes/}}).click();
        await page.getByText(/function: cubes/).waitFor();
        await page.getByLabel("many").fill("3");
        await page.getByRole("button", {{name: "Submit"}}).click();
        await page.getByRole("heading", {{name: "cubes", level: 1}}).waitFor();
        await page.locator("main header").getByText("FINISHED", {{exact: true}}).first().waitFor();
        const first = page.url();
        await page.getByRole("button", {{name: "Run again"}}).click();
        await page.getByRole("dialog").getByLabel("many").fill("5");
        await page.getByRole("dialog").getByRole("button", {{name: "Run again"}}).click();
        await page.waitForURL(url => url.href !== first);
        await page.locator("main header").getByText("FINISHED", {{exact: true}}).first().waitFor();
        await page.getByRole("link", {{name: "results"}}).click();
        await page.locator("main table").getByText("64", {{exact: true}}).waitFor();
        return {{wrong, refused, first, rows: await page.locator("main").innerText(), problems}};
        """,
        {"origin": standing.url, "link": link, "directory": str(tmp_path)},
        limit_s=90,
    )
    assert outcome["problems"] == []
    assert outcome["refused"]
    assert outcome["wrong"].startswith("line 7")
    assert "cannot be called with 1 input" in outcome["wrong"]
    job = outcome["first"].split("/jobs/")[1].split("/")[0]
    assert rest_requests.get(f"{standing.url}/jobs/{job}/config").json()["params"] == {"many": 3}
    assert len(rest_requests.get(f"{standing.url}/jobs/{job}/results/top").json()["rows"]) == 3
    assert "64" in outcome["rows"]
