"""Makes the images of the dashboard's page: `python -m docs.screenshots`. It runs a cluster with Spark for a minute.

They show jobs that really ran. No test compares them: they are made again when the pages have changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from dashboard.build import build
from tests.browser.chromium import running_chromium
from tests.cluster.processes import Processes

from flintlock.testing import rest_requests

IMAGES: Final = Path(__file__).parent / "images"
REVENUE: Final[dict[str, Any]] = {
    "name": "daily-revenue",
    "labels": {"team": "core"},
    "steps": {
        "orders": {"sql": "SELECT id, id % 97 AS customer, id * 7 % 1000 / 10 AS amount FROM range(500000)"},
        "clean": {"sql": "SELECT * FROM orders WHERE amount > 1", "inputs": ["orders"], "exchange": "blocking"},
        "customers": {"sql": "SELECT id AS customer, IF(id % 3 = 0, 'EU', 'US') AS region FROM range(97)"},
        "joined": {
            "sql": "SELECT region, amount\nFROM clean JOIN customers USING (customer)",
            "inputs": ["clean", "customers"],
        },
        "revenue": {"sql": "SELECT region, sum(amount) AS revenue FROM joined GROUP BY region", "inputs": ["joined"]},
        "top": {"result": {}, "inputs": ["revenue"]},
    },
}
TYPO: Final[dict[str, Any]] = {
    "name": "sessions",
    "labels": {"team": "growth"},
    "steps": {"names": {"sql": "SELECT nme FROM range(5)"}, "top": {"result": {}, "inputs": ["names"]}},
}
CLICKS: Final[dict[str, Any]] = {
    "name": "clicks",
    "labels": {"team": "web"},
    "steps": {
        "clicks": {"source": {"format": "rate", "stream": True, "options": {"rowsPerSecond": "50"}}},
        "counted": {
            "sql": "SELECT window(timestamp, '10 seconds') AS w, count(*) AS n FROM clicks GROUP BY 1",
            "inputs": ["clicks"],
        },
        "out": {"sink": {"format": "noop"}, "inputs": ["counted"], "outputMode": "update", "uid": "out"},
    },
}
SHOOT: Final = """
    for (const [name, {hash, text, colorScheme, wait = 2500}] of Object.entries(argument.pages)) {
        await page.setViewportSize({width: 1040, height: 620});
        await page.emulateMedia({colorScheme});
        await page.goto(`${argument.origin}/${hash}`);
        await page.getByText("Live", {exact: true}).waitFor();
        await page.getByText(text).first().waitFor();
        await page.waitForTimeout(wait);
        if (wait > 5000) await page.getByText(text).first().scrollIntoViewIfNeeded();
        await page.screenshot({path: `${argument.directory}/dashboard-${name}.png`});
    }
"""


def main() -> None:
    """Run a cluster with jobs, and write the images."""
    build()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flintlock-screenshots-") as directory, running_chromium() as chromium:
        processes = Processes(Path(directory))
        processes.settings = ("security.authentication=none",)
        try:
            processes.start_jobmanager()
            processes.start_taskmanager(slots=2)
            processes.await_leader()
            processes.await_slots()
            chromium.run(SHOOT, _pages(processes.url), limit_s=120)
        finally:
            processes.stop()


def _pages(origin: str) -> dict[str, Any]:
    """Run the jobs that are shown; return the pages that show them."""
    revenue, typo = _submit(origin, REVENUE), _submit(origin, TYPO)
    for job in (revenue, typo):
        rest_requests.get(f"{origin}/jobs/{job}/execution-result?wait=100s", timeout=120)
    clicks = _submit(origin, CLICKS)
    for name in ("backfill", "backfill-2"):
        _submit(origin, {**CLICKS, "name": name, "labels": {}})
    shown = {
        "overview": {"hash": "#/", "text": "Latest failures", "colorScheme": "light"},
        "graph": {"hash": f"#/jobs/{revenue}/graph?step=joined", "text": "USING (customer)", "colorScheme": "light"},
        "streaming": {
            "hash": f"#/jobs/{clicks}/streaming",
            "text": "Duration of a batch",
            "colorScheme": "dark",
            "wait": 20000,
        },
    }
    return {"origin": origin, "directory": str(IMAGES), "pages": shown}


def _submit(origin: str, job: dict[str, Any]) -> str:
    return str(rest_requests.post(f"{origin}/jobs", json=job).json()["jobid"])


if __name__ == "__main__":
    main()
