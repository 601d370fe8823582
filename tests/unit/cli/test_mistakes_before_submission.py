"""Typical mistakes that are found before anything is submitted, and what their author reads.

The exact text is in a file beside this one; `UPDATE_SNAPSHOTS=1` writes it again: review the difference. Mistakes that
only Spark can find are in `tests/cluster/test_mistakes.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flintlock.cli.main import run_app

SNAPSHOTS = Path(__file__).parent / "mistakes"

GOOD = """\
name: daily
params: {day: "2024-01-01", least: 5}
steps:
  orders: {source: {format: csv, path: in/orders.csv}}
  picked: {sql: "SELECT * FROM orders WHERE day = :day", inputs: [orders]}
  out: {sink: {format: parquet, path: out/picked}, inputs: [picked]}
"""
GRAPH = """\
import threading

import flintlock as fl

job = fl.Job("daily")
numbers = job.sql("numbers", "SELECT id FROM range(5)")
"""

#: What the author wrote into job.yaml.
DOCUMENTS = {
    "yaml-that-is-broken": "steps:\n  a: {sql: 'SELECT 1'\n  b: 2\n",
    "yaml-with-tabs": "steps:\n\ta: {sql: SELECT 1}\n",
    "yaml-with-a-duplicate-key": "steps:\n  a: {sql: SELECT 1}\n  a: {sql: SELECT 2}\n",
    "yaml-that-is-empty": "",
    "yaml-that-is-a-list": "- a\n- b\n",
    "unknown-keys-and-wrong-types": "nmae: x\nparallelism: two\nsteps:\n  a: {sqll: SELECT 1}\n",
    "a-version-of-the-future": f"version: 2\n{GOOD}",
    "a-cycle": "steps:\n  a: {sql: SELECT * FROM b, inputs: [b]}\n  b: {sql: SELECT * FROM a, inputs: [a]}\n"
    "  r: {result: {}, inputs: [a]}\n",
    "no-output": "steps:\n  a: {sql: SELECT 1 AS x}\n",
    "four-problems-at-once": "parallelism: 0\nsteps:\n  a: {sql: SELECT 1 AS x, inputs: [zz]}\n"
    "  b: {sink: {format: parquet, path: out, mode: overwritten}, inputs: [a]}\n"
    "  c: {result: {limit: -1}, inputs: [aa]}\n",
    "mistyped-parameter-of-a-query": GOOD.replace(":day", ":dya"),
    "memory-on-one-step-only": GOOD.replace("inputs: [picked]}", "inputs: [picked], memory: 1g}"),
    "step-names-with-other-letters": GOOD.replace("picked", "größe"),
    "two-sinks-to-one-path": GOOD + "  again: {sink: {format: parquet, path: out/picked}, inputs: [picked]}\n",
}

#: What the author wrote after the head above into job.py.
GRAPHS = {
    "closure-that-cannot-be-pickled": """
lock = threading.Lock()

@job.step(inputs=[numbers])
def guarded(numbers):
    with lock:
        return numbers

job.result("rows", guarded)
""",
    "use-of-the-job-in-a-step": """
@job.step(inputs=[numbers])
def named(numbers):
    return numbers.withColumn("name", job.name)

job.result("rows", named)
""",
    "wrong-number-of-arguments": """
@job.step(inputs=[numbers])
def joined(numbers, orders):
    return numbers.join(orders)

job.result("rows", joined)
""",
    "helper-module-that-is-not-sent": """
import sys
sys.path.insert(0, "lib")
import helper_of_mistakes

@job.step(inputs=[numbers])
def helped(numbers):
    return helper_of_mistakes.big(numbers)

job.result("rows", helped)
""",
    "exit-while-the-job-is-read": "raise SystemExit(3)\n",
}

#: What the author typed after `flintlock`, in a directory with a good job.yaml and job.py.
COMMANDS = {
    "file-that-is-not-there": "info jbo.yaml",
    "folder-as-a-target": "info lib",
    "notebook-as-a-target": "info explore.ipynb",
    "name-that-is-not-in-the-file": "info job.py:jbo",
    "graph-run-as-a-program": "run --local runs.py",
    "graph-without-its-name": "run --local job.py",
    "several-statements-into-one-file": "sql --local SELECT;SELECT -o rows.csv",
    "unknown-option": "run --verbos job.yaml",
    "option-of-spark-submit": "run --master yarn --deploy-mode client job.yaml",
    "option-of-spark-submit-after-the-target": "run job.yaml --num-executors 4",
    "setting-of-spark-as-with-spark-submit": "run --conf spark.sql.shuffle.partitions=8 job.yaml",
    "application-of-the-jvm": "info app.jar",
    "unknown-parameter": "info --param dya=2024-01-02 job.yaml",
    "parameter-of-a-wrong-type": "info --param least=many job.yaml",
    "arguments-for-a-graph": "info job.yaml 2024-01-02",
    "option-of-the-cluster-for-a-job": "run -m http://127.0.0.1:1 -D taskmanager.engine.memory=2g job.yaml",
    "nothing-listens-there": "list -m http://127.0.0.1:1",
    "detached-without-a-cluster": "run -d job.yaml",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FLINTLOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "job.yaml").write_text(GOOD)
    (tmp_path / "job.py").write_text(GRAPH + 'job.result("rows", numbers)\n')
    (tmp_path / "runs.py").write_text("import flintlock as fl\n\nfl.run(fl.Job('x'))\n")
    (tmp_path / "explore.ipynb").write_text("{}")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper_of_mistakes.py").write_text("def big(frame): return frame\n")
    return tmp_path


def check_snapshot(name: str, command: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_app(command)
    text = capsys.readouterr().err.replace(str(here), "HERE")
    output = f"$ flintlock {' '.join(command)}\n{text}exit code {code}\n"
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(output, encoding="utf-8")
    assert code != 0
    assert output == snapshot.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_mistake_in_a_document_is_reported_as(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.yaml").write_text(DOCUMENTS[name], encoding="utf-8")
    check_snapshot(name, ["info", "job.yaml"], here, capsys)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_mistake_in_a_job_file_is_reported_as(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.py").write_text(GRAPH + GRAPHS[name])
    check_snapshot(name, ["info", "job.py:job"], here, capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_in_a_command_is_reported_as(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_snapshot(name, COMMANDS[name].split(), here, capsys)
