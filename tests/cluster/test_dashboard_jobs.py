"""The dashboard with jobs that really ran: their results, failures and output, and the TaskManager that ran them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tests.browser import conftest as browser
from tests.browser.chromium import Chromium
from tests.browser.test_dashboard import PRELUDE
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
        await page.goto(argument.link);
        await page.getByText("Live", {{exact: true}}).waitFor();  // the page that logs in has ended
        {PRELUDE}
        await page.reload();
        const shown = {{}};
        const show = async (name, tab, text) => {{
            await open(`#/jobs/${{argument.jobs[name]}}/${{tab}}`);
            await page.getByText(text).first().waitFor();
            shown[name] = await page.locator("main").innerText();
        }};
        await show("squares", "results", "square");
        await show("typo", "failures", "UNRESOLVED_COLUMN");
        await show("wordy", "failures", "words words");
        await show("printing", "logs", "printed");
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
        await page.goto(argument.link);
        await page.getByText("Live", {{exact: true}}).waitFor();
        {PRELUDE}
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
