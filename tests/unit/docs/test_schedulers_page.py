"""The page about schedulers: the DAG gives the operator what it takes, and the workflow is one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml
from tests.unit.docs.code_blocks import ROOT, code_blocks

PAGE = ROOT / "docs" / "schedulers.md"
#: Arguments of Airflow's own, for every operator.
AIRFLOWS = {"task_id", "retries"}


def operator_arguments() -> set[str]:
    """The operator's own arguments, by reading its source: Airflow is not installed here."""
    tree = ast.parse((ROOT / "src" / "flintlock" / "airflow" / "operators.py").read_text(encoding="utf-8"))
    (init,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return {argument.arg for argument in init.args.kwonlyargs}


def test_the_dag_and_the_table_name_arguments_that_the_operator_has() -> None:
    (dag,) = code_blocks(PAGE, "python")
    calls = [node for node in ast.walk(ast.parse(dag.text)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "FlintlockRunOperator"]
    given = {keyword.arg or "" for call in made for keyword in call.keywords}

    assert len(made) == 2
    assert given - AIRFLOWS <= operator_arguments()
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(operator_arguments()) if f"`{name}`" not in text] == []


def test_the_jobs_of_the_dag_are_examples() -> None:
    text = code_blocks(PAGE, "python")[0].text
    assert [
        name for name in ("revenue.yaml", "plain_script.py") if name not in text or not _example(name).exists()
    ] == []


def test_the_workflow_has_the_form_of_one_and_runs_the_command() -> None:
    (block,) = code_blocks(PAGE, "yaml")
    workflow: dict[Any, Any] = yaml.safe_load(block.text)

    assert set(workflow) == {"name", True, "jobs"}, "YAML 1.1 reads the key `on` as true, and GitHub expects it so"
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert "flintlock run" in workflow["jobs"]["revenue"]["steps"][-1]["run"]


def _example(name: str) -> Path:
    return ROOT / "examples" / name
