"""Cause ids: their form, and how they reach tasks and log lines."""

from __future__ import annotations

import asyncio

import pytest

from flintlock.model.causes import CauseId, add_cause, caused_by, current_cause, internal_cause, well_formed


@pytest.mark.parametrize("text", ["a", "6f1c-42", "0af7651916cd43dd8448eb211c80319c", "svc.orders:17", "x" * 64])
def test_well_formed(text: str) -> None:
    assert well_formed(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a b", "a\n", "ä", "x" * 65, "$(id)", "<a>", None, b"bytes"])
def test_anything_else_is_not(text: str | bytes | None) -> None:
    assert well_formed(text) is None


def test_internal_causes_are_well_formed_whatever_their_details_are() -> None:
    assert internal_cause("recovery", 7) == "recovery-7"
    assert internal_cause("taskmanager-lost", "host 1/ü") == "taskmanager-lost-host_1_"
    assert well_formed(internal_cause("timeout", "x" * 100)) is not None


def test_a_task_inherits_the_cause_of_what_started_it() -> None:
    async def main() -> list[CauseId | None]:
        async def read() -> CauseId | None:
            await asyncio.sleep(0)
            return current_cause()

        async with asyncio.TaskGroup() as tasks:
            with caused_by(CauseId("a")):
                first = tasks.create_task(read())
            with caused_by(CauseId("b")):
                second = tasks.create_task(read())
        return [first.result(), second.result(), current_cause()]

    assert asyncio.run(main()) == ["a", "b", None]


def test_log_lines_have_the_cause_unless_there_is_none() -> None:
    assert add_cause(None, "info", {"event": "x"}) == {"event": "x"}
    with caused_by(CauseId("a")):
        assert add_cause(None, "info", {"event": "x"}) == {"event": "x", "cause": "a"}
