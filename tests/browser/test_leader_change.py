"""A page that is open at one JobManager while the leader, another one, is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import Chromium
from tests.cluster import test_standby
from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.cluster.test_standby import Masters, job, listed

pytestmark = pytest.mark.cluster
masters = test_standby.masters  # the fixture: two JobManagers

WATCH = """
    await page.goto(argument.link);
    await page.getByText("Live", {exact: true}).waitFor();
    await page.getByRole("link", {name: "before"}).waitFor();
    await page.evaluate(() => {
        window.same = true;
        const state = document.querySelector("[role=status]");
        window.seen = [state.innerText];
        new MutationObserver(() => window.seen.push(state.innerText))
            .observe(state, {childList: true, characterData: true, subtree: true});
    });
    const term = async () => (await page.locator("main").innerText()).match(/(\\d+)\\s+Term of the leader/)?.[1];
    const standbys = count => page.getByRole("link", {name: `${count} Standbys`}).waitFor({timeout: 60000});
    const first = await term();
    await standbys(1);
    await page.evaluate(job => fetch("/jobs", {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(job)}), argument.ready);
    await page.getByRole("link", {name: "after"}).waitFor({timeout: 90000});
    await page.getByText("Live", {exact: true}).waitFor();
    await standbys(0);  // of a killed leader nothing is left but its standby, which leads
    const kept = await page.getByRole("link", {name: "before"}).count();
    return {kept, first, last: await term(), ...await page.evaluate(() => ({same: window.same, seen: window.seen}))};
"""


def test_a_page_goes_on_by_itself_when_the_leader_is_killed_and_says_that_it_was_not_current(
    chromium: Chromium, dashboard: Path, masters: Masters, tmp_path: Path
) -> None:
    leader, standby = masters.leader, masters.standby
    with masters.client() as client:
        client.submit(job("before"))
    link = flintlock("dashboard", "-m", standby.rest, cwd=tmp_path).stdout.strip()
    ready: dict[str, Any] = {
        "name": "ready",
        "steps": {"one": {"sql": "SELECT 1"}, "r": {"result": {}, "inputs": ["one"]}},
    }
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(chromium.run, WATCH, {"link": link, "ready": ready}, limit_s=150)
        until("the page", lambda: page.done() or "ready" in (listed(standby.rest) or {}))
        masters.process(leader).kill()
        until("another leader", lambda: listed(standby.rest, leader.epoch))
        with masters.client() as client:
            client.submit(job("after"))
        shown = page.result(150)
    assert (shown["kept"], shown["same"]) == (1, True)  # nothing was loaded again, nothing is gone
    assert int(shown["last"]) > int(shown["first"])
    assert any("Connection lost" in text for text in shown["seen"])
    assert shown["seen"][-1] == "Live"
