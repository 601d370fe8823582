"""What tests of the dashboard share: jobs that wait, scripts that note every problem of a page, how a page looks."""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from dashboard.build import HERE, install_packages
from tests.browser.chromium import Chromium
from tests.cluster.processes import Processes

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

#: Runs axe on a page in light and dark, and compares its width with that of a phone; takes pictures if wanted.
LOOK: Final = """
    const found = [];
    const look = async name => {
        await page.setViewportSize({width: 1280, height: 720});
        await page.getByText("Reading …").first().waitFor({state: "detached"});
        await page.evaluate(argument.axe);
        for (const colorScheme of ["light", "dark"]) {
            await page.emulateMedia({colorScheme});
            const rules = colorScheme === "dark" ? {runOnly: ["color-contrast"]} : {};  // others see no colours
            const {violations} = await page.evaluate(rules => axe.run(rules), rules);
            for (const {id, impact, nodes} of violations)
                if (["serious", "critical"].includes(impact))
                    found.push(`${name} ${colorScheme}: ${id} ${nodes[0].html.slice(0, 200)}`);
            if (argument.pictures)
                await page.screenshot({path: `${argument.pictures}/${name}-${colorScheme}.png`, fullPage: true});
        }
        await page.setViewportSize({width: 390, height: 844});
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (wide > 0) found.push(`${name}: ${wide} pixels wider than a phone`);
        if (argument.pictures) await page.screenshot({path: `${argument.pictures}/${name}-phone.png`, fullPage: true});
        await page.setViewportSize({width: 1280, height: 720});
        await page.emulateMedia({colorScheme: "light"});
    };
"""


def look_arguments() -> dict[str, str]:
    """Return what scripts with LOOK need. Pictures are written to the directory PICTURES, if that is set."""
    install_packages()
    axe = (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    return {"axe": axe, "pictures": os.environ.get("PICTURES", "")}


class Cluster(NamedTuple):
    """A JobManager without TaskManagers, and jobs that wait in its queue."""

    processes: Processes
    jobs: dict[str, str]

    def submit(self, name: str) -> str:
        """Submit a job, which waits for slots; return its id."""
        submitted = rest_requests.post(f"{self.processes.url}/jobs", json={**JOB, "name": name})
        assert submitted.status_code == 202, submitted.text
        return str(submitted.json()["jobid"])


def run(chromium: Chromium, cluster: Cluster, script: str, *, limit_s: float = 60, **argument: object) -> Any:
    """Run a script after the prelude; fail for everything that was noted."""
    argument = {"origin": cluster.processes.url, "jobs": cluster.jobs, "hostile": HOSTILE, **argument}
    body = f"{PRELUDE}\nconst value = await (async () => {{ {script} }})();\nreturn {{value: value ?? null, problems}};"
    outcome = chromium.run(body, argument, limit_s=limit_s)
    assert outcome["problems"] == []
    return outcome["value"]
