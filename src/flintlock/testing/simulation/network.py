"""A network in memory: processes that call each other's gateways, crash, and lose contact.

The idea: a whole cluster in one event loop on virtual time. Each component runs in a `SimulatedProcess`, which takes
the place of `RpcServer` and `RpcChannels` and has the same contract (`rpc.transport`, one contract suite for both).
Messages are encoded and decoded by msgspec, so nothing mutable and nothing unencodable is shared. Delays, losses and
duplicates are drawn from the one `Random` that is passed in: equal seeds give equal runs.

What a crash means here: at one instant the process is dead. Its tasks are cancelled; Python runs their `finally` blocks
all the same, so everything that reaches out of the process (a call, a write to a simulated store) calls `require_alive`
first and is cancelled again. Other processes observe what they would on a real network: a dead process refuses
connections, and the calls that it was working on break; a dead *host* is silent.

Rejected: tasks as processes without a barrier at their borders (a dying JobManager would still store things in its
`finally` blocks); one event loop for each process (ten times slower, and no common order of events).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from flintlock.model.causes import CauseId, current_cause
from flintlock.model.errors import TooLarge, Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc.description import Message, MethodShape, proxy
from flintlock.rpc.exports import Exports, too_large
from flintlock.rpc.failures import RpcFailure, error_of
from flintlock.rpc.transport import DEFAULT_TIMEOUT_S, MAX_MESSAGE_BYTES, Fence, TokenSource, Withdraw
from flintlock.testing.virtual_time import OWNER, NotVirtual, VirtualTimeLoop

_REPEAT_S: Final = 0.2  # between two tries to get something through a cut

G = TypeVar("G")
T = TypeVar("T")


class Link(Struct, frozen=True, kw_only=True):
    """How messages travel in one direction between two processes. Probabilities are for each message."""

    min_delay_s: float = 0.0002
    max_delay_s: float = 0.005
    late: float = 0.0
    """Probability that a message is delayed, by up to `max_late_s`, while later ones overtake it."""
    max_late_s: float = 30.0
    loss: float = 0.0
    duplication: float = 0.0
    """Probability that a *request* arrives twice. gRPC does not do that; a caller that retries does."""


_Outcome: TypeAlias = bytes | RpcFailure | Unavailable
Observer: TypeAlias = Callable[[str, str, str], None]
"""Called for each message as it is sent: sender, receiver, what it is."""


class SimulatedNetwork:
    """Carries messages between processes, by name. A process's name is its address."""

    def __init__(self, random: Random, link: Link | None = None, observer: Observer | None = None) -> None:
        self._random = random
        self.link = link or Link()
        """For all pairs that `set_link` does not name. May be replaced at any time."""
        self._links: dict[tuple[str, str], Link] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()
        self._processes: dict[str, SimulatedProcess] = {}  # the latest process of each name
        self._observer = observer
        self._context = Context()  # messages are in transit whether or not their sender is frozen

    def process(self, name: str) -> SimulatedProcess:
        """Start a process. A dead one of that name is succeeded by it, at the same address.

        Raises `ValueError` while a process of that name is alive.
        """
        former = self._processes.get(name)
        if former is not None and former.alive:
            raise ValueError(f"{name} is still alive")
        process = self._processes[name] = SimulatedProcess(self, name)
        return process

    def at(self, address: str) -> SimulatedProcess | None:
        """Return the process that is, or was last, at `address`."""
        return self._processes.get(address)

    def set_link(self, sender: str, receiver: str, link: Link | None) -> None:
        """Let messages from `sender` to `receiver` travel by a link of their own; None removes it."""
        if link is None:
            self._links.pop((sender, receiver), None)
        else:
            self._links[sender, receiver] = link

    def cut(self, some: str | Iterable[str], others: str | Iterable[str], *, one_way: bool = False) -> None:
        """Let nothing pass between `some` and `others` (`one_way`: from `some` to `others`) until healed.

        Messages in transit are lost as well. No process is notified: callers wait for their deadlines.
        """
        for one in _names(some):
            for other in _names(others):
                self._cuts.add((one, other))
                if not one_way:
                    self._cuts.add((other, one))

    def heal(self, some: str | Iterable[str] | None = None, others: str | Iterable[str] | None = None) -> None:
        """Undo the cuts between `some` and `others`, in both directions; without arguments, all of them."""
        if some is None or others is None:
            self._cuts.clear()
            return
        for one in _names(some):
            for other in _names(others):
                self._cuts -= {(one, other), (other, one)}

    def refuse(self, callers: str | Iterable[str], address: str) -> None:
        """Refuse the callers' connections to `address` until `accept`, as a firewall does; open ones break.

        Messages of the process at `address` pass: only connections to it are refused.
        """
        for caller in _names(callers):
            self._refused.add((caller, address))
        process = self._processes.get(address)
        if process is not None:
            process.break_calls_of(frozenset(_names(callers)))

    def accept(self, callers: str | Iterable[str], address: str) -> None:
        """Undo `refuse`."""
        for caller in _names(callers):
            self._refused.discard((caller, address))

    def is_refused(self, caller: str, address: str) -> bool:
        """Return whether connections from `caller` to `address` are refused."""
        return (caller, address) in self._refused

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Return whether nothing passes from `sender` to `receiver`."""
        return (sender, receiver) in self._cuts

    def stream(self, sender: str, receiver: str, context: Context | None = None) -> Stream:
        """Open one direction of a connection; what arrives runs in `context`."""
        return Stream(self, sender, receiver, self._context if context is None else context)

    def carry(
        self, sender: str, receiver: str, what: str, arrive: Callable[[], None], *, repeatable: bool = False
    ) -> None:
        """Have `arrive` called when a message from `sender` reaches `receiver`, if it ever does."""
        if self._observer is not None:
            self._observer(sender, receiver, what)
        link = self._links.get((sender, receiver), self.link)
        if (sender, receiver) in self._cuts or (link.loss and self._random.random() < link.loss):
            return
        self._deliver(sender, receiver, arrive)
        if repeatable and link.duplication and self._random.random() < link.duplication:
            self._deliver(sender, receiver, arrive)

    def delay_s(self, sender: str, receiver: str) -> float:
        """Draw how long a message takes."""
        link = self._links.get((sender, receiver), self.link)
        delay_s = link.min_delay_s + (link.max_delay_s - link.min_delay_s) * self._random.random()
        if link.late and self._random.random() < link.late:
            delay_s += self._random.random() * link.max_late_s
        return delay_s

    def _deliver(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        loop, delay_s = asyncio.get_running_loop(), self.delay_s(sender, receiver)
        loop.call_later(delay_s, self._arrive, sender, receiver, arrive, context=self._context)

    def _arrive(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        if (sender, receiver) not in self._cuts:
            arrive()


class Stream:
    """One direction of a connection, as TCP has it: in order, repeated through a cut, and lost with the connection."""

    def __init__(self, network: SimulatedNetwork, sender: str, receiver: str, context: Context) -> None:
        self._network: Final = network
        self._ends: Final = (sender, receiver)
        self._context: Final = context
        self._in_transit: Final[deque[tuple[float, Callable[[], None]]]] = deque()  # with the time of each arrival
        self._timer_set = False  # a timer is set

    def send(self, arrive: Callable[[], None]) -> None:
        """Have `arrive` called when the message has arrived."""
        due_s = asyncio.get_running_loop().time() + self._network.delay_s(*self._ends)
        if self._in_transit:
            due_s = max(due_s, self._in_transit[-1][0])
        self._in_transit.append((due_s, arrive))
        self._wait(self._in_transit[0][0])

    def close(self) -> None:
        """Lose the messages in transit."""
        self._in_transit.clear()

    def _wait(self, until_s: float) -> None:
        if not self._timer_set:
            self._timer_set = True
            asyncio.get_running_loop().call_at(until_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._timer_set = False
        now_s = asyncio.get_running_loop().time()
        while self._in_transit and self._in_transit[0][0] <= now_s:
            if self._network.is_cut(*self._ends):
                self._wait(now_s + _REPEAT_S)
                return
            self._in_transit.popleft()[1]()
        if self._in_transit:
            self._wait(self._in_transit[0][0])


class SimulatedProcess:
    """One process: a `Host`, a `Connector`, and the scope of its tasks. A restart makes another."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name: Final = name
        self.alive = True  # until crash or stop, then never again
        self.frozen = False
        self.silent = False  # dead together with its host: connections are not even refused
        self.failure: BaseException | None = None
        """The exception that one of its spawned tasks raised, and that so ended it."""
        self._network = network
        self._exports = Exports(lambda: name)
        self._listening = False  # from the first serve on
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of creation; each is removed when it is done
        self._inbound: dict[_Call, None] = {}  # calls that its handlers are working on
        self._context = copy_context()  # what is bound in one process is not seen in another
        self._context.run(OWNER.set, self)

    def __repr__(self) -> str:
        return f"<process {self.name}{'' if self.alive else ', dead'}>"

    @property
    def address(self) -> str:
        """The address at which it is called: its name."""
        return self.name

    def require_alive(self) -> None:
        """Raise `CancelledError` if the process is dead: its code has no effect outside it."""
        if not self.alive:
            raise asyncio.CancelledError(f"{self.name} is dead: it sends nothing any more")

    # Host and Connector

    def serve(self, gateway: type[G], implementation: G, fence: Fence | None = None) -> Withdraw:
        """See `rpc.transport.Host.serve`."""
        self.require_alive()
        self._listening = True
        return self._exports.add(gateway, implementation, fence)

    def connect(
        self,
        gateway: type[G],
        address: str,
        token: TokenSource | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> G:
        """See `rpc.transport.Connector.connect`. Calls of a dead process are cancelled instead of sent."""
        return proxy(gateway, address, partial(self._call, address, token, timeout_s))

    async def _call(
        self, address: str, token: TokenSource | None, timeout_s: float, shape: MethodShape, message: Message
    ) -> Message:
        self.require_alive()
        loop = asyncio.get_running_loop()
        request = shape.encode_request(message)
        if len(request) > MAX_MESSAGE_BYTES:
            raise TooLarge(too_large("request", shape, len(request), MAX_MESSAGE_BYTES))
        answer: asyncio.Future[_Outcome] = loop.create_future()
        call = _Call(
            network=self._network,
            caller=self,
            address=address,
            shape=shape,
            token=token() if token is not None else None,
            request=request,
            cause=current_cause(),
            answer=answer,
        )
        self._network.carry(self.name, address, shape.path, call.arrive, repeatable=True)
        deadline = loop.call_later(timeout_s, call.expire, timeout_s)
        try:
            outcome = await answer
        finally:
            deadline.cancel()
        self.require_alive()
        if isinstance(outcome, bytes):
            return shape.decode_response(outcome)
        raise outcome if isinstance(outcome, Unavailable) else error_of(outcome)

    # The tasks of the process

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `coro` as a task of this process: a crash ends it.

        An exception that it raises crashes the process, as one from `main()` would, and is recorded as `failure`.
        """
        if not self.alive:
            coro.close()
            self.require_alive()
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}/{name}", context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (failure := task.exception()) is not None and self.alive:
            self.failure = failure
            self.crash()

    def crash(self, *, host_too: bool = False) -> None:
        """End the process at this instant, as SIGKILL does; with `host_too`, as pulling the plug does. Idempotent.

        May be called by a task of the process itself, which then has no further effect.
        """
        if not self.alive:
            return
        self.alive = False
        self.silent = host_too
        self.thaw()  # a dead process is not frozen: its remaining tasks end now
        for task in list(self._tasks):
            task.cancel(f"{self.name} crashed")
        if not host_too:
            for call in list(self._inbound):
                call.reset()
        self._inbound.clear()

    def freeze(self, length_s: float | None = None) -> None:
        """Stop the process, as SIGSTOP does: its connections stay open, and nothing is answered. Idempotent.

        With `length_s` it resumes after that time. May be called by a task of the process; it runs to its next await.
        """
        if self.alive:
            self.frozen = True
            loop = _virtual_loop()
            loop.freeze(self)
            if length_s is not None:
                loop.call_later(length_s, self.thaw, context=Context())

    def thaw(self) -> None:
        """Let it continue, as SIGCONT does. Idempotent."""
        self.frozen = False
        _virtual_loop().thaw(self)

    async def stop(self) -> None:
        """End the process as SIGTERM does: its tasks are cancelled and may still send until they are done."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel(f"{self.name} stops")
            await asyncio.wait(tasks)
        self.crash()

    # Calls that arrive

    def receive(self, call: _Call) -> None:
        """Handle a call that arrived here."""
        if not self.alive or not self._listening:
            if not self.silent:
                call.refuse()
            return
        self._inbound[call] = None
        self.spawn(self._answer(call), f"rpc {call.shape}")

    def break_calls_of(self, callers: frozenset[str]) -> None:
        """Break the connections of these callers: the calls that are being handled have no answer."""
        for call in [call for call in self._inbound if call.caller in callers]:
            del self._inbound[call]
            call.reset()

    async def _answer(self, call: _Call) -> None:
        outcome = await self._exports.answer(call.shape.gateway, call.shape.name, call.token, call.request, call.cause)
        if self.alive:
            self._inbound.pop(call, None)
            call.answer(outcome)


class _Call:
    """One call: the request and its answer, in transit."""

    __slots__ = ("_answer", "_caller", "_network", "address", "cause", "request", "shape", "token")

    def __init__(
        self,
        *,
        network: SimulatedNetwork,
        caller: SimulatedProcess,
        address: str,
        shape: MethodShape,
        token: FencingToken | None,
        request: bytes,
        cause: CauseId | None,
        answer: asyncio.Future[_Outcome],
    ) -> None:
        self._network = network
        self._caller = caller
        self._answer = answer
        self.address = address
        self.shape = shape
        self.token = token
        self.request = request
        self.cause = cause

    @property
    def caller(self) -> str:
        """The name of the process that called."""
        return self._caller.name

    def arrive(self) -> None:
        """Reach the process that is at the address by now."""
        process = self._network.at(self.address)
        if process is None or self._network.is_refused(self.caller, self.address):
            self.refuse()
        else:
            process.receive(self)

    def answer(self, outcome: _Outcome) -> None:
        """Send the outcome back."""
        what = "answer" if isinstance(outcome, bytes) else "failure"
        self._network.carry(self.address, self._caller.name, what, partial(self._settle, outcome))

    def refuse(self) -> None:
        """Refuse the caller's connection: nothing listens."""
        unavailable = Unavailable(f"nothing listens at {self.address}")
        unavailable.unreachable = True
        self.answer(unavailable)

    def reset(self) -> None:
        """Reset the caller's connection: the process died while it handled the call."""
        self.answer(Unavailable(f"the connection to {self.address} broke during {self.shape}"))

    def expire(self, timeout_s: float) -> None:
        """Give up waiting."""
        if not self._answer.done():
            self._answer.set_result(Unavailable(f"{self.address} did not answer {self.shape} within {timeout_s:g} s"))

    def _settle(self, outcome: _Outcome) -> None:
        # The answer to a duplicate, or to a caller that gave up or died, is dropped.
        if not self._answer.done():
            self._answer.set_result(outcome)


def _virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise NotVirtual("only under virtual time can one process be frozen while the others run")
    return loop


def _names(names: str | Iterable[str]) -> Iterable[str]:
    return (names,) if isinstance(names, str) else tuple(names)
