"""The page for new jobs, in a real browser: problems at their lines, the plan, parameters, files, and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.browser.chromium import Chromium
from tests.browser.dashboard_pages import Cluster, run

from flintlock.testing import rest_requests

WRONG: Final = """\
version: 1
name: scores
params: {many: 5}
artifacts: [lib.py]
steps:
  numbers: {source: {format: parquet, path: "/data/${many}"}}
  scored: {function: "lib:score", inputs: [nmbers]}
  top: {result: {}, inputs: [scored]}
"""


def test_a_document_is_checked_while_it_is_written_and_submitted_with_its_files_and_parameters(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "lib.py").write_text("raise SystemExit('imported by the JobManager')\n")
    (tmp_path / "scores.yaml").write_text(WRONG)
    shown = run(
        chromium,
        cluster,
        """
        await open("#/new");
        const files = page.locator("input[type=file]");
        const submit = page.getByRole("button", {name: "Submit"});
        await files.setInputFiles([`${argument.directory}/scores.yaml`]);
        const problems = page.getByRole("list", {name: "Problems"});
        await problems.getByText("nmbers").waitFor();
        const found = await problems.innerText();
        const refused = await submit.isDisabled();
        await problems.getByRole("button", {name: "line 7"}).click();
        const marked = await page.evaluate(() => String(document.activeElement.value.slice(
            document.activeElement.selectionStart, document.activeElement.selectionEnd)));
        await files.setInputFiles([`${argument.directory}/lib.py`]);
        const editor = page.getByLabel("Job document");
        await editor.fill((await editor.inputValue()).replace("nmbers", "numbers"));
        await page.getByRole("button", {name: /^scored/}).click();
        await page.getByText("function: lib:score").waitFor();
        await page.getByLabel("many").fill("7");
        await submit.click();
        await page.getByRole("heading", {name: "scores", level: 1}).waitFor();
        return {found, refused, marked, address: page.url()};
        """,
        directory=str(tmp_path),
    )
    assert "line 7" in shown["found"]
    assert "line 4" in shown["found"]  # lib.py was not there yet
    assert "did you mean 'numbers'" in shown["found"]
    assert shown["refused"]
    assert shown["marked"].startswith("  scored:")
    job = shown["address"].split("/jobs/")[1].split("/")[0]
    nodes = rest_requests.get(f"{cluster.processes.url}/jobs/{job}/plan").json()["plan"]["nodes"]
    assert "/data/7" in next(node["definition"] for node in nodes if node["step"] == "numbers")


def test_a_python_file_is_submitted_as_a_program_and_never_run_by_the_job_manager(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "words.py").write_text(f"open({str(ran)!r}, 'w')\n")
    address = run(
        chromium,
        cluster,
        """
        await open("#/new");
        await page.locator("input[type=file]").setInputFiles([`${argument.directory}/words.py`]);
        await page.getByText("neither runs nor imports it").waitFor();
        await page.getByLabel("Arguments").fill("--day 1");
        await page.getByRole("button", {name: "Submit"}).click();
        await page.getByRole("heading", {name: "words", level: 1}).waitFor();
        await page.getByRole("button", {name: /^program Program/}).click();
        await page.getByText("words.py --day 1").waitFor();
        return page.url();
        """,
        directory=str(tmp_path),
    )
    assert "/jobs/" in address
    assert not ran.exists()  # there is no TaskManager
