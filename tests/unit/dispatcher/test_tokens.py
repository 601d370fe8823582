"""The leader's access tokens: what counts is what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs
from tests.contract.records import access_tokens

from flintlock.dispatcher.tokens import TokenRegistry
from flintlock.model.access.tokens import MAX_TOKENS, AccessToken, AccessTokens
from flintlock.model.errors import Conflict, Corrupt, Fenced, NotFound, Unavailable
from flintlock.model.ids import AccessTokenId

FIRST, SECOND = access_tokens().tokens


class Store:
    """A store whose next write may fail, before or after it has taken effect."""

    def __init__(self, stored: AccessTokens | None = None) -> None:
        self.stored = stored
        self.error: Exception | None = None
        self.takes_effect = True

    async def record(self, value: AccessTokens) -> None:
        error, self.error = self.error, None
        if error is None or self.takes_effect:
            self.stored = value
        if error is not None:
            raise error

    async def read(self) -> AccessTokens | None:
        if self.error is not None:
            raise self.error
        return self.stored


def change(operation: Callable[[asyncio.Future[None]], Awaitable[None]]) -> Awaitable[None]:
    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await operation(done)
        await done

    return main()


def test_a_token_is_known_once_it_is_stored_and_to_the_next_leader() -> None:
    async def main() -> None:
        store = Store()
        registry = TokenRegistry(store, lambda: 2_000)
        assert await registry.get(FIRST.id) is None
        await change(lambda done: registry.add(FIRST, done))
        await change(lambda done: registry.add(FIRST, done))
        assert await registry.get(FIRST.id) == FIRST
        assert await TokenRegistry(store, lambda: 2_000).get(FIRST.id) == FIRST
        await change(lambda done: registry.revoke(FIRST.id, done))
        assert await TokenRegistry(store, lambda: 2_000).get(FIRST.id) is None
        with pytest.raises(NotFound):
            await change(lambda done: registry.revoke(FIRST.id, done))

    asyncio.run(main())


@pytest.mark.parametrize("takes_effect", [True, False])
def test_after_an_unknown_outcome_the_store_is_asked_before_a_token_is_accepted(takes_effect: bool) -> None:
    async def main() -> None:
        store = Store(access_tokens())
        registry = TokenRegistry(store, lambda: 2_000)
        assert await registry.get(FIRST.id) == FIRST
        store.error, store.takes_effect = Unavailable("no answer"), takes_effect
        with pytest.raises(Unavailable):
            await change(lambda done: registry.revoke(FIRST.id, done))
        assert (await registry.get(FIRST.id) is None) == takes_effect

    asyncio.run(main())


def test_a_former_leader_is_fenced_and_its_term_ends() -> None:
    async def main() -> None:
        store = Store(access_tokens())
        registry = TokenRegistry(store, lambda: 2_000)
        await registry.all()
        store.error = Fenced("another one leads")
        with pytest.raises(Fenced):
            await registry.revoke(FIRST.id, asyncio.get_running_loop().create_future())

    asyncio.run(main())


def test_expired_tokens_are_not_listed_and_go_with_the_next_change() -> None:
    async def main() -> None:
        store = Store(access_tokens())
        registry = TokenRegistry(store, lambda: FIRST.expires_ms or 0)
        assert (await registry.all()).tokens == (SECOND,)
        assert await registry.get(FIRST.id) == FIRST  # the refusal says that it has expired
        third = structs.replace(SECOND, id=AccessTokenId("third"))
        await change(lambda done: registry.add(third, done))
        assert store.stored == AccessTokens(tokens=(SECOND, third))

    asyncio.run(main())


def test_there_is_a_bound_and_what_cannot_be_read_accepts_nobody() -> None:
    async def main() -> None:
        many = tuple(structs.replace(SECOND, id=AccessTokenId(str(number))) for number in range(MAX_TOKENS))
        full = TokenRegistry(Store(AccessTokens(tokens=many)), lambda: 2_000)
        with pytest.raises(Conflict, match="revoke one"):
            await change(lambda done: full.add(SECOND, done))
        damaged = Store(access_tokens())
        damaged.error = Corrupt("damaged")
        found: AccessToken | None = await TokenRegistry(damaged, lambda: 2_000).get(SECOND.id)
        assert found is None

    asyncio.run(main())
