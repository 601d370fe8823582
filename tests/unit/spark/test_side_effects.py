"""What keeps a program from being begun again."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flintlock.spark.region.programs.side_effects import SideEffects


@pytest.mark.parametrize(
    ("event", "args", "first"),
    [
        ("open", ("/data/out.csv", "w", 0), "written to '/data/out.csv'"),
        ("open", ("/data/out.csv", None, os.O_WRONLY | os.O_CREAT), "written to '/data/out.csv'"),
        ("open", ("/data/in.csv", "r", os.O_CLOEXEC), None),
        ("open", ("/data/in.csv", None, os.O_RDONLY | os.O_CLOEXEC), None),
        ("open", ("/task/scratch/tmp.csv", "w", 0), None),
        ("open", ("/task/scratch-of-another/tmp.csv", "w", 0), "written to '/task/scratch-of-another/tmp.csv'"),
        ("open", ("/site/__pycache__/m.pyc.123", None, os.O_WRONLY | os.O_CREAT), None),
        ("open", (3, "w", 0), None),
        ("subprocess.Popen", ("curl", None, None, None), "called subprocess.Popen"),
        ("os.remove", ("/data/out.csv", -1), "called os.remove"),
        ("socket.connect", (None, ("db", 5432)), "called socket.connect"),
        ("import", ("json", None, None, None, None), None),
    ],
)
def test_what_changes_something_outside_of_the_task_is_noticed(
    event: str, args: tuple[Any, ...], first: str | None
) -> None:
    effects = SideEffects("/task/scratch")
    effects.observe(event, args)
    assert effects.first == first
