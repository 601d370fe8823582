"""Flintlock in a real Jupyter kernel: a notebook submits a job, sees its progress in place, and its rows."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.jupyter_kernel import run_cells
from tests.cluster.processes import Processes

JOB = """
import flintlock as fl

job = fl.Job("in_a_notebook", parallelism=1)

@job.step
def numbers(spark):
    import time
    from pathlib import Path

    print("printed by a step")
    while not Path({shown!r}).exists():
        time.sleep(0.05)
    return spark.range(3)

job.result("rows", numbers)
client = fl.connect({url!r})
handle = client.submit(job)
"""

#: The step ends once the job has been shown as running.
SEEN = """
from pathlib import Path

ask, asked = handle.attempts, []

def attempts():
    if sum(job.regions[0].latest is not None and job.regions[0].latest.state == "RUNNING" for job in asked) > 1:
        Path({shown!r}).touch()
    asked.append(ask())
    return asked[-1]

handle.attempts = attempts
"""


def test_a_notebook_submits_a_job_and_sees_progress_in_place_and_rows(standing: Processes, tmp_path: Path) -> None:
    mark = str(tmp_path / "shown")
    cells = [
        JOB.format(url=standing.url, shown=mark),
        SEEN.format(shown=mark),
        "_ = handle.wait(timeout=90)",
        "handle",
        "handle.result()",
        "client.close()",
    ]
    submitted, patched, waited, shown, rows, closed = run_cells(cells, tmp_path)

    assert [*submitted, *patched, *closed] == []
    first, *updates = [item for item in waited if item["type"] in {"display_data", "update_display_data"}]
    assert first["type"] == "display_data"
    assert {item["type"] for item in updates} == {"update_display_data"}, "one display, updated in place"
    assert {item["transient"]["display_id"] for item in updates} == {first["transient"]["display_id"]}
    assert any("<td>RUNNING</td>" in item["data"]["text/html"] for item in (first, *updates[:-1]))
    assert "FINISHED" in updates[-1]["data"]["text/html"]
    assert updates[-1]["data"]["text/plain"].startswith("in_a_notebook FINISHED, 1 of 1 region finished")
    assert "printed by a step" in "".join(item["text"] for item in waited if item["type"] == "stream")
    assert "<b>in_a_notebook</b>" in shown[0]["data"]["text/html"]
    assert "<td>2</td>" in rows[0]["data"]["text/html"]
