"""The page about the Python API: its examples are Python, and what it names exists with these arguments."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import flintlock
import flintlock.testing
from flintlock.client.connection.client import Client
from flintlock.client.connection.handle import JobHandle
from flintlock.client.connection.results import ResultHandle
from flintlock.testing.local import LocalCluster

PAGE = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OWNERS = {
    "fl": flintlock,
    "client": Client,
    "handle": JobHandle,
    "result": ResultHandle,
    "flintlock_local": LocalCluster,
}


def test_every_example_is_python_and_calls_what_exists() -> None:
    assert len(EXAMPLES) >= 5
    for example in EXAMPLES:
        for node in ast.walk(ast.parse(example)):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            owner = OWNERS.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


def test_every_call_of_an_example_has_arguments_that_exist() -> None:
    calls = [node for example in EXAMPLES for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call)]
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            continue
        owner = OWNERS.get(call.func.value.id)
        if owner is not None:
            known = set(inspect.signature(getattr(owner, call.func.attr)).parameters)
            assert {word.arg for word in call.keywords} <= known, ast.unparse(call)


@pytest.mark.parametrize(
    ("owner", "name", "arguments"), re.findall(r"`(fl|client|handle|result)\.(\w+)(?:\(([^)]*)\))?", PAGE)
)
def test_every_call_of_the_table_exists_with_its_arguments(owner: str, name: str, arguments: str) -> None:
    found = inspect.getattr_static(OWNERS[owner], name, None) or getattr(OWNERS[owner], name)
    if arguments and callable(found):
        known = set(inspect.signature(found).parameters)
        assert set(re.findall(r"(\w+)=…", arguments)) <= known


def test_the_page_names_what_users_need_for_tests() -> None:
    assert all(name in PAGE for name in ("run_local", "flintlock_local", "flintlock.testing.pytest_plugin"))
    assert callable(flintlock.testing.run_local)
