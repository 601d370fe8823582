"""Gateways that forward: by message, and behind a gate."""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest
from msgspec import Struct

from flintlock.model.errors import NotFound
from flintlock.rpc.description import Message
from flintlock.rpc.routing import gated, routed
from flintlock.testing.virtual_time import virtual_time


class Word(Struct, frozen=True):
    """A message that names its target."""

    target: str


class Echo(Protocol):
    """Two methods: one with a message, one without."""

    async def echo(self, message: Word) -> Word: ...

    async def count(self) -> Word: ...


class Target:
    """Answers with its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    async def echo(self, message: Word) -> Word:
        self.calls += 1
        return Word(f"{self.name} got {message.target}")

    async def count(self) -> Word:
        return Word(f"{self.name} got {self.calls}")


def _by_name(targets: dict[str, Target]) -> Echo:
    def resolve(message: Message) -> Echo:
        name = message.target if isinstance(message, Word) else "a"
        if name not in targets:
            raise NotFound(f"there is no {name}")
        return targets[name]

    return routed(Echo, resolve)


@virtual_time
async def test_route_forwards_to_the_target_of_each_message() -> None:
    echo = _by_name({"a": Target("a"), "b": Target("b")})

    assert await echo.echo(Word("a")) == Word("a got a")
    assert await echo.echo(message=Word("b")) == Word("b got b")
    assert await echo.count() == Word("a got 1")


@virtual_time
async def test_route_resolves_when_the_call_is_awaited() -> None:
    targets: dict[str, Target] = {}
    echo = _by_name(targets)
    call = echo.echo(Word("a"))
    targets["a"] = Target("late")

    assert await call == Word("late got a")
    with pytest.raises(NotFound, match="there is no b"):
        await echo.echo(Word("b"))


@virtual_time
async def test_gate_delays_calls_until_it_opens() -> None:
    opened, target = asyncio.Event(), Target("a")

    async def gate() -> None:
        await opened.wait()

    echo = gated(Echo, target, gate)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(echo.echo(Word("a")))
        await asyncio.sleep(60)
        assert target.calls == 0

        opened.set()

    assert waiting.result() == Word("a got a")
    assert await echo.count() == Word("a got 1")
