"""REST beyond loopback: TLS is required, its certificate is renewed without a stop, and standbys forward with it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.rest.rest_harness import RestHarness

from flintlock.client.connection.credentials import ClientCredentials
from flintlock.client.connection.http import Http
from flintlock.config.configuration import Configuration
from flintlock.entrypoints.serving.rest_server import serving_rest
from flintlock.entrypoints.serving.rest_tls import ServerTls, rest_tls
from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model.errors import Invalid, Refused, Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.security.certificates import AUTHORITY, issue, make_authority
from flintlock.security.cluster_secret import ClusterSecret

SECRET_BYTES = b"a secret of these tests, 32 bytes"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def tls_settings(directory: Path) -> dict[str, str]:
    if not (directory / AUTHORITY).exists():
        make_authority(directory)
    member = issue(directory, ["node1"], directory / "node1")
    return {
        "rest.port": "0",
        "security.tls.certificate-file": str(member),
        "security.tls.ca-file": str(directory / AUTHORITY),
    }


@asynccontextmanager
async def serving(
    settings: dict[str, str], leaders: KnownLeader | None = None, *, leads: bool = True
) -> AsyncGenerator[str]:
    services = replace(
        RestHarness(**settings).services,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        registry=CollectorRegistry(),
    )
    leading = (lambda: Epoch(1)) if leads else (lambda: None)
    async with serving_rest(services, leading, leaders or KnownLeader(), ClusterSecret(SECRET_BYTES)) as url:
        while not await listens(url):  # noqa: ASYNC110 - uvicorn gives no other sign
            await asyncio.sleep(0.01)
        yield url


async def listens(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def answer(url: str, settings: dict[str, str], path: str = "/healthz") -> object:
    """What a client with these settings is answered."""
    with closing(client(url, settings)) as http:
        return await asyncio.to_thread(http.get, path, object)


def client(url: str, settings: dict[str, str]) -> Http:
    return Http([url], patience_s=0.0, timeout_s=5.0, credentials=ClientCredentials(Configuration(settings), Path("/")))


async def certificate_at(url: str) -> bytes | None:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()


def test_a_client_that_knows_the_authority_is_served_and_others_learn_what_to_do(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path)

    async def work() -> None:
        async with serving(settings) as url:
            assert url.startswith("https://127.0.0.1:")
            assert await answer(url, settings) is not None
            with pytest.raises(Unavailable, match=r"security\.tls\.ca-file"):
                await answer(url, {})

    run(work())


def test_an_authority_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"nowhere \(security\.tls\.ca-file\) cannot be used"):
        client("https://127.0.0.1:1", {"security.tls.ca-file": str(tmp_path / "nowhere")})


def test_versions_before_tls_1_2_and_plain_http_are_not_served(tmp_path: Path) -> None:
    async def work() -> None:
        settings = tls_settings(tmp_path)
        files = rest_tls(Configuration(settings), "127.0.0.1")
        assert files is not None
        assert ServerTls(files).context.minimum_version is ssl.TLSVersion.TLSv1_2
        async with serving(settings) as url:
            parts = urlsplit(url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not (await reader.read()).startswith(b"HTTP/")
            writer.close()

    run(work())


def test_a_renewed_certificate_is_used_for_new_connections_without_a_stop(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path)

    async def work() -> None:
        async with serving(settings) as url:
            before = await certificate_at(url)
            issue(tmp_path, ["node1"], tmp_path / "node1")
            while await certificate_at(url) == before:  # noqa: ASYNC110 - a handshake is the only sign
                await asyncio.sleep(0.05)
            assert await answer(url, settings) is not None

    run(work())


def test_a_standby_forwards_with_tls_and_trusts_only_the_clusters_authority(tmp_path: Path) -> None:
    ours, theirs = tls_settings(tmp_path / "ours"), tls_settings(tmp_path / "theirs")

    async def work() -> None:
        leaders = KnownLeader()
        async with serving(ours) as leader, serving(theirs) as foreign, serving(ours, leaders, leads=False) as standby:
            secret = tmp_path / "secret"
            secret.touch(0o600)
            secret.write_text(SECRET_BYTES.hex())
            known = {**ours, "security.secret-file": str(secret)}
            leaders.update(LeaderInfo(token=FencingToken(Epoch(1), "s"), rpc="", rest=leader))
            assert await answer(standby, known, "/overview") is not None
            leaders.update(LeaderInfo(token=FencingToken(Epoch(2), "s"), rpc="", rest=foreign))
            with pytest.raises(Unavailable):
                await answer(standby, known, "/overview")

    run(work())


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"rest.address": "0.0.0.0"}, "rest.address"), ({"rest.bind-address": "::"}, "rest.bind-address")],
)
def test_rest_beyond_loopback_needs_tls_and_the_message_has_the_two_commands(
    settings: dict[str, str], key: str
) -> None:
    async def work() -> None:
        with pytest.raises(Invalid, match=r"`flintlock certs init`, then `flintlock certs issue HOST`") as caught:
            async with serving({**settings, "rest.port": "0"}):
                pass
        assert caught.value.public.startswith(f"{key}: ")

    run(work())


def test_rest_beyond_loopback_starts_with_tls(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving({**tls_settings(tmp_path), "rest.bind-address": "0.0.0.0"}) as url:
            assert await listens(url)

    run(work())
