"""The connection to ZooKeeper, for the event loop. The only module that knows kazoo.

kazoo works in threads of its own. Requests are handed over without waiting and their answers come back through
`call_soon_threadsafe`, so many are under way at once, in order. The loop never blocks.

What kazoo leaves open is settled here:

- While a connection is lost kazoo queues requests and sends them when it is back. Here they are refused: a write whose
  moment has passed must not take place later. One that slips in at that very moment is answered Unavailable, and
  whether it takes place is open, as for any write whose answer was lost.
- kazoo forgets, on the loss of a session, requests that came in just then. All that waits is failed here instead.
- kazoo does not tell the session timeout that the ensemble grants, which may be shorter than what was asked for. It is
  taken from what its `_connect` returns (two thirds of it); a test holds that against a real server.
- kazoo waits a whole session timeout for a host that swallows packets. Here each of n servers gets an n-th of it.

Rejected: kazoo's recipes for locks and elections. They block a thread each, cannot be cancelled by asyncio, and know
of no transaction to tie leadership to the epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Final, TypeAlias, cast

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.retry import KazooRetry
from msgspec import Struct

from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, InvariantBroken, Refused, Unavailable

log = structlog.get_logger(__name__)


class LinkState(StrEnum):
    """How the connection is, in kazoo's words."""

    CONNECTED = "CONNECTED"
    SUSPENDED = "SUSPENDED"  # the session may live
    LOST = "LOST"  # the session is over, or has not begun


class Trouble(Enum):
    """Why the ensemble refused an operation; the numbers are ZooKeeper's. All else is Unavailable."""

    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111


class Node(Struct, frozen=True):
    """What a znode holds, and how often it was changed."""

    data: bytes
    version: int


class Create(Struct, frozen=True):
    """Add a znode; its parent has to be there."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(Struct, frozen=True):
    """Replace what a znode holds, if it has this version."""

    path: str
    data: bytes
    version: int


class Delete(Struct, frozen=True):
    """Remove a znode, if it has this version (-1: whatever it has)."""

    path: str
    version: int = -1


class Check(Struct, frozen=True):
    """The znode is there, with this version (-1: whatever it has)."""

    path: str
    version: int = -1


Op: TypeAlias = Create | SetData | Delete | Check


class Refusal(Struct, frozen=True):
    """The operation that made a transaction fail as a whole."""

    op: Op
    trouble: Trouble


Listener: TypeAlias = Callable[[LinkState, int], None]
"""Called on the loop with each new state and the session's number."""


class ZooKeeperLink:
    """One session after another with an ensemble, from `open` to `close`. Belongs to the loop that opened it."""

    def __init__(
        self, quorum: str, *, session_timeout_s: float, connection_timeout_s: float, clock_s: Callable[[], float]
    ) -> None:
        self._quorum: Final = quorum
        self._asked_timeout_s: Final = session_timeout_s
        self._connection_timeout_s: Final = connection_timeout_s
        self._clock_s: Final = clock_s
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: Final[set[asyncio.Future[Any]]] = set()  # from a request to its answer
        self._answers: Final[deque[Callable[[], None]]] = deque()  # put in by kazoo's thread, taken out by the loop
        self._woken = False  # the loop is about to empty it
        self._changed: asyncio.Event = asyncio.Event()  # set, and replaced, with each new state
        self.listeners: Final[set[Listener]] = set()
        self.on_answer: Callable[[float], None] | None = None  # told when each answered question was sent
        self.state = LinkState.LOST  # as the loop has heard it
        self.session = 0  # the latest session's number
        self.timeout_s = session_timeout_s  # as the ensemble granted it

    async def open(self) -> None:
        """Connect. Raises Unavailable if no server answers in time, Refused for an address that cannot be read."""
        self._loop = asyncio.get_running_loop()
        handler = _Handler()
        try:
            client: Any = KazooClient(
                hosts=self._quorum,
                timeout=self._asked_timeout_s,
                handler=handler,
                connection_retry=KazooRetry(
                    max_tries=-1, delay=0.05, backoff=2, max_delay=0.5, sleep_func=handler.sleep_func
                ),
                logger=_client_logger(),
            )
        except (ValueError, KazooException) as error:
            raise Refused(f"the ZooKeeper quorum {self._quorum!r} cannot be read: {error}") from error
        handler.longest_s = self._asked_timeout_s / max(1, len(client.hosts))
        self._client = client
        self._hear_timeouts(client)
        client.add_listener(self._listen)
        await asyncio.to_thread(client.start_async)
        try:
            async with asyncio.timeout(self._connection_timeout_s):
                await self.connected()
        except TimeoutError:
            await self.close()
            raise Unavailable(_silence(self._quorum, self._connection_timeout_s)) from None

    async def close(self) -> None:
        """End the session: what is ephemeral in it goes at once, if the ensemble can be reached. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        self._fail_all("the connection to ZooKeeper is closed")
        await asyncio.shield(asyncio.to_thread(_stop, client))

    async def connected(self) -> None:
        """Return when there is a connection."""
        while self.state is not LinkState.CONNECTED:
            await self._changed.wait()

    async def get(self, path: str) -> Node | None:
        """Return a znode, None if it is not there. Raises Unavailable."""
        found = await self._ask(lambda: self._client.get_async(path), absent=None)
        return None if found is None else Node(found[0], found[1].version)

    async def children(self, path: str) -> list[str]:
        """Return the names below a znode, in no order; none if it is not there. Raises Unavailable."""
        return await self._ask(lambda: self._client.get_children_async(path), absent=[])

    async def exists(self, path: str, changed: asyncio.Event | None = None) -> bool:
        """Tell whether a znode is there. `changed` is set when that may have changed. Raises Unavailable."""
        watch = None if changed is None else self._watch(changed)
        return await self._ask(lambda: self._client.exists_async(path, watch=watch), absent=None) is not None

    async def get_watched(self, path: str, changed: asyncio.Event) -> Node | None:
        """Return a znode; `changed` is set when it may have changed, or come. Raises Unavailable."""
        if not await self.exists(path, changed):
            return None
        return await self.get(path)

    async def create_sequential(self, path: str, data: bytes) -> str:
        """Add an ephemeral znode with a number after `path` that is higher than those before; return its path.

        If its caller is cancelled it is removed again. After Unavailable it may be there, or come.
        """

        def remove(made: str) -> None:
            self.transact_soon([Delete(made)])

        return await self._ask(
            lambda: self._client.create_async(path, data, ephemeral=True, sequence=True), unclaimed=remove
        )

    async def ensure(self, path: str) -> None:
        """Make a znode, and those above it, if they are not there. Raises Unavailable."""
        await self._ask(lambda: self._client.ensure_path_async(path))

    async def transact(self, ops: Sequence[Op]) -> Refusal | None:
        """Do all of it or nothing; return what was refused, if nothing was done.

        Raises Unavailable, with it open whether the whole of it took place, or will.
        """
        outcomes = await self._ask(lambda: self._transaction(ops).commit_async())
        for op, outcome in zip(ops, outcomes, strict=False):
            code = getattr(outcome, "code", 0)
            if isinstance(outcome, Exception) and code not in (0, -2):  # rolled back, or not reached: not the cause
                try:
                    return Refusal(op, Trouble(code))
                except ValueError:
                    raise Unavailable(f"ZooKeeper refused a write: {outcome!r}") from outcome
        return None

    def transact_soon(self, ops: Sequence[Op]) -> None:
        """Send a transaction whose outcome nobody waits for. Does nothing while there is no connection."""
        if self._client is not None and self._client.connected:
            self._transaction(ops).commit_async()

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

    async def _ask(
        self, begin: Callable[[], Any], unclaimed: Callable[[Any], None] | None = None, **absent: Any
    ) -> Any:
        """Send a request and return its answer; `absent` is the answer where there is no such znode.

        `unclaimed` is given the answer that comes when nobody waits for it any more.
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
            self._answers.append(partial(self._settle, future, result, sent_s, unclaimed))
            if not self._woken:  # waking the loop costs more than an answer: one wake for all that came meanwhile
                self._woken = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._take_answers)

        begin().rawlink(answer)
        try:
            return await future
        except KazooException as error:
            if "absent" in absent and getattr(error, "code", 0) == Trouble.NO_NODE.value:
                return absent["absent"]
            raise _translated(error) from error

    def _take_answers(self) -> None:
        self._woken = False  # before looking: what comes from now on wakes the loop again
        while self._answers:
            self._answers.popleft()()

    def _settle(
        self, future: asyncio.Future[Any], result: Any, sent_s: float, unclaimed: Callable[[Any], None] | None
    ) -> None:
        error = result.exception
        if self.on_answer is not None and (error is None or _is_answer(error)):
            self.on_answer(sent_s)
        if future.done():
            if unclaimed is not None and error is None:
                unclaimed(result.value)
            return
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    def _watch(self, changed: asyncio.Event) -> Callable[[Any], None]:
        loop = self._loop

        def watch(_event: Any) -> None:  # in a thread of kazoo's
            with suppress(RuntimeError):
                cast("asyncio.AbstractEventLoop", loop).call_soon_threadsafe(changed.set)

        return watch

    def _hear_timeouts(self, client: Any) -> None:
        connection, link = client._connection, self  # see the module's docstring
        connect = connection._connect

        def listening(*where: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*where)
            link.timeout_s = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        connection._connect = listening

    def _listen(self, state: str) -> None:  # in a thread of kazoo's
        client = self._client
        identity = None if client is None else client.client_id
        session = 0 if identity is None else identity[0] or 0
        with suppress(RuntimeError):
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._hear, LinkState(state), session)

    def _hear(self, state: LinkState, session: int) -> None:
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


@contextmanager
def reading(quorum: str, connection_timeout_s: float) -> Generator[Callable[[str], bytes | None]]:
    """Connect without an event loop, to read and nothing else: gives what returns a znode's data, None without one.

    Raises Unavailable, Refused, as `ZooKeeperLink.open` does.
    """
    try:
        client: Any = KazooClient(hosts=quorum, logger=_silent_logger())
    except (ValueError, KazooException) as error:
        raise Refused(f"the ZooKeeper quorum {quorum!r} cannot be read: {error}") from error

    def read(path: str) -> bytes | None:
        try:
            return cast("bytes", client.get(path)[0])
        except NoNodeError:
            return None
        except KazooException as error:
            raise _translated(error) from error

    try:
        client.start(timeout=connection_timeout_s)
        yield read
    except client.handler.timeout_exception:
        raise Unavailable(_silence(quorum, connection_timeout_s)) from None
    finally:
        _stop(client)


class _Answer(AsyncResult):
    """An answer that is handed on by the thread that read it, not by one more; handing on never blocks here."""

    def _do_callbacks(self) -> None:
        for callback in cast("list[Callable[[Any], None]]", self._callbacks):
            callback(self)


class _Handler(SequentialThreadingHandler):
    """kazoo's threads, with a bound on how long one server is tried, and one thread less on the way of an answer."""

    longest_s: float = 10.0

    def async_result(self) -> _Answer:
        """Return a place for an answer."""
        return _Answer(self)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to one server."""
        kwargs["timeout"] = min(kwargs.get("timeout") or self.longest_s, self.longest_s)
        return cast("Any", super()).create_connection(*args, **kwargs)


class _ToStructlog(logging.Handler):
    """Passes on what kazoo has to say."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it as ours."""
        log.info(log_events.ZOOKEEPER_CLIENT_MESSAGE, said=record.getMessage())


def _client_logger() -> logging.Logger:
    logger = logging.getLogger("flintlock.zookeeper")
    if not logger.handlers:
        logger.addHandler(_ToStructlog())
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    return logger


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("flintlock.zookeeper.reading")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return logger


def _silence(quorum: str, waited_s: float) -> str:
    return f"ZooKeeper at {quorum} (high-availability.zookeeper.quorum) has not answered for {waited_s:g} s"


def _stop(client: Any) -> None:
    client.stop()
    client.close()


def _is_answer(error: Exception) -> bool:
    """Tell whether an error came from the ensemble, rather than from the lack of it."""
    return getattr(error, "code", 0) in {trouble.value for trouble in Trouble}


def _translated(error: Exception) -> FlintlockError:
    if _is_answer(error):
        return InvariantBroken(f"ZooKeeper was misused: {error!r}")
    return Unavailable(f"ZooKeeper did not answer: {type(error).__name__} {error}".rstrip())
