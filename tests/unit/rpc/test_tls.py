"""Mutual TLS between members: who has no certificate of the cluster's authority is refused, and certificates rotate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from flintlock.config.configuration import Configuration
from flintlock.config.options import JM_BIND_HOST, TM_HOST
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.serving.rpc_security import rpc_security
from flintlock.gateways.leader import LeaderAnswer, LeaderGateway, LeaderLivenessProbe, TermEnd
from flintlock.model.errors import Invalid, Unavailable
from flintlock.rpc import wire
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.security.certificates import AUTHORITY, MEMBER, issue, make_authority
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.tls_files import TlsFiles
from flintlock.testing.members import member_of
from flintlock.testing.samples import TOKEN

PROBE = LeaderLivenessProbe(token=TOKEN)


class Leader:
    """A JobManager that stays in its term."""

    async def watch_liveness(self, message: LeaderLivenessProbe) -> TermEnd:
        await asyncio.get_running_loop().create_future()
        return TermEnd()

    async def check_liveness(self, message: LeaderLivenessProbe) -> LeaderAnswer:
        return LeaderAnswer(in_term=True)


def machine(directory: Path, name: str, clock_s: Callable[[], float] | None = None) -> RpcSecurity:
    """What the processes of a machine have, with a certificate of the authority in this directory."""
    issue(directory, [name], directory / name)
    files = (directory / name / MEMBER, directory / name / AUTHORITY)
    return RpcSecurity(signer=member_of().signer, tls=TlsFiles(*files, *(() if clock_s is None else (clock_s,))))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def serving(security: RpcSecurity) -> RpcServer:
    server = RpcServer("127.0.0.1", security=security, grace_s=0)
    server.serve(LeaderGateway, Leader())
    return server


def test_members_of_one_authority_reach_each_other(tmp_path: Path) -> None:
    make_authority(tmp_path)

    async def work() -> None:
        async with serving(machine(tmp_path, "a")) as server, RpcChannels(security=machine(tmp_path, "b")) as channels:
            assert (await channels.connect(LeaderGateway, server.address).check_liveness(PROBE)).in_term

    run(work())


def test_a_caller_without_a_certificate_is_refused_even_with_the_secret(tmp_path: Path) -> None:
    make_authority(tmp_path)

    async def work() -> None:
        async with serving(machine(tmp_path, "a")) as server:
            async with RpcChannels(security=member_of()) as plain:
                with pytest.raises(Unavailable):
                    await plain.connect(LeaderGateway, server.address, timeout_s=5).check_liveness(PROBE)
            trusting = grpc.ssl_channel_credentials((tmp_path / AUTHORITY).read_bytes())  # no certificate of its own
            path = "LeaderGateway/check_liveness"
            credential = member_of().signer.sign(path, str(server.port), b"\xc0")
            async with aio.secure_channel(server.address, trusting) as channel:
                with pytest.raises(aio.AioRpcError) as caught:
                    await channel.unary_unary(f"/{path}")(
                        b"\xc0", metadata=((wire.CREDENTIAL_HEADER, credential),), timeout=5
                    )
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    run(work())


def test_certificates_of_another_authority_are_refused_in_both_directions(tmp_path: Path) -> None:
    make_authority(tmp_path / "ours")
    make_authority(tmp_path / "theirs")

    async def work() -> None:
        for server_ca, client_ca in (("ours", "theirs"), ("theirs", "ours")):
            server = serving(machine(tmp_path / server_ca, "a"))
            async with server, RpcChannels(security=machine(tmp_path / client_ca, "b")) as channels:
                with pytest.raises(Unavailable, match="`flintlock certs issue`") as caught:
                    await channels.connect(LeaderGateway, server.address, timeout_s=5).check_liveness(PROBE)
                assert not caught.value.unreachable  # it is alive: nobody may declare it dead for that

    run(work())


def test_a_member_at_an_address_that_its_certificate_does_not_name_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path)

    async def work() -> None:
        server = serving(machine(tmp_path, "a"))
        async with server, RpcChannels(security=machine(tmp_path, "b")) as channels:
            gateway = channels.connect(LeaderGateway, f"127.0.0.2:{server.port}", timeout_s=5)
            with pytest.raises(Unavailable):
                await gateway.check_liveness(PROBE)

    run(work())


def test_certificates_and_authorities_rotate_without_a_stop_and_without_breaking_calls(tmp_path: Path) -> None:
    """New connections use the new certificates; a call that is open goes on over the old ones."""
    clock = [0.0]
    make_authority(tmp_path / "old")
    make_authority(tmp_path / "new")
    a, b = (machine(tmp_path / "old", name, lambda: clock[0]) for name in ("a", "b"))

    def replace(name: str, *authorities: str) -> None:
        """Write the certificate of the last authority, and trust all of them."""
        issue(tmp_path / authorities[-1], [name], tmp_path / "old" / name)
        trusted = b"".join((tmp_path / each / AUTHORITY).read_bytes() for each in authorities)
        (tmp_path / "old" / name / AUTHORITY).write_bytes(trusted)

    async def work() -> None:
        async with serving(a) as server, RpcChannels(security=b) as channels:
            gateway = channels.connect(LeaderGateway, server.address, timeout_s=30)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(gateway.watch_liveness(PROBE))
                await gateway.check_liveness(PROBE)
                for authorities in (("new", "old"), ("old", "new"), ("new",)):  # trust both, issue again, trust one
                    replace("a", *authorities)
                    replace("b", *authorities)
                    clock[0] += 2
                    assert (await gateway.check_liveness(PROBE)).in_term
                    async with RpcChannels(security=machine(tmp_path / authorities[-1], "c")) as fresh:
                        await fresh.connect(LeaderGateway, server.address, timeout_s=5).check_liveness(PROBE)
                async with RpcChannels(security=machine(tmp_path / "old", "d")) as stale:
                    with pytest.raises(Unavailable):
                        await stale.connect(LeaderGateway, server.address, timeout_s=5).check_liveness(PROBE)
                assert not watching.done()
                assert channels.open_channels == 1
                watching.cancel()
            await server.stop()
            restarted = RpcServer("127.0.0.1", server.port, security=a, grace_s=0)  # it trusts the new authority only
            restarted.serve(LeaderGateway, Leader())
            async with restarted:
                assert (await gateway.check_liveness(PROBE)).in_term

    run(work())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node1.example"])
def test_rpc_beyond_loopback_needs_tls_and_the_message_has_the_two_commands(tmp_path: Path, host: str) -> None:
    settings = ProcessSettings(state_dir=tmp_path, configuration=Configuration(), secret=ClusterSecret(b"s" * 32))

    for option in (JM_BIND_HOST, TM_HOST):
        with pytest.raises(Invalid, match=r"`flintlock certs init`, then `flintlock certs issue HOST`") as caught:
            rpc_security(settings, host, option)
        assert caught.value.public.startswith(f"{option.key}: {host}")
    assert rpc_security(settings, "127.0.0.1", TM_HOST).tls is None


def test_rpc_beyond_loopback_starts_with_tls(tmp_path: Path) -> None:
    make_authority(tmp_path)
    member = issue(tmp_path, ["node1"], tmp_path / "node1")
    settings = {"security.tls.certificate-file": str(member), "security.tls.ca-file": str(tmp_path / AUTHORITY)}
    secret = ClusterSecret(b"s" * 32)

    with_tls = ProcessSettings(state_dir=tmp_path, configuration=Configuration(settings), secret=secret)
    assert rpc_security(with_tls, "0.0.0.0", TM_HOST).tls is not None
    del settings["security.tls.ca-file"]
    half = ProcessSettings(state_dir=tmp_path, configuration=Configuration(settings), secret=secret)
    with pytest.raises(Invalid, match=r"security\.tls\.ca-file has to be set"):
        rpc_security(half, "127.0.0.1", TM_HOST)
