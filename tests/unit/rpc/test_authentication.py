"""Every RPC is refused without the cluster's credential, before anything of it is decoded or run."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from flintlock import gateways
from flintlock.entrypoints.serving.rpc_security import UnauthenticatedCalls
from flintlock.gateways.leader import LeaderGateway, LeaderLivenessProbe
from flintlock.model.errors import Refused, Unauthenticated
from flintlock.model.log_events import RPC_UNAUTHENTICATED
from flintlock.rpc import wire
from flintlock.rpc.authentication import MAX_AGE_S, CallSigner
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.description import MethodShape, describe
from flintlock.rpc.server import RpcServer
from flintlock.testing.members import member_of
from flintlock.testing.samples import TOKEN


def rpc_table() -> dict[str, tuple[type, MethodShape]]:
    """All methods of all gateways: those of a new gateway, too."""
    table: dict[str, tuple[type, MethodShape]] = {}
    for module in pkgutil.iter_modules(gateways.__path__):
        for name, kind in inspect.getmembers(importlib.import_module(f"{gateways.__name__}.{module.name}")):
            if name.endswith("Gateway") and inspect.isclass(kind):
                table |= {shape.path: (kind, shape) for shape in describe(kind).values()}
    return table


RPCS: Final = rpc_table()
SIGNER: Final = member_of().signer


class Untouched:
    """Fails the test when any of its methods is called."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        async def called(*_: object) -> None:
            raise AssertionError(f"{name} ran")

        return called


@asynccontextmanager
async def serving(gateway: type = LeaderGateway) -> AsyncGenerator[RpcServer]:
    server = RpcServer("127.0.0.1", security=member_of(), grace_s=0)
    server.serve(gateway, Untouched())
    async with server:
        yield server


async def call(server: RpcServer, path: str, credential: str | None, request: bytes = b"\xc0") -> grpc.StatusCode:
    headers = (*wire.headers(TOKEN), *(() if credential is None else ((wire.CREDENTIAL_HEADER, credential),)))
    async with aio.insecure_channel(server.address) as channel:
        try:
            await channel.unary_unary(f"/{path}")(request, metadata=headers, timeout=10)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_the_table_has_all_gateways_that_members_serve() -> None:
    assert {path.partition("/")[0] for path in RPCS} >= {
        "BlobGateway", "DispatcherGateway", "JobMasterGateway", "LeaderGateway", "ResourceManagerGateway",
        "TaskManagerGateway",
    }  # fmt: skip


@pytest.mark.parametrize("path", RPCS)
def test_every_rpc_is_refused_without_a_credential_and_with_that_of_another_cluster(path: str) -> None:
    async def run() -> None:
        async with serving(RPCS[path][0]) as server:
            for credential in (None, "", "nonsense", member_of("other").signer.sign(path, str(server.port), b"\xc0")):
                assert await call(server, path, credential) is grpc.StatusCode.UNAUTHENTICATED
            assert server.unauthenticated_calls == 4

    asyncio.run(run())


def test_a_credential_counts_for_its_method_its_port_its_request_and_its_time_only() -> None:
    path = "LeaderGateway/check_liveness"

    async def run() -> None:
        async with serving() as server:
            port = str(server.port)
            long_ago, ahead = (CallSigner(b"cluster".ljust(32, b"."), lambda at=at: at) for at in (0.0, 4e9))
            for credential in (
                SIGNER.sign("LeaderGateway/watch_liveness", port, b"\xc0"),
                SIGNER.sign(path, "1", b"\xc0"),
                SIGNER.sign(path, port, b"another request"),
                long_ago.sign(path, port, b"\xc0"),
                ahead.sign(path, port, b"\xc0"),
            ):
                assert await call(server, path, credential) is grpc.StatusCode.UNAUTHENTICATED
            own = SIGNER.sign(path, port, b"\xc0")
            assert await call(server, path, own) is grpc.StatusCode.INVALID_ARGUMENT  # it is decoded, and is no message

    asyncio.run(run())


def test_a_credential_is_valid_while_clocks_differ_by_less_than_the_limit() -> None:
    now = [1_000_000.0]
    signer = CallSigner(b"k" * 32, lambda: now[0])
    credential = signer.sign("A/b", "1", b"")

    now[0] += MAX_AGE_S
    signer.check(credential, "A/b", "1")
    now[0] += 1
    with pytest.raises(Unauthenticated, match="clock"):
        signer.check(credential, "A/b", "1")


def test_the_error_says_what_to_do_and_the_refusals_are_counted_and_logged_once() -> None:
    async def run() -> None:
        async with serving() as server, RpcChannels(security=member_of("other")) as channels:
            gateway = channels.connect(LeaderGateway, server.address)
            for _ in range(3):
                with pytest.raises(Unauthenticated, match=r"refuses .*security\.secret-file") as caught:
                    await gateway.check_liveness(LeaderLivenessProbe(token=TOKEN))
                assert isinstance(caught.value, Refused)  # an answer: a standby must not take it for silence
            registry = CollectorRegistry()
            registry.register(UnauthenticatedCalls(server))
            assert b"flintlock_rpc_unauthenticated_calls_total 3.0" in generate_latest(registry)

    with capture_logs() as logs:
        asyncio.run(run())

    lines = [line for line in logs if line["event"] == RPC_UNAUTHENTICATED]
    assert [line["method"] for line in lines] == ["LeaderGateway/check_liveness"]
    assert "cluster." not in str(lines)  # the key


def test_a_large_request_without_a_credential_is_never_received() -> None:
    """Refused by its headers: memory cannot be filled from outside."""

    async def run() -> None:
        async with serving() as server:
            request = b"x" * (1 << 20)
            codes = await asyncio.gather(
                *(call(server, "LeaderGateway/check_liveness", None, request) for _ in range(8))
            )
            assert set(codes) == {grpc.StatusCode.UNAUTHENTICATED}

    asyncio.run(run())
