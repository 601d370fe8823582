"""The dashboard of a JobManager that wants a credential: links, tokens, and a page whose access ends."""

from __future__ import annotations

from pathlib import Path

from tests.browser.chromium import Chromium
from tests.browser.dashboard_pages import JOB, look_arguments
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

from flintlock.testing import rest_requests


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
        {
            "origin": guarded.url,
            "job": job,
            "short": token("--expires", "12s"),
            "lasting": lasting,
            **look_arguments(),
        },
        limit_s=120,
    )
    assert "Log in again" in outcome["shown"]
    assert outcome["serious"] == []
    assert outcome["address"].endswith(f"/#/jobs/{job}/configuration")


def test_a_page_whose_token_is_revoked_says_so(chromium: Chromium, guarded: Processes) -> None:
    """Without a request of its own: the stream of events ends with the reason."""
    made = rest_requests.post(f"{guarded.url}/tokens", json={"name": "eve", "role": "viewer"}).json()
    watch = """
        await page.goto(argument.origin);
        await page.getByLabel("Or enter a token").fill(argument.token);
        await page.keyboard.press("Enter");
        await page.getByText("Live", {exact: true}).waitFor();
        const headers = {"Content-Type": "application/json", "Authorization": `Bearer ${argument.admin}`};
        const revoked = await page.evaluate(async ([path, headers]) =>
            (await fetch(path, {method: "DELETE", headers})).status, [`/tokens/${argument.id}`, headers]);
        await page.getByText("Your access has ended").waitFor();
        return {revoked, reason: await page.getByRole("alert").innerText()};
    """
    admin = rest_requests.post(f"{guarded.url}/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    argument = {"origin": guarded.url, "token": made["token"], "id": made["id"], "admin": admin}
    outcome = chromium.run(watch, argument)
    assert outcome["revoked"] == 200
    assert outcome["reason"]
