"""Stacks of threads and tasks: complete, readable, and of bounded size."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flintlock.host.processes import thread_dump
from flintlock.host.processes.thread_dump import task_stacks, thread_stacks


def test_every_thread_is_dumped_the_main_one_first() -> None:
    waits, go_on = threading.Event(), threading.Event()

    def stand_here() -> None:
        waits.set()
        go_on.wait()

    thread = threading.Thread(target=stand_here, name="other")
    thread.start()
    try:
        waits.wait()
        stacks = thread_stacks()
    finally:
        go_on.set()
        thread.join()

    assert stacks[0].name == "MainThread"
    other = next(stack for stack in stacks if stack.name == "other")
    assert other.text.startswith(f'"other" id={thread.ident}\n')
    assert "stand_here" in other.text


def test_every_task_of_the_loop_is_dumped() -> None:
    async def wait_here() -> None:
        await asyncio.get_running_loop().create_future()

    async def dump() -> dict[str, str]:
        task = asyncio.get_running_loop().create_task(wait_here(), name="waiting")
        await asyncio.sleep(0)
        stacks = {stack.name: stack.text for stack in task_stacks()}
        task.cancel()
        return stacks

    assert "wait_here" in asyncio.run(dump())["task waiting"]


def test_a_stack_is_cut_at_its_outer_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_dump, "_LONGEST", 100)

    text = thread_stacks()[0].text

    assert " characters cut]\n" in text
    assert len(text) < 250


def test_a_dump_has_a_limited_number_of_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_dump, "MAX_STACKS", 1)

    assert [stack.name for stack in thread_stacks()] == ["MainThread"]
