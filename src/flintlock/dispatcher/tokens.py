"""The access tokens of a cluster, as the leader has them: in memory, and in the store before a change counts.

They are read when one is needed for the first time. After a write whose outcome is unknown they are read again, so that
a token which may be revoked is not accepted, and one which may exist is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from flintlock.dispatcher.writes import is_fatal_to_term
from flintlock.ha.protocols import ClusterRecordStore
from flintlock.model import log_events
from flintlock.model.access.tokens import MAX_TOKENS, AccessToken, AccessTokens
from flintlock.model.errors import Conflict, Corrupt, FlintlockError, NotFound
from flintlock.model.ids import AccessTokenId

log = structlog.get_logger()


class TokenRegistry:
    """The tokens of one term. Expired ones are removed with the next change."""

    def __init__(self, store: ClusterRecordStore[AccessTokens], clock_ms: Callable[[], int]) -> None:
        self._store: Final = store
        self._clock_ms: Final = clock_ms
        self._changing: Final = asyncio.Lock()
        self._known: AccessTokens | None = None  # None: not read yet, or not known to be what is stored

    async def all(self) -> AccessTokens:
        """Return the tokens that have not expired. Raises Unavailable."""
        known = self._known or await self._read()
        now_ms = self._clock_ms()
        return structs.replace(known, tokens=tuple(token for token in known.tokens if not token.is_expired(now_ms)))

    async def get(self, token_id: AccessTokenId) -> AccessToken | None:
        """Return a token, also one that has expired. Raises Unavailable."""
        return (self._known or await self._read()).get(token_id)

    async def add(self, token: AccessToken, done: asyncio.Future[None]) -> None:
        """Add a token; the outcome is set on `done`. Adding it again is acknowledged again."""

        def added(tokens: tuple[AccessToken, ...]) -> tuple[AccessToken, ...]:
            if len(tokens) >= MAX_TOKENS:
                raise Conflict(f"the cluster has {MAX_TOKENS} tokens already: revoke one that is not needed")
            return (*(each for each in tokens if each.id != token.id), token)

        await self._change(added, done)

    async def revoke(self, token_id: AccessTokenId, done: asyncio.Future[None]) -> None:
        """Remove a token; the outcome is set on `done`."""

        def removed(tokens: tuple[AccessToken, ...]) -> tuple[AccessToken, ...]:
            left = tuple(each for each in tokens if each.id != token_id)
            if len(left) == len(tokens):
                raise NotFound(f"token {token_id} was not found")
            return left

        await self._change(removed, done)

    async def _change(
        self, change: Callable[[tuple[AccessToken, ...]], tuple[AccessToken, ...]], done: asyncio.Future[None]
    ) -> None:
        async with self._changing:
            try:
                known = await self.all()
                changed = AccessTokens(tokens=change(known.tokens))
                self._known = None
                await self._store.record(changed)
                self._known = changed
            except FlintlockError as error:
                if is_fatal_to_term(error):
                    raise
                done.set_exception(error)
            else:
                done.set_result(None)

    async def _read(self) -> AccessTokens:
        try:
            self._known = await self._store.read() or AccessTokens()
        except Corrupt as error:
            log.error(log_events.TOKENS_UNREADABLE, reason=error.public)
            self._known = AccessTokens()
        return self._known
