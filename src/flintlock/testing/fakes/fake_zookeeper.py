"""ZooKeeper without ZooKeeper: an ensemble on the simulated network, and the link of a simulated process to it.

What runs over the link is the real code: the election by latch, the leader's own computation of how long it may lead,
the retrieval of the leader. The ensemble has the behaviour that this code relies on: sessions that end a whole timeout
after the last message of their client, ephemeral znodes that are removed with them, watches that fire once,
transactions that take effect as a whole or not at all, the order of one connection's messages. The client drops a
connection on which it has received nothing for two thirds of the timeout (SUSPENDED), refuses requests until it has
another, and learns that its session is over only when it can connect again. Watchers are woken when the connection is
lost, as by kazoo.

A process may be connected to a server that is cut off from the others (`cut_off_server`). That server does not know it:
it answers reads and pings from its memory, and holds back the first write and everything that its client sends
afterwards, for they could only be answered by a quorum. The others hear nothing of the session meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct

from flintlock.ha.zookeeper.link import ZooKeeperLink
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
from flintlock.model.errors import Unavailable
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess, Stream

T = TypeVar("T")

ENSEMBLE: Final = "zookeeper"
_PING_AT: Final = 0.25  # of the session timeout
_SILENT_AT: Final = 2 / 3  # of it: the connection counts as dead
_CONNECT_AGAIN_S: Final = 0.3


class _Znode(Struct, frozen=True):
    """A znode; `owner` is the session with which it is removed, 0 for none."""

    data: bytes = b""
    version: int = 0
    owner: int = 0


class _Expired(Exception):
    """The session of the request is over."""


class _LoneServer:
    """A server that is cut off from the others, and does not know it."""

    def __init__(self, nodes: dict[str, _Znode]) -> None:
        self.nodes: Final = nodes  # as they were when it was cut off
        self.held: Final[list[Callable[[], None]]] = []  # requests from the first write on, in order
        self.watches: Final[list[Callable[[], None]]] = []  # what it would have to notify of

    def receive(self, answer_read: Callable[[], None], forward: Callable[[], None], *, write: bool) -> None:
        """Answer a request from memory, or hold it back: requests of one client are answered in order."""
        if write or self.held:
            self.held.append(forward)
        else:
            answer_read()


class FakeEnsemble:
    """All servers, as one. Requests take effect as they arrive; no crash affects it."""

    def __init__(self, network: SimulatedNetwork, session_timeout_s: float) -> None:
        self.network: Final = network
        self.timeout_s: Final = session_timeout_s
        self.on_change: Callable[[str, bytes], None] | None = None  # called for each znode that is created or set
        self._nodes: dict[str, _Znode] = {"": _Znode()}
        self._last_message_s: Final[dict[int, float]] = {}  # time of the last message of each live session
        self._watches: Final[dict[str, list[Callable[[], None]]]] = {}
        self._lone: Final[dict[str, _LoneServer]] = {}  # by the name of the process that is connected to it
        self.connections: Final[dict[str, Callable[[], None]]] = {}  # by its process: what closes a connection
        self._sessions: Final = itertools.count(1)
        self._latches: Final = itertools.count(1)
        self._context: Final = Context()  # it runs whichever process is frozen

    def connect(self, session: int) -> int:
        """Continue a live session, or begin another one. Returns its number."""
        if session not in self._last_message_s:
            session = next(self._sessions)
            self._expire_later(session, self._now_s() + self.timeout_s)
        self._last_message_s[session] = self._now_s()
        return session

    def touch(self, session: int) -> None:
        """Keep a session alive: a message of it has arrived. Raises _Expired."""
        if session not in self._last_message_s:
            raise _Expired
        self._last_message_s[session] = self._now_s()

    def cut_off_server(self, client: str) -> None:
        """Cut the server that this process is connected to off from the others. It serves no other process."""
        self._lone.setdefault(client, _LoneServer(dict(self._nodes)))

    def is_cut_off(self, client: str) -> bool:
        """Return whether the server that this process is connected to is cut off."""
        return client in self._lone

    def rejoin_server(self, client: str) -> None:
        """Let that server reach the others again: what it held back is answered, and its watches fire."""
        server = self._lone.pop(client, None)
        if server is not None:
            for forward in (*server.held, *server.watches):
                forward()

    def stop_server(self, client: str) -> None:
        """Let that server notice that it is cut off: it forgets what it held back, and closes its connections."""
        self._lone.pop(client, None)
        if client in self.connections:
            self.connections[client]()

    def lone_server(self, client: str) -> _LoneServer | None:
        """Return the server that this process is connected to if it is cut off."""
        return self._lone.get(client)

    def get(self, path: str, client: str = "") -> Node | None:
        """Return a znode."""
        node = self._known_to(client).get(path)
        return None if node is None else Node(node.data, node.version)

    def children(self, path: str, client: str = "") -> list[str]:
        """Return the names below a znode."""
        return [name.rpartition("/")[2] for name in self._known_to(client) if name and name.rpartition("/")[0] == path]

    def exists(self, path: str, watch: Callable[[], None] | None, client: str = "") -> bool:
        """Return whether a znode exists; call `watch` once, when that changes."""
        if watch is not None:
            self._watches.setdefault(path, []).append(watch)
        return path in self._known_to(client)

    def create_sequential(self, path: str, data: bytes, session: int) -> str:
        """Add an ephemeral znode with a number."""
        made = f"{path}{next(self._latches):010d}"
        self.transact((Create(made, data, ephemeral=True),), session)
        return made

    def ensure(self, path: str) -> None:
        """Create a znode, and those above it, where they do not exist."""
        parts = path.split("/")
        for length in range(2, len(parts) + 1):
            self._nodes.setdefault("/".join(parts[:length]), _Znode())

    def transact(self, ops: Sequence[Op], session: int) -> Refusal | None:
        """Apply all operations or none."""
        nodes, changed = dict(self._nodes), list[str]()
        for op in ops:
            reason = _apply(nodes, op, session)
            if reason is not None:
                return Refusal(op, reason)
            if not isinstance(op, Check):
                changed.append(op.path)
        self._nodes = nodes
        for path in changed:
            self._notify(path)
        return None

    def _known_to(self, client: str) -> dict[str, _Znode]:
        server = self._lone.get(client)
        return self._nodes if server is None else server.nodes

    def _notify(self, path: str) -> None:
        node = self._nodes.get(path)
        if node is not None and self.on_change is not None:
            self.on_change(path, node.data)
        for watch in self._watches.pop(path, ()):
            watch()

    def _expire_later(self, session: int, due_s: float) -> None:
        asyncio.get_running_loop().call_at(due_s, self._expire_if_silent, session, context=self._context)

    def _expire_if_silent(self, session: int) -> None:
        due_s = self._last_message_s[session] + self.timeout_s
        if self._now_s() < due_s:
            self._expire_later(session, due_s)
            return
        del self._last_message_s[session]
        removed = [path for path, node in self._nodes.items() if node.owner == session]
        for path in removed:
            del self._nodes[path]
        for path in removed:
            self._notify(path)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class FakeLink(ZooKeeperLink):
    """The link of one process. `run` is what kazoo's threads do, and is frozen with the process."""

    def __init__(self, ensemble: FakeEnsemble, process: SimulatedProcess) -> None:
        super().__init__(
            ENSEMBLE,
            session_timeout_s=ensemble.timeout_s,
            connection_timeout_s=ensemble.timeout_s,
            clock_s=asyncio.get_running_loop().time,
        )
        self._ensemble: Final = ensemble
        self._process: Final = process
        self._context: Final = copy_context()  # of the process: answers wait while it is frozen
        self._pending: Final[dict[asyncio.Future[object], None]] = {}  # in the order of the requests
        self._watching: Final[dict[asyncio.Event, None]] = {}
        self._outbound, self._inbound = self._streams()  # of the present connection
        self._received = asyncio.Event()  # set when anything has arrived
        self._closed = asyncio.Event()  # set when the ensemble has closed the connection

    async def run(self) -> None:
        """Stay connected until cancelled, with one session after another."""
        self._ensemble.connections[self._process.name] = self._on_closed
        while True:
            session = await self._connect()
            if self.session not in (0, session):
                self._on_state(LinkState.LOST, self.session)
            self._on_state(LinkState.CONNECTED, session)
            await self._ping()
            self._on_state(LinkState.SUSPENDED, self.session)

    def ping_beside_the_loop(self) -> None:
        """Keep the session alive, as kazoo's threads do while the loop of the process stands still."""
        network, name = self._ensemble.network, self._process.name
        cut = network.is_cut(name, ENSEMBLE) or network.is_cut(ENSEMBLE, name) or self._ensemble.is_cut_off(name)
        if self.state is LinkState.CONNECTED and not cut:
            with suppress(_Expired):
                self._ensemble.touch(self.session)

    async def get(self, path: str) -> Node | None:
        """See `ZooKeeperLink`."""
        return await self._request(lambda: self._ensemble.get(path, self._process.name))

    async def children(self, path: str) -> list[str]:
        """See `ZooKeeperLink`."""
        return await self._request(lambda: self._ensemble.children(path, self._process.name))

    async def exists(self, path: str, changed: asyncio.Event | None = None) -> bool:
        """See `ZooKeeperLink`."""
        watch = None if changed is None else self._watched(changed)
        return await self._request(lambda: self._ensemble.exists(path, watch, self._process.name))

    async def create_sequential(self, path: str, data: bytes) -> str:
        """See `ZooKeeperLink`."""
        session = self.session
        return await self._request(
            lambda: self._ensemble.create_sequential(path, data, session),
            unclaimed=lambda made: self.transact_soon([Delete(made)]),
            write=True,
        )

    async def ensure(self, path: str) -> None:
        """See `ZooKeeperLink`."""
        await self._request(lambda: self._ensemble.ensure(path), write=True)

    async def transact(self, ops: Sequence[Op]) -> Refusal | None:
        """See `ZooKeeperLink`."""
        session = self.session
        return await self._request(lambda: self._ensemble.transact(ops, session), write=True)

    def transact_soon(self, ops: Sequence[Op]) -> None:
        """See `ZooKeeperLink`."""
        session = self.session
        if self.state is LinkState.CONNECTED and self._process.alive:
            self._send(lambda: self._ensemble.transact(ops, session), lambda _: None, write=True)

    def _watched(self, changed: asyncio.Event) -> Callable[[], None]:
        """Return the watch that the ensemble calls once. If its message is lost with the connection, that wakes too."""
        inbound = self._inbound
        self._watching[changed] = None

        def arrive() -> None:
            self._watching.pop(changed, None)
            changed.set()

        def notify() -> None:
            server = self._ensemble.lone_server(self._process.name)
            if server is None:
                inbound.send(arrive)
            else:
                server.watches.append(notify)

        return notify

    async def _connect(self) -> int:
        while True:
            self._outbound.close()
            self._inbound.close()
            self._outbound, self._inbound = self._streams()
            self._process.require_alive()
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            outbound, inbound, former = self._outbound, self._inbound, self.session
            outbound.send(partial(self._accept, inbound, former, answer))
            try:
                async with asyncio.timeout(self._ensemble.timeout_s / 3):
                    return await answer
            except TimeoutError:
                await asyncio.sleep(_CONNECT_AGAIN_S)

    async def _ping(self) -> None:
        """Ping until the connection is closed or silent for too long."""
        self._closed.clear()
        loop = asyncio.get_running_loop()
        received_s = loop.time()
        while not self._closed.is_set():
            self._received.clear()
            self._send(lambda: None, lambda _: None)
            try:
                async with asyncio.timeout_at(received_s + self._ensemble.timeout_s * _SILENT_AT):
                    await self._received.wait()
            except TimeoutError:
                return
            received_s = loop.time()
            try:
                async with asyncio.timeout(self._ensemble.timeout_s * _PING_AT):
                    await self._closed.wait()
            except TimeoutError:
                continue

    def _accept(self, inbound: Stream, former: int, answer: asyncio.Future[int]) -> None:
        """Have the ensemble answer a connection; a server that is cut off cannot: sessions belong to all of them."""
        if self._ensemble.is_cut_off(self._process.name):
            return
        session = self._ensemble.connect(former)

        def arrive() -> None:
            if not answer.done():
                answer.set_result(session)

        inbound.send(arrive)

    async def _request(
        self, op: Callable[[], T], unclaimed: Callable[[T], None] | None = None, *, write: bool = False
    ) -> T:
        if self.state is not LinkState.CONNECTED:
            raise Unavailable("ZooKeeper is out of reach")
        self._process.require_alive()
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer: list[T] = []
        sent_s = self._clock_s()

        def settle(value: T) -> None:
            self._answered(sent_s, write=write)
            if not future.done():
                answer.append(value)
                future.set_result(None)
            elif unclaimed is not None:
                unclaimed(value)

        self._pending[future] = None
        self._send(op, settle, write=write)
        try:
            await future
        finally:
            del self._pending[future]
        self._process.require_alive()
        return answer[0]

    def _send(self, op: Callable[[], T], settle: Callable[[T], None], *, write: bool = False) -> None:
        """Have `op` run at the ensemble and `settle` called with its result, if both messages arrive."""
        session, outbound, inbound = self.session, self._outbound, self._inbound

        def arrive() -> None:
            server = self._ensemble.lone_server(self._process.name)
            if server is None:
                forward()
            else:
                server.receive(lambda: answer(op()), forward, write=write)

        def forward() -> None:
            try:
                self._ensemble.touch(session)
                value = op()
            except _Expired:
                inbound.send(self._on_closed)
            else:
                answer(value)

        def answer(value: T) -> None:
            inbound.send(lambda: deliver(value))

        def deliver(value: T) -> None:
            self._received.set()
            settle(value)

        outbound.send(arrive)

    def _on_closed(self) -> None:
        self._closed.set()
        self._received.set()

    def _fail_all(self, reason: str) -> None:
        for changed in self._watching:
            changed.set()
        self._watching.clear()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(Unavailable(reason))

    def _streams(self) -> tuple[Stream, Stream]:
        network, name = self._ensemble.network, self._process.name
        return network.stream(name, ENSEMBLE), network.stream(ENSEMBLE, name, self._context)


def _apply(nodes: dict[str, _Znode], op: Op, session: int) -> RefusalReason | None:
    """Apply an operation to `nodes`, or return the reason of its refusal."""
    node = nodes.get(op.path)
    match op:
        case Create(path, data, ephemeral):
            if node is not None:
                return RefusalReason.NODE_EXISTS
            if path.rpartition("/")[0] not in nodes:
                return RefusalReason.NO_NODE
            nodes[path] = _Znode(data, 0, session if ephemeral else 0)
            return None
        case _ if node is None:
            return RefusalReason.NO_NODE
        case SetData(version=version) | Delete(version=version) | Check(version=version) if version not in (
            -1,
            node.version,
        ):
            return RefusalReason.BAD_VERSION
        case SetData(path, data):
            nodes[path] = _Znode(data, node.version + 1, node.owner)
        case Delete(path):
            del nodes[path]
        case Check():
            pass
    return None
