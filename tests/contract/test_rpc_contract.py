"""What every transport promises (`flintlock.rpc.transport`), on gRPC over loopback and on the simulated network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import pytest
import structlog
from msgspec import Struct

from flintlock.model import errors
from flintlock.model.causes import CauseId, caused_by, current_cause
from flintlock.model.errors import (
    Conflict,
    DuplicateJob,
    Fenced,
    FlintlockError,
    Invalid,
    InvariantBroken,
    NotFound,
    Refused,
    Unavailable,
)
from flintlock.model.ids import Epoch, FencingToken
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.server import RpcServer
from flintlock.rpc.transport import Connector, Fence, Host
from flintlock.testing.members import member_of
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import run_virtual

TOKEN = FencingToken(epoch=Epoch(7), session="6f1c")

# A gateway, and one that does what is asked


class Ask(Struct, frozen=True, kw_only=True):
    number: int
    words: tuple[str, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    number: int
    words: frozenset[str] = frozenset()


class EchoGateway(Protocol):
    async def echo(self, message: Ask) -> Answer: ...

    async def find(self, message: Ask) -> Answer | None: ...

    async def note(self, message: Ask) -> None: ...

    async def count(self) -> Answer: ...

    async def touch(self) -> None: ...

    async def hold(self, message: Ask) -> None: ...


class Echo:
    """Records its calls; fails with the error that is set; holds calls until released."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.finished: list[int] = []
        self.fail_with: Exception | None = None
        self.holding = 0
        self.changed = asyncio.Condition()
        self.released = asyncio.Event()

    async def echo(self, message: Ask) -> Answer:
        self.calls.append("echo")
        if self.fail_with is not None:
            raise self.fail_with
        return Answer(number=message.number, words=frozenset(message.words))

    async def find(self, message: Ask) -> Answer | None:
        return Answer(number=message.number) if message.number > 0 else None

    async def note(self, message: Ask) -> None:
        self.calls.append(f"note {message.number}")

    async def count(self) -> Answer:
        return Answer(number=len(self.calls))

    async def touch(self) -> None:
        self.calls.append("touch")

    async def hold(self, message: Ask) -> None:
        async with self.changed:
            self.holding += 1
            self.changed.notify_all()
        await self.released.wait()
        async with self.changed:
            self.finished.append(message.number)
            self.changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(true)


class RicherEcho(Protocol):
    """A later EchoGateway, with a method that the one above lacks."""

    async def shout(self, message: Ask) -> Answer: ...


RicherEcho.__name__ = "EchoGateway"


class Spelled(Struct, frozen=True, kw_only=True):
    number: str


class SpellingEcho(Protocol):
    """An EchoGateway whose messages do not fit those of the one above."""

    async def echo(self, message: Spelled) -> Answer: ...


SpellingEcho.__name__ = "EchoGateway"


class OtherGateway(Protocol):
    async def other(self) -> None: ...


# The transports


class World(Protocol):
    """A client, and servers that come and go."""

    @property
    def client(self) -> Connector: ...

    async def start(self, implementation: EchoGateway, fence: Fence | None = None, at: str | None = None) -> Host:
        """Serve, at a new address or at that of a server that was killed."""
        ...

    async def kill(self, host: Host) -> None: ...

    def vacant_address(self) -> str:
        """Return an address where nothing listens."""
        ...


class GrpcWorld:
    def __init__(self) -> None:
        self.client: RpcChannels = RpcChannels(security=member_of())
        self.servers: list[RpcServer] = []

    async def start(self, implementation: EchoGateway, fence: Fence | None = None, at: str | None = None) -> RpcServer:
        server = RpcServer(
            "127.0.0.1", 0 if at is None else int(at.rpartition(":")[2]), security=member_of(), grace_s=0
        )
        server.serve(EchoGateway, implementation, fence)
        await server.start()
        self.servers.append(server)
        return server

    async def kill(self, host: Host) -> None:
        assert isinstance(host, RpcServer)
        await host.stop()

    def vacant_address(self) -> str:
        return "127.0.0.1:1"

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncGenerator[GrpcWorld]:
        world = cls()
        try:
            yield world
        finally:
            await world.client.close()
            for server in world.servers:
                await server.stop()


class SimulatedWorld:
    def __init__(self) -> None:
        self.network = SimulatedNetwork(random.Random(7))
        self.client: SimulatedProcess = self.network.process("client")
        self.started = 0

    async def start(
        self, implementation: EchoGateway, fence: Fence | None = None, at: str | None = None
    ) -> SimulatedProcess:
        self.started += 1
        process = self.network.process(at or f"server-{self.started}")
        process.serve(EchoGateway, implementation, fence)
        return process

    async def kill(self, host: Host) -> None:
        assert isinstance(host, SimulatedProcess)
        host.crash()

    def vacant_address(self) -> str:
        return "nowhere"

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncGenerator[SimulatedWorld]:
        yield cls()


Runner = Callable[[Coroutine[Any, Any, None]], None]
TRANSPORTS: list[tuple[Runner, Callable[[], AbstractAsyncContextManager[World]]]] = [
    (asyncio.run, GrpcWorld.opened),
    (run_virtual, SimulatedWorld.opened),
]


def contract(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run `test` once on each transport."""

    @pytest.mark.parametrize(("run", "opened"), TRANSPORTS, ids=["grpc", "simulated"])
    def on_transport(run: Runner, opened: Callable[[], AbstractAsyncContextManager[World]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), opened() as world:
                await test(world)

        run(main())

    on_transport.__name__ = test.__name__
    on_transport.__doc__ = test.__doc__
    return on_transport


async def error_of(call: Coroutine[Any, Any, object]) -> FlintlockError:
    with pytest.raises(FlintlockError) as caught:
        await call
    return caught.value


# Answers


@contract
async def test_message_and_answer_arrive_whole(world: World) -> None:
    host = await world.start(Echo())
    echo = world.client.connect(EchoGateway, host.address)

    assert await echo.echo(Ask(number=3, words=("a", "ü"))) == Answer(number=3, words=frozenset({"a", "ü"}))


@contract
async def test_the_callers_cause_is_the_handlers(world: World) -> None:
    class Remembering(Echo):
        def __init__(self) -> None:
            super().__init__()
            self.causes: list[CauseId | None] = []

        async def touch(self) -> None:
            self.causes.append(current_cause())

    implementation = Remembering()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address, lambda: TOKEN)
    with caused_by(CauseId("request-1")):
        await echo.touch()
    with caused_by(CauseId("request-2")):
        await echo.touch()
    await echo.touch()

    assert implementation.causes == ["request-1", "request-2", None]


@contract
async def test_optional_answer_may_be_there_or_not(world: World) -> None:
    echo = world.client.connect(EchoGateway, (await world.start(Echo())).address)

    assert await echo.find(Ask(number=1)) == Answer(number=1)
    assert await echo.find(Ask(number=-1)) is None


@contract
async def test_methods_without_argument_or_answer(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)

    assert await echo.touch() is None  # type: ignore[func-returns-value]
    assert await echo.note(Ask(number=2)) is None  # type: ignore[func-returns-value]
    assert implementation.calls == ["touch", "note 2"]
    assert await echo.count() == Answer(number=2)


@contract
async def test_message_may_be_named(world: World) -> None:
    echo = world.client.connect(EchoGateway, (await world.start(Echo())).address)

    assert await echo.echo(message=Ask(number=4)) == Answer(number=4)


@contract
async def test_calls_run_side_by_side(world: World) -> None:
    """Fifty calls that wait for each other all get through, each with its own answer."""
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)

    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(echo.echo(Ask(number=n))) for n in range(50)]
        for n in range(50):
            tasks.create_task(echo.hold(Ask(number=n)))
        await implementation.until(lambda: implementation.holding == 50)
        implementation.released.set()

    assert [answer.result().number for answer in answers] == list(range(50))
    assert sorted(implementation.finished) == list(range(50))


# Errors


@contract
async def test_every_error_of_the_model_keeps_its_class_and_text(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FlintlockError)]
    assert len(kinds) > 8

    for kind in kinds:
        implementation.fail_with = kind(f"no {kind.__name__}: ünknown\n" + "x" * 20_000)
        with structlog.testing.capture_logs():
            caught = await error_of(echo.echo(Ask(number=1)))

        assert type(caught) is kind
        assert caught.public == implementation.fail_with.public


@contract
async def test_public_facts_of_an_error_travel_with_it(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)

    implementation.fail_with = duplicate = DuplicateJob("in use")
    duplicate.globally_terminated = True
    caught = await error_of(echo.echo(Ask(number=1)))
    assert isinstance(caught, DuplicateJob)
    assert caught.globally_terminated

    implementation.fail_with = Invalid("two problems", ("a: missing", "b: empty"))
    caught = await error_of(echo.echo(Ask(number=1)))
    assert isinstance(caught, Invalid)
    assert caught.problems == ("a: missing", "b: empty")


class OutOfSlots(Conflict):
    """A kind of error that only the server knows."""


@contract
async def test_unknown_kind_of_error_arrives_as_its_nearest_known_ancestor(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)
    implementation.fail_with = OutOfSlots("none left")

    assert type(await error_of(echo.echo(Ask(number=1)))) is Conflict


@contract
async def test_peer_that_could_not_reach_its_own_peer_is_itself_reachable(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)
    implementation.fail_with = unavailable = Unavailable("no store")
    unavailable.unreachable = True

    caught = await error_of(echo.echo(Ask(number=1)))

    assert isinstance(caught, Unavailable)
    assert not caught.unreachable


@contract
async def test_bug_in_a_handler_is_logged_there_and_hidden_from_the_caller(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)
    implementation.fail_with = KeyError("the password is swordfish")

    with structlog.testing.capture_logs() as logs:
        caught = await error_of(echo.echo(Ask(number=1)))

    assert type(caught) is InvariantBroken
    assert "EchoGateway.echo" in caught.public
    assert "swordfish" not in caught.public
    assert [(line["event"], line["method"], line["exc_info"]) for line in logs] == [
        ("rpc-handler-failed", "EchoGateway.echo", True)
    ]


@contract
async def test_unknown_method_is_refused_by_name(world: World) -> None:
    host = await world.start(Echo())

    caught = await error_of(world.client.connect(RicherEcho, host.address).shout(Ask(number=1)))

    assert type(caught) is Refused
    assert "'shout'" in caught.public


@contract
async def test_message_of_another_shape_is_refused_naming_the_field(world: World) -> None:
    implementation = Echo()
    host = await world.start(implementation)

    caught = await error_of(world.client.connect(SpellingEcho, host.address).echo(Spelled(number="seven")))

    assert isinstance(caught, Refused)
    assert "$.number" in caught.public
    assert not implementation.calls


@contract
async def test_gateway_not_served_there_may_come_later(world: World) -> None:
    """A reachable process that does not, or no longer, serve a gateway is worth asking again."""
    host = await world.start(Echo())
    other = world.client.connect(OtherGateway, host.address)

    caught = await error_of(other.other())
    assert isinstance(caught, Unavailable)
    assert not caught.unreachable

    class Other:
        async def other(self) -> None: ...

    withdraw = host.serve(OtherGateway, Other())
    await other.other()
    withdraw()
    withdraw()
    assert isinstance(await error_of(other.other()), Unavailable)


@contract
async def test_one_address_serves_a_gateway_once(world: World) -> None:
    host = await world.start(Echo())
    with pytest.raises(ValueError, match="EchoGateway is served"):
        host.serve(EchoGateway, Echo())


@contract
async def test_wrong_message_is_the_callers_bug_and_does_not_travel(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)

    with pytest.raises(TypeError, match=r"EchoGateway\.echo takes Ask, not Answer"):
        await echo.echo(Answer(number=1))  # type: ignore[arg-type]
    assert not implementation.calls


# Fencing


@contract
async def test_fence_receives_the_token_of_each_call(world: World) -> None:
    tokens: list[FencingToken | None] = []
    host = await world.start(Echo(), fence=tokens.append)
    current: list[FencingToken | None] = [TOKEN]
    echo = world.client.connect(EchoGateway, host.address, token=lambda: current[0])

    await echo.touch()
    current[0] = FencingToken(epoch=Epoch(8), session="other")
    await echo.touch()
    current[0] = None
    await echo.touch()
    await world.client.connect(EchoGateway, host.address).touch()

    assert tokens == [TOKEN, FencingToken(epoch=Epoch(8), session="other"), None, None]


@contract
async def test_fenced_call_reaches_no_handler_and_is_not_even_read(world: World) -> None:
    implementation = Echo()

    def fence(token: FencingToken | None) -> None:
        raise Fenced(f"not epoch {token.epoch if token else None}")

    host = await world.start(implementation, fence=fence)

    caught = await error_of(world.client.connect(EchoGateway, host.address, token=lambda: TOKEN).echo(Ask(number=1)))
    assert type(caught) is Fenced
    assert caught.public == "not epoch 7"
    unreadable = world.client.connect(SpellingEcho, host.address).echo(Spelled(number="seven"))
    assert type(await error_of(unreadable)) is Fenced
    assert not implementation.calls


@contract
async def test_nothing_runs_between_the_fence_and_the_handlers_first_step(world: World) -> None:
    """Many calls at once: each fence check is followed by its own handler, never by another call's check."""
    implementation = Echo()
    host = await world.start(implementation, fence=lambda _: implementation.calls.append("fence"))
    echo = world.client.connect(EchoGateway, host.address)

    await asyncio.gather(*(echo.echo(Ask(number=n)) for n in range(30)))

    assert implementation.calls == ["fence", "echo"] * 30


# Absence


@contract
async def test_refused_connection_is_unreachable(world: World) -> None:
    caught = await error_of(world.client.connect(EchoGateway, world.vacant_address()).touch())

    assert isinstance(caught, Unavailable)
    assert caught.unreachable
    assert caught.retryable
    assert world.vacant_address() in caught.public


@contract
async def test_deadline_is_unavailable_but_not_unreachable(world: World) -> None:
    host = await world.start(Echo())
    started = asyncio.get_running_loop().time()

    caught = await error_of(world.client.connect(EchoGateway, host.address, timeout_s=0.3).hold(Ask(number=1)))

    assert isinstance(caught, Unavailable)
    assert not caught.unreachable
    assert "within 0.3 s" in caught.public
    assert 0.25 < asyncio.get_running_loop().time() - started < 5


@contract
async def test_caller_may_end_a_call_sooner(world: World) -> None:
    host = await world.start(Echo())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await world.client.connect(EchoGateway, host.address).hold(Ask(number=1))


@contract
async def test_call_that_has_begun_is_carried_out_though_its_caller_gave_up(world: World) -> None:
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(echo.hold(Ask(number=5)))
        await implementation.until(lambda: implementation.holding == 1)
        call.cancel()
    await echo.count()  # by now the server knows that the caller is gone
    implementation.released.set()

    await implementation.until(lambda: implementation.finished == [5])
    assert call.cancelled()


@contract
async def test_server_that_ends_during_a_call_breaks_it(world: World) -> None:
    """The call may have been carried out, so it is not `unreachable`; the next one is."""
    implementation = Echo()
    host = await world.start(implementation)
    echo = world.client.connect(EchoGateway, host.address)

    async with asyncio.TaskGroup() as tasks:
        broken = tasks.create_task(error_of(echo.hold(Ask(number=1))))
        await implementation.until(lambda: implementation.holding == 1)
        await world.kill(host)

    caught = broken.result()
    assert isinstance(caught, Unavailable)
    assert not caught.unreachable
    caught = await error_of(echo.touch())
    assert isinstance(caught, Unavailable)
    assert caught.unreachable
    assert not implementation.finished


@contract
async def test_restarted_server_is_reached_again_at_once(world: World) -> None:
    """Even after enough refusals to have made gRPC's own back-off long."""
    host = await world.start(Echo())
    echo = world.client.connect(EchoGateway, host.address)
    await echo.touch()
    await world.kill(host)
    loop = asyncio.get_running_loop()
    until = loop.time() + 3
    while loop.time() < until:
        caught = await error_of(echo.touch())
        assert isinstance(caught, Unavailable)
        await asyncio.sleep(0.05)  # the time that passes is the subject

    successor = Echo()
    await world.start(successor, at=host.address)
    back = loop.time()
    async with asyncio.timeout(2):
        while not successor.calls:
            try:
                await echo.touch()
            except Unavailable:
                await asyncio.sleep(0.01)

    assert loop.time() - back < 1


@contract
async def test_not_found_is_still_a_refusal(world: World) -> None:
    """Callers may branch on the ancestors of what arrives."""
    implementation = Echo()
    echo = world.client.connect(EchoGateway, (await world.start(implementation)).address)
    implementation.fail_with = NotFound("job 1")
    with pytest.raises(Refused):
        await echo.echo(Ask(number=1))
