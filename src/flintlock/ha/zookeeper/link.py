"""The connection to ZooKeeper, for the event loop.

kazoo works in threads of its own. Requests are handed over without waiting and their answers come back through
`call_soon_threadsafe`, so many are under way at once, in order. The loop never blocks.

What kazoo leaves open is settled here and in `kazoo_client`:

- While a connection is lost kazoo queues requests and sends them when it is back. Here they are refused: a write that
  its caller has given up must not take place later. One that is sent in the instant of the loss is answered
  Unavailable, and whether it takes place is unknown, as for any write whose answer was lost.
- kazoo forgets, on the loss of a session, requests that came in at that time. All that wait are failed here instead.
- kazoo does not publish the session timeout that the ensemble grants, which may be shorter than the requested one. It
  is taken from inside kazoo; a test checks that against a real server.
- An answer to a read proves nothing about the session: a server that is cut off from the others answers reads from its
  own memory until it notices. Only what a quorum has agreed on is reported as proof (`on_quorum_answer`).
- kazoo waits a whole session timeout for a host that drops packets. Here each of n servers gets an n-th of it.

Rejected: kazoo's recipes for locks and elections. They block a thread each, cannot be cancelled by asyncio, and have
no transaction that ties leadership to the epoch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, cast

import structlog
from kazoo.exceptions import KazooException

from flintlock.ha.zookeeper.kazoo_client import is_answer, make_client, not_answered, stop_client, translated
from flintlock.ha.zookeeper.operations import (
    Check,
    Create,
    Delete,
    LinkState,
    Node,
    Op,
    Refusal,
    RefusalReason,
    SetData,
)
from flintlock.ha.zookeeper.security import UNPROTECTED, ZooKeeperSecurity
from flintlock.model import log_events
from flintlock.model.errors import Unavailable

log = structlog.get_logger(__name__)

Listener: TypeAlias = Callable[[LinkState, int], None]
"""Called on the loop with each new state and the session's number."""


class ZooKeeperLink:
    """One session after another with an ensemble, from `open` to `close`. Belongs to the loop that opened it."""

    def __init__(
        self,
        quorum: str,
        *,
        session_timeout_s: float,
        connection_timeout_s: float,
        clock_s: Callable[[], float],
        security: ZooKeeperSecurity = UNPROTECTED,
    ) -> None:
        self._security: Final = security
        self._quorum: Final = quorum
        self._requested_timeout_s: Final = session_timeout_s
        self._connection_timeout_s: Final = connection_timeout_s
        self._clock_s: Final = clock_s
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: Final[set[asyncio.Future[Any]]] = set()  # from a request to its answer
        self._answers: Final[deque[Callable[[], None]]] = deque()  # put in by kazoo's thread, taken out by the loop
        self._woken = False  # the loop is about to empty it
        self._changed: asyncio.Event = asyncio.Event()  # set, and replaced, with each new state
        self.listeners: Final[set[Listener]] = set()
        # Called with the time of sending, for each answer that a quorum of the ensemble has agreed on.
        self.on_quorum_answer: Callable[[float], None] | None = None
        self.state = LinkState.LOST  # as the loop knows it
        self.session = 0  # the latest session's number
        self.timeout_s = session_timeout_s  # as the ensemble granted it, at the latest connection

    async def open(self) -> None:
        """Connect. Raises Unavailable if no server answers in time, Refused for a quorum that cannot be parsed."""
        self._loop = asyncio.get_running_loop()
        client = self._client = make_client(self._quorum, self._requested_timeout_s, self._set_timeout, self._security)
        client.add_listener(self._on_state_in_thread)
        await asyncio.to_thread(client.start_async)
        try:
            async with asyncio.timeout(self._connection_timeout_s):
                await self.connected()
        except TimeoutError:
            await self.close()
            raise not_answered(self._quorum, self._connection_timeout_s) from None

    async def close(self) -> None:
        """End the session: its ephemeral znodes go at once, if the ensemble can be reached. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        self._fail_all("the connection to ZooKeeper is closed")
        await asyncio.shield(asyncio.to_thread(stop_client, client))

    async def connected(self) -> None:
        """Return when there is a connection."""
        while self.state is not LinkState.CONNECTED:
            await self._changed.wait()

    async def get(self, path: str) -> Node | None:
        """Return a znode, None if it does not exist. Raises Unavailable."""
        found = await self._send_request(lambda: self._client.get_async(path), absent=None)
        return None if found is None else Node(found[0], found[1].version)

    async def children(self, path: str) -> list[str]:
        """Return the names below a znode, in no order; none if it does not exist. Raises Unavailable."""
        return await self._send_request(lambda: self._client.get_children_async(path), absent=[])

    async def exists(self, path: str, changed: asyncio.Event | None = None) -> bool:
        """Return whether a znode exists. `changed` is set when that may have changed. Raises Unavailable."""
        watch = None if changed is None else self._watch(changed)
        return await self._send_request(lambda: self._client.exists_async(path, watch=watch), absent=None) is not None

    async def get_watched(self, path: str, changed: asyncio.Event) -> Node | None:
        """Return a znode; `changed` is set when it may have changed, or been created. Raises Unavailable."""
        if not await self.exists(path, changed):
            return None
        return await self.get(path)

    async def create_sequential(self, path: str, data: bytes) -> str:
        """Add an ephemeral znode with a number after `path` that is higher than those before; return its path.

        If its caller is cancelled it is removed again. After Unavailable it may exist, or be created later.
        """

        def remove(made: str) -> None:
            self.transact_soon([Delete(made)])

        return await self._send_request(
            lambda: self._client.create_async(path, data, ephemeral=True, sequence=True), unclaimed=remove, write=True
        )

    async def ensure(self, path: str) -> None:
        """Create a znode, and those above it, if they do not exist. Raises Unavailable."""
        await self._send_request(lambda: self._client.ensure_path_async(path))

    async def close_znodes(self, path: str) -> None:
        """Close a tree of znodes to others, if that is configured and was not when they were made. Raises Unavailable.

        The top comes last: if this is cut short, it is done again.
        """
        if not self._security.closes_znodes or not await self._is_open(path):
            return
        acl = self._client.default_acl
        tree = [path]
        for parent in tree:
            tree += [f"{parent}/{name}" for name in await self.children(parent)]
        for each in reversed(tree):
            await self._send_request(partial(self._client.set_acls_async, each, acl), absent=None)

    async def _is_open(self, path: str) -> bool:
        found = await self._send_request(lambda: self._client.get_acls_async(path))
        return any(acl.id.scheme == "world" for acl in found[0])

    async def transact(self, ops: Sequence[Op]) -> Refusal | None:
        """Do all of it or nothing; return what was refused, if nothing was done.

        Raises Unavailable, after which it is unknown whether the whole of it took place, or will.
        """
        outcomes = await self._send_request(lambda: self._transaction(ops).commit_async(), write=True)
        for op, outcome in zip(ops, outcomes, strict=False):
            code = getattr(outcome, "code", 0)
            if isinstance(outcome, Exception) and code not in (0, -2):  # rolled back, or not reached: not the cause
                try:
                    return Refusal(op, RefusalReason(code))
                except ValueError:
                    raise Unavailable(f"ZooKeeper refused a write: {outcome!r}") from outcome
        return None

    def transact_soon(self, ops: Sequence[Op]) -> None:
        """Send a transaction without waiting for its outcome. Does nothing while there is no connection."""
        if self._client is not None and self._client.connected:
            self._transaction(ops).commit_async()

    def create_in_thread(self, path: str, limit_s: float) -> None:
        """Create a znode, unless it exists, from a thread that is not the loop's. Raises OSError, also after `limit_s`.

        After that it is unknown whether it exists, or will.
        """
        self._wait_in_thread(lambda client: client.create_async(path), limit_s, RefusalReason.NODE_EXISTS, None)

    def delete_in_thread(self, path: str, limit_s: float) -> None:
        """Remove a znode, if it exists, from such a thread. Raises OSError."""
        self._wait_in_thread(lambda client: client.delete_async(path), limit_s, RefusalReason.NO_NODE, None)

    def children_in_thread(self, path: str, limit_s: float) -> list[str]:
        """Return the names below a znode, none if it does not exist, in such a thread. Raises OSError."""
        return self._wait_in_thread(
            lambda client: client.get_children_async(path), limit_s, RefusalReason.NO_NODE, list[str]()
        )

    def _wait_in_thread(self, begin: Callable[[Any], Any], limit_s: float, harmless: RefusalReason, else_: Any) -> Any:
        client = self._client
        if client is None or not client.connected:
            raise OSError("ZooKeeper is out of reach")
        try:
            return begin(client).get(timeout=limit_s)
        except client.handler.timeout_exception:
            raise TimeoutError(f"ZooKeeper has not answered for {limit_s:g} s") from None
        except KazooException as error:
            if getattr(error, "code", 0) == harmless.value:
                return else_
            raise OSError(translated(error).public) from error

    def _transaction(self, ops: Sequence[Op]) -> Any:
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction

    async def _send_request(
        self,
        begin: Callable[[], Any],
        unclaimed: Callable[[Any], None] | None = None,
        *,
        write: bool = False,
        **absent: Any,
    ) -> Any:
        """Send a request and return its answer; `absent` is the answer where there is no such znode.

        `unclaimed` is called with an answer whose caller was cancelled. A `write` is answered, granted or refused, only
        once a quorum of the ensemble has agreed on the outcome.
        """
        if self._loop is None or self._client is None:
            raise Unavailable("the connection to ZooKeeper is not open")
        if not self._client.connected:
            raise Unavailable("ZooKeeper is out of reach")
        loop, future = self._loop, self._loop.create_future()
        sent_s = self._clock_s()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)

        def answer(result: Any) -> None:  # in a thread of kazoo's
            self._answers.append(partial(self._settle, future, result, sent_s, unclaimed, write=write))
            if not self._woken:  # waking the loop costs more than an answer: once for all that came meanwhile
                self._woken = True
                with suppress(RuntimeError):  # the loop is closed: no caller is left
                    loop.call_soon_threadsafe(self._settle_all)

        begin().rawlink(answer)
        try:
            return await future
        except KazooException as error:
            if "absent" in absent and getattr(error, "code", 0) == RefusalReason.NO_NODE.value:
                return absent["absent"]
            raise translated(error) from error

    def _settle_all(self) -> None:
        self._woken = False  # before the queue is read: what comes from now on wakes the loop again
        while self._answers:
            self._answers.popleft()()

    def _settle(
        self,
        future: asyncio.Future[Any],
        result: Any,
        sent_s: float,
        unclaimed: Callable[[Any], None] | None,
        *,
        write: bool,
    ) -> None:
        error = result.exception
        if error is None or is_answer(error):
            self._answered(sent_s, write=write)
        if future.done():
            if unclaimed is not None and error is None:
                unclaimed(result.value)
            return
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    def _answered(self, sent_s: float, *, write: bool) -> None:
        """Report an answer to a request that was sent then, if it proves that the session lived."""
        if write and self.on_quorum_answer is not None:
            self.on_quorum_answer(sent_s)

    def _watch(self, changed: asyncio.Event) -> Callable[[Any], None]:
        loop = self._loop

        def watch(_event: Any) -> None:  # in a thread of kazoo's
            with suppress(RuntimeError):
                cast("asyncio.AbstractEventLoop", loop).call_soon_threadsafe(changed.set)

        return watch

    def _set_timeout(self, timeout_s: float) -> None:  # in a thread of kazoo's
        self.timeout_s = timeout_s

    def _on_state_in_thread(self, state: str) -> None:  # in a thread of kazoo's
        client = self._client
        identity = None if client is None else client.client_id
        session = 0 if identity is None else identity[0] or 0
        with suppress(RuntimeError):
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(
                self._on_state, LinkState(state), session
            )

    def _on_state(self, state: LinkState, session: int) -> None:
        self.state = state
        if state is LinkState.CONNECTED:
            self.session = session
        else:
            self._fail_all("the connection to ZooKeeper was lost")
        log.info(log_events.ZOOKEEPER_CONNECTION_CHANGED, state=state, session=f"{self.session:#x}")
        for listener in tuple(self.listeners):
            listener(state, self.session)
        self._changed.set()
        self._changed = asyncio.Event()

    def _fail_all(self, reason: str) -> None:
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(Unavailable(reason))
