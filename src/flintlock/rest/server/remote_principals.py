"""Credentials that only the leader can verify: a standby asks it who the caller is.

Tokens are in the leader's store. A standby has to know the caller before it forwards anything, and answers some
requests itself, from its own process or from a cache. So it sends the caller's credential to the leader, and remembers
the answer, a refusal too, for as long as any verified credential (`security.authentication`). It asks few questions at
a time: clients that send a wrong credential with each request wait for each other, and do not flood the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from flintlock.api.jobs import Errors
from flintlock.api.tokens import CallerInfo
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model.access.principals import Principal
from flintlock.model.access.tokens import AccessToken, AccessTokenQuery
from flintlock.model.errors import Unauthenticated, Unavailable
from flintlock.model.ids import AccessTokenId, Epoch
from flintlock.rest.server.upstream import RESPONSE_TIMEOUT_S, Upstream
from flintlock.security.tokens import PREFIX, TokenAuthenticator, check_form

PATH: Final = b"/whoami"
MAX_QUESTIONS: Final = 8
"""How many credentials a standby asks the leader for at the same time."""


class TokensOfLeader:
    """Verifies access tokens: the leader itself, a standby by asking it."""

    def __init__(
        self,
        dispatcher: DispatcherGateway,
        leading: Callable[[], Epoch | None],
        ask_leader: Callable[[str], Awaitable[Principal]],
    ) -> None:
        self._own: Final = TokenAuthenticator(self._find)
        self._dispatcher: Final = dispatcher
        self._leading: Final = leading
        self._ask_leader: Final = ask_leader

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return the token's bearer. Raises Unauthenticated, Unavailable."""
        if not credential.startswith(PREFIX):
            return None
        if self._leading() is not None:
            return await self._own.authenticate(credential, now_ms)
        check_form(credential)
        return await self._ask_leader(credential)

    async def check_session(self, session: str, token_id: AccessTokenId, now_ms: int) -> None:
        """Raise Unauthenticated if a session was begun with a token that is no longer valid. Raises Unavailable."""
        if self._leading() is None:
            await self._ask_leader(session)
            return
        token = await self._find(token_id)
        if token is None or token.is_expired(now_ms):
            raise Unauthenticated("the session was begun with a token that has been revoked or has expired")

    async def _find(self, token_id: AccessTokenId) -> AccessToken | None:
        return (await self._dispatcher.find_token(AccessTokenQuery(id=token_id))).token


class LeadersVerdict:
    """Asks the leader for the principal of a credential."""

    def __init__(self, upstream: Upstream, leaders: KnownLeader, own_url: str) -> None:
        self._upstream: Final = upstream
        self._leaders: Final = leaders
        self._own_url: Final = own_url
        self._asked: LeaderInfo | None = None  # whom the questions are for: one that is frozen holds up no other's
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    async def principal(self, credential: str) -> Principal:
        """Return who sends the credential. Raises Unauthenticated as the leader does, Unavailable without a leader."""
        leader = self._leaders.serving
        if leader is None or leader.rest == self._own_url:
            raise Unavailable("no JobManager leads at present, and only a leader knows the tokens; try again")
        if leader != self._asked:
            self._asked, self._questions = leader, asyncio.Semaphore(MAX_QUESTIONS)
        try:
            async with (
                asyncio.timeout(RESPONSE_TIMEOUT_S),
                self._questions,
                self._upstream.get(leader, PATH, credential) as response,
            ):
                body = b"".join([piece async for piece in response.pieces])
        except TimeoutError:
            raise Unavailable(f"the leader at {leader.rest} does not say who the caller is; try again") from None
        try:
            if response.status == 401:
                raise Unauthenticated(" ".join(msgspec.json.decode(body, type=Errors).errors))
            if response.status != 200:
                raise Unavailable(f"the leader at {leader.rest} does not say who the caller is ({response.status})")
            found = msgspec.json.decode(body, type=CallerInfo)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the leader at {leader.rest} does not say who the caller is: {error}") from None
        return Principal(name=found.name, role=found.role, kind=found.kind, expires_ms=found.expires, token=found.token)
