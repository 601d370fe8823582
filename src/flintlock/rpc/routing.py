"""Gateways that forward: each call goes to a target that is chosen, or waits for permission, when the call is made.

A component whose implementation changes while its callers keep one gateway (the Dispatcher and the ResourceManager of
the current term, the JobMaster of the job that a message names) is a route, not a class with a method for each verb.
A verb that is added to a gateway is therefore forwarded without an edit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from flintlock.model.errors import FlintlockError
from flintlock.rpc.description import Message, MethodShape, proxy

G = TypeVar("G")


def routed(gateway: type[G], resolve: Callable[[Message], G]) -> G:
    """Return a gateway that forwards each call to the target that `resolve` returns for its message.

    `resolve` runs when the call is awaited, in the same step as the target's own code up to its first `await`. What it
    raises (Unavailable, NotFound) is what the call raises. It is given None for a method without a message.
    """

    async def call(shape: MethodShape, message: Message) -> Message:
        return await _forward(resolve(message), shape, message)

    return proxy(gateway, "a route", call)


def gated(
    gateway: type[G],
    target: G,
    gate: Callable[[], Awaitable[None]],
    failed: Callable[[FlintlockError], Awaitable[None]] | None = None,
) -> G:
    """Return a gateway that forwards each call to `target` once `gate` has returned.

    Calls that wait at the gate are forwarded in no particular order. `failed` is called with the error of a call, and
    may raise another one in its place.
    """

    async def call(shape: MethodShape, message: Message) -> Message:
        await gate()
        try:
            return await _forward(target, shape, message)
        except FlintlockError as error:
            if failed is not None:
                await failed(error)
            raise

    return proxy(gateway, f"a gate before {target!r}", call)


def _forward(target: object, shape: MethodShape, message: Message) -> Awaitable[Message]:
    # Not a coroutine function: it returns the target's own coroutine, which saves a frame on each call.
    method: Callable[..., Awaitable[Message]] = getattr(target, shape.name)
    return method() if shape.request is None else method(message)
