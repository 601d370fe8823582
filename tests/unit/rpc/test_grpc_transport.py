"""What is particular to gRPC: headers, sizes, ports, channels, frozen peers. The rest is in the contract suite."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, ParamSpec, Protocol

import grpc
import pytest
from grpc import aio
from msgspec import Struct

from flintlock.model import errors
from flintlock.model.errors import Conflict, FlintlockError, Refused, TooLarge, Unavailable
from flintlock.rpc import wire
from flintlock.rpc.authentication import CallSigner
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.rpc.transport import MAX_CONCURRENT_CALLS
from flintlock.testing.members import member_of

P = ParamSpec("P")


class Text(Struct, frozen=True):
    text: str = ""
    repeat: int = 1


class EchoGateway(Protocol):
    async def say(self, message: Text) -> Text: ...

    async def wait(self) -> None: ...


class Echo:
    """Repeats the text it receives; `wait` returns once `go` is set."""

    def __init__(self) -> None:
        self.fail_with: FlintlockError | None = None
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        self.ended: list[str] = []

    async def say(self, message: Text) -> Text:
        if self.fail_with is not None:
            raise self.fail_with
        return Text(message.text * message.repeat)

    async def wait(self) -> None:
        self.waiting.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")


def real_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


@asynccontextmanager
async def served(
    *, grace_s: float = 0.5, limit: int = 1000, max_idle_channels: int = 64, max_calls: int = MAX_CONCURRENT_CALLS
) -> AsyncGenerator[tuple[RpcServer, Echo, RpcChannels]]:
    implementation = Echo()
    server = RpcServer("127.0.0.1", security=member_of(), grace_s=grace_s, max_message_bytes=limit, max_calls=max_calls)
    server.serve(EchoGateway, implementation)
    async with (
        server,
        RpcChannels(security=member_of(), max_message_bytes=limit, max_idle_channels=max_idle_channels) as channels,
    ):
        yield server, implementation, channels


def credential(server: RpcServer, path: str, request: bytes) -> tuple[str, str]:
    return wire.CREDENTIAL_HEADER, member_of().signer.sign(path, str(server.port), request)


async def raw_call(server: RpcServer, metadata: tuple[tuple[str, str], ...]) -> aio.AioRpcError:
    async with aio.insecure_channel(server.address) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary("/EchoGateway/wait")(
                b"\xc0", metadata=(*metadata, credential(server, "EchoGateway/wait", b"\xc0"))
            )
    return caught.value


# Headers


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ((), "the caller none"),
        ((("flintlock-protocol", "99"),), "the caller '99'"),
        ((("flintlock-protocol", "1"), ("flintlock-epoch", "7")), "malformed fencing token"),
        ((("flintlock-protocol", "1"), ("flintlock-session", "x")), "malformed fencing token"),
        ((("flintlock-protocol", "1"), ("flintlock-epoch", "-1"), ("flintlock-session", "x")), "malformed fencing"),
    ],
)
@real_time
async def test_headers_that_do_not_fit_are_refused_before_anything_runs(
    metadata: tuple[tuple[str, str], ...], complaint: str
) -> None:
    async with served() as (server, implementation, _):
        error = await raw_call(server, metadata)

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert complaint in (error.details() or "")
        assert not implementation.waiting.is_set()


@real_time
async def test_status_is_meaningful_to_tools_that_do_not_know_flintlock() -> None:
    async with served() as (server, implementation, _):
        implementation.fail_with = Conflict("it runs\nalready")
        async with aio.insecure_channel(server.address) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_unary("/EchoGateway/say")(
                    b"\x80", metadata=(*wire.headers(None), credential(server, "EchoGateway/say", b"\x80"))
                )

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "it runs\nalready"


def test_every_error_of_the_model_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FlintlockError)]

    for kind in kinds:
        assert kind is FlintlockError or any(issubclass(kind, known) for known, _ in wire.STATUS), kind
    for place, (kind, _) in enumerate(wire.STATUS):
        assert not any(issubclass(kind, earlier) for earlier, _ in wire.STATUS[:place]), f"{kind} is hidden"


# Sizes


@real_time
async def test_too_large_is_reported_with_its_size_in_both_directions() -> None:
    async with served(limit=1000) as (server, _, channels):
        echo = channels.connect(EchoGateway, server.address)

        with pytest.raises(TooLarge, match=r"the request of EchoGateway\.say has 1\d{3} bytes; at most 1000"):
            await echo.say(Text("x" * 1000))
        with pytest.raises(TooLarge, match=r"the answer of EchoGateway\.say has 1\d{3} bytes; at most 1000"):
            await echo.say(Text("x" * 100, repeat=10))
        assert await echo.say(Text("x" * 900)) == Text("x" * 900)


@real_time
async def test_receiver_with_a_lower_limit_refuses_as_well() -> None:
    async with served(limit=1000) as (server, _, _), RpcChannels(security=member_of()) as generous:
        echo = generous.connect(EchoGateway, server.address)

        with pytest.raises(TooLarge):
            await echo.say(Text("x" * 2000))
        assert await echo.say(Text("x")) == Text("x")


@real_time
async def test_tens_of_megabytes_pass_by_default() -> None:
    server = RpcServer("127.0.0.1", security=member_of())
    server.serve(EchoGateway, Echo())
    async with server, RpcChannels(security=member_of()) as channels:
        echo = channels.connect(EchoGateway, server.address)

        assert len((await echo.say(Text("x" * 20_000_000))).text) == 20_000_000


# Calls at once


@real_time
async def test_a_call_too_many_may_be_retried_and_one_too_large_may_not() -> None:
    """One status of gRPC means both. A caller whose call was too large would repeat it for ever."""
    async with served(max_calls=2) as (server, implementation, channels), RpcChannels(security=member_of()) as generous:
        echo = channels.connect(EchoGateway, server.address)
        async with asyncio.TaskGroup() as tasks:
            open_calls = [tasks.create_task(echo.wait()) for _ in range(2)]
            await implementation.waiting.wait()
            too_many = await refused_as_too_many(echo)
            implementation.go.set()
        assert all(call.done() for call in open_calls)
        assert "has too many calls open" in too_many.public
        assert not too_many.unreachable, "the peer is there: no leader takes it for dead"
        assert await echo.say(Text("again")) == Text("again")
        with pytest.raises(TooLarge):
            await generous.connect(EchoGateway, server.address).say(Text("x" * 2000))


async def refused_as_too_many(echo: EchoGateway) -> Unavailable:
    """Call until the server has as many calls open as it allows."""
    while True:
        try:
            await echo.say(Text("one more"))
        except Unavailable as error:
            return error


# Servers


@real_time
async def test_port_in_use_is_reported() -> None:
    async with served() as (server, _, _):
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{server.port}"):
            await RpcServer("127.0.0.1", server.port, security=member_of()).start()


@real_time
async def test_server_starts_once_and_stops_as_often_as_one_likes() -> None:
    server = RpcServer("127.0.0.1", security=member_of())
    await server.stop()
    async with server:
        with pytest.raises(RuntimeError, match="started already"):
            await server.start()
    await server.stop()


@real_time
async def test_ipv6() -> None:
    if not socket.has_ipv6 or not _can_bind_ipv6():
        pytest.skip("no IPv6 here")
    server = RpcServer("::1", security=member_of())
    server.serve(EchoGateway, Echo())
    async with server, RpcChannels(security=member_of()) as channels:
        assert server.address == f"[::1]:{server.port}"
        assert await channels.connect(EchoGateway, server.address).say(Text("x")) == Text("x")


def _can_bind_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@real_time
async def test_stopping_server_lets_running_calls_answer() -> None:
    async with served(grace_s=10) as (server, implementation, channels):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(channels.connect(EchoGateway, server.address).wait())
            await implementation.waiting.wait()
            tasks.create_task(server.stop())
            await asyncio.sleep(0)
            implementation.go.set()

        assert implementation.ended == ["done"]


@real_time
async def test_nothing_runs_on_after_stop() -> None:
    """Calls that do not end within the grace are cancelled, also those whose callers left long ago."""
    async with served(grace_s=0) as (server, implementation, channels):
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(channels.connect(EchoGateway, server.address).wait())
            await implementation.waiting.wait()
            call.cancel()

        await server.stop()

        assert implementation.ended == ["cancelled"]
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("rpc ")]


@real_time
async def test_implementation_that_lacks_a_method_is_not_served() -> None:
    class Mute:
        async def wait(self) -> None: ...

    with pytest.raises(TypeError, match="Mute has no method 'say' of EchoGateway"):
        RpcServer("127.0.0.1", security=member_of()).serve(EchoGateway, Mute())  # pyright: ignore[reportArgumentType]


# Channels


@real_time
async def test_closing_ends_calls_as_unavailable_and_not_by_cancelling_the_caller() -> None:
    async with served() as (server, implementation, channels):
        echo = channels.connect(EchoGateway, server.address)

        async def interrupted() -> None:
            with pytest.raises(Unavailable, match="closed during"):
                await echo.wait()

        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(interrupted())
            await implementation.waiting.wait()
            await channels.close()

        assert not call.cancelled()
        with pytest.raises(Unavailable, match="closed by this process"):
            await echo.wait()
        implementation.go.set()


@real_time
async def test_stand_ins_of_one_address_share_its_channel() -> None:
    async with served() as (server, _, channels):
        first, second = (channels.connect(EchoGateway, server.address) for _ in range(2))

        await first.say(Text("a"))
        await second.say(Text("b"))

        assert channels.open_channels == 1


@real_time
async def test_channels_to_addresses_that_are_no_longer_used_are_closed() -> None:
    async with served(max_idle_channels=4) as (server, echo, channels), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(channels.connect(EchoGateway, server.address).wait())
        await echo.waiting.wait()
        for port in range(1, 31):
            with pytest.raises(Unavailable):
                await channels.connect(EchoGateway, f"127.0.0.1:{port}").say(Text("x"))

        assert channels.open_channels == 5, "the one with a call, and four without"
        assert not waiting.done()
        echo.go.set()
        await waiting
        assert await channels.connect(EchoGateway, server.address).say(Text("x")) == Text("x")


@real_time
async def test_environments_proxy_is_not_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    async with served() as (server, _, channels):
        assert await channels.connect(EchoGateway, server.address).say(Text("x")) == Text("x")


@real_time
async def test_grpc_server_of_another_product_is_recognised() -> None:
    foreign = aio.server()
    port = foreign.add_insecure_port("127.0.0.1:0")
    await foreign.start()
    async with RpcChannels(security=member_of()) as channels:
        with pytest.raises(Refused, match="not a Flintlock process"):
            await channels.connect(EchoGateway, f"127.0.0.1:{port}").wait()
    await foreign.stop(None)


@real_time
async def test_peer_that_freezes_during_a_call_is_noticed_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays open and nothing comes back: pings find out."""
    monkeypatch.setattr(wire, "KEEPALIVE_TIME_S", 1.0)
    monkeypatch.setattr(wire, "KEEPALIVE_TIMEOUT_S", 0.5)
    async with served() as (server, _, channels), relay(server.port) as (port, thawed):
        monkeypatch.setattr(channels, "security", RpcSecurity(signer=_SignerForPort(server.port)))  # not the relay's
        echo = channels.connect(EchoGateway, f"127.0.0.1:{port}", timeout_s=20)
        await echo.say(Text("x"))
        started = asyncio.get_running_loop().time()

        thawed.clear()
        with pytest.raises(Unavailable) as caught:
            await echo.say(Text("y"))

        assert asyncio.get_running_loop().time() - started < 10
        assert not caught.value.unreachable
        thawed.set()


class _SignerForPort(CallSigner):
    """Signs calls that reach their server through another port."""

    def __init__(self, port: int) -> None:
        super().__init__(b"cluster".ljust(32, b"."))
        self._to: Final = str(port)

    def sign(self, path: str, port: str, request: bytes) -> str:
        return super().sign(path, self._to if port else port, request)


@asynccontextmanager
async def relay(target: int) -> AsyncGenerator[tuple[int, asyncio.Event]]:
    """Pass bytes on while the event is set; otherwise take them and keep them."""
    thawed = asyncio.Event()
    thawed.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await thawed.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        pumps.append(tasks.create_task(pump(reader, far_writer), name="pump"))
        pumps.append(tasks.create_task(pump(far_reader, writer), name="pump"))

    async with asyncio.TaskGroup() as tasks:
        pumps: list[asyncio.Task[None]] = []
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1], thawed
        finally:
            server.close()
            for task in pumps:
                task.cancel()
