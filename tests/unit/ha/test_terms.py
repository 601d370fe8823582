from __future__ import annotations

import asyncio

import pytest

from flintlock.ha.terms import Offer, RevocableScope, unless_cancelled
from flintlock.model.errors import Fenced, Unavailable
from flintlock.model.ids import Epoch, FencingToken

pytestmark = pytest.mark.anyio

TOKEN = FencingToken(Epoch(1), "session")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_revoking_cancels_the_body_and_ends_quietly() -> None:
    async with RevocableScope() as scope:
        scope.revoke()
        scope.revoke()
        await asyncio.Event().wait()

    await asyncio.sleep(0)  # nothing is left to be cancelled


async def test_a_body_that_revokes_itself_and_leaves_is_not_cancelled_later() -> None:
    async with RevocableScope() as scope:
        scope.revoke()

    for _ in range(3):
        await asyncio.sleep(0)


async def test_revoking_after_the_end_does_nothing() -> None:
    async with RevocableScope() as scope:
        pass

    scope.revoke()
    await asyncio.sleep(0)


async def test_what_the_body_raises_while_it_is_cancelled_passes_through() -> None:
    async def body() -> None:
        async with RevocableScope() as scope:
            scope.revoke()
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError

    with pytest.raises(LookupError):
        await body()
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_wins_over_a_revocation() -> None:
    reached = asyncio.Event()

    async def body() -> None:
        async with RevocableScope() as scope:
            scope.revoke()
            reached.set()
            await asyncio.Event().wait()
        pytest.fail("the cancellation from outside was swallowed")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body(), name="body")
        await reached.wait()
        task.cancel()

    assert task.cancelled()


def test_an_offer_is_given_up_once() -> None:
    given_up: list[str] = []
    taken, untouched = (
        Offer(TOKEN, lambda: given_up.append("taken")),
        Offer(TOKEN, lambda: given_up.append("untouched")),
    )

    with taken as token:
        taken.withdraw()
        assert token == TOKEN
        assert given_up == []
    taken.withdraw()
    untouched.withdraw()
    untouched.withdraw()

    assert given_up == ["taken", "untouched"]


def test_an_offer_that_was_withdrawn_or_used_cannot_be_taken() -> None:
    offer = Offer(TOKEN, lambda: None)
    offer.withdraw()

    with pytest.raises(Fenced, match="epoch 1"), offer:
        pass


async def test_a_cancellation_that_comes_with_an_error_of_a_request_is_not_lost() -> None:
    """A task that tries again after errors ends when its term does."""
    loop = asyncio.get_running_loop()
    failing, pending = loop.create_future(), loop.create_future()

    async def body() -> None:
        with pytest.raises(asyncio.CancelledError):
            await unless_cancelled(asyncio.gather(failing, pending))

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body(), name="body")
        await asyncio.sleep(0)
        failing.set_exception(Unavailable("the connection is lost"))
        task.cancel()


async def test_an_error_of_a_request_is_raised_as_it_is() -> None:
    async def fail() -> None:
        raise Unavailable("the connection is lost")

    with pytest.raises(Unavailable):
        await unless_cancelled(asyncio.gather(fail(), asyncio.sleep(0)))
