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


class NamedMessage(Struct, frozen=True):
    """A message that names its target."""

    target: str


class Echo(Protocol):
    """Two methods: one with a message, one without."""

    async def echo(self, message: NamedMessage) -> NamedMessage: ...

    async def count(self) -> NamedMessage: ...


class Target:
    """Answers with its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    async def echo(self, message: NamedMessage) -> NamedMessage:
        self.calls += 1
        return NamedMessage(f"{self.name} got {message.target}")

    async def count(self) -> NamedMessage:
        return NamedMessage(f"{self.name} got {self.calls}")


def _by_name(targets: dict[str, Target]) -> Echo:
    def resolve(message: Message) -> Echo:
        name = message.target if isinstance(message, NamedMessage) else "a"
        if name not in targets:
            raise NotFound(f"there is no {name}")
        return targets[name]

    return routed(Echo, resolve)


@virtual_time
async def test_route_forwards_to_the_target_of_each_message() -> None:
    echo = _by_name({"a": Target("a"), "b": Target("b")})

    assert await echo.echo(NamedMessage("a")) == NamedMessage("a got a")
    assert await echo.echo(message=NamedMessage("b")) == NamedMessage("b got b")
    assert await echo.count() == NamedMessage("a got 1")


@virtual_time
async def test_route_resolves_when_the_call_is_awaited() -> None:
    targets: dict[str, Target] = {}
    echo = _by_name(targets)
    call = echo.echo(NamedMessage("a"))
    targets["a"] = Target("late")

    assert await call == NamedMessage("late got a")
    with pytest.raises(NotFound, match="there is no b"):
        await echo.echo(NamedMessage("b"))


@virtual_time
async def test_gate_delays_calls_until_it_opens() -> None:
    opened, target = asyncio.Event(), Target("a")

    async def gate() -> None:
        await opened.wait()

    echo = gated(Echo, target, gate)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(echo.echo(NamedMessage("a")))
        await asyncio.sleep(60)
        assert target.calls == 0

        opened.set()

    assert waiting.result() == NamedMessage("a got a")
    assert await echo.count() == NamedMessage("a got 1")
