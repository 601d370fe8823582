"""A real server that serves only clients with a certificate and credentials, and znodes that others cannot use."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from tests.chaos.machines import SharedMachine
from tests.zookeeper.servers import Server, free_ports

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.jobmanager import clock_ms
from flintlock.ha.backends import ha_backend
from flintlock.ha.leader_info import LeaderAddresses, LeaderInfo
from flintlock.ha.protocols import HaServices
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.errors import Invalid, Refused, Unavailable
from flintlock.model.ids import JobId
from flintlock.security.certificates import AUTHORITY, issue, make_authority

pytestmark = pytest.mark.anyio
CREDENTIALS: Final = "high-availability.zookeeper.client.credentials-file"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Protected:
    """A server that demands TLS with certificates of its authority at one port, and digest credentials at both."""

    def __init__(self, home: Path) -> None:
        make_authority(home / "certs")
        member = issue(home / "certs", ["zookeeper"], home / "certs" / "zookeeper")
        self.authorities: Final = home / "certs" / AUTHORITY
        self.member: Final = issue(home / "certs", ["node1"], home / "certs" / "node1")
        plain, self.secure_port = free_ports(2)
        self.server: Final = Server(
            SharedMachine().machine(home / "server"),
            plain,
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"secureClientPort={self.secure_port}\nsecureClientPortAddress=127.0.0.1\n"
            f"ssl.keyStore.location={member}\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.authorities}\nssl.trustStore.type=PEM\n"
            "ssl.clientAuth=need\nssl.hostnameVerification=false\n"
            "enforce.auth.enabled=true\nenforce.auth.schemes=digest\n",
        )

    def configuration(self, credentials: Path | None, **changed: str) -> Configuration:
        settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": f"127.0.0.1:{self.secure_port}",
            "high-availability.zookeeper.client.connection-timeout": "5 s",
            "high-availability.zookeeper.client.tls": "true",
            "high-availability.cluster-id": "protected",
            "high-availability.storageDir": str(self.server.home / "ha"),
            "security.tls.certificate-file": str(self.member),
            "security.tls.ca-file": str(self.authorities),
            **({} if credentials is None else {CREDENTIALS: str(credentials)}),
            **changed,
        }
        return Configuration({key: value for key, value in settings.items() if value})


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    made = Protected(tmp_path_factory.mktemp("protected"))
    made.server.start()
    try:
        made.server.await_serving()
        yield made
    finally:
        made.server.kill()


def credentials(directory: Path, content: str = "flintlock:of the tests", mode: int = 0o600) -> Path:
    path = directory / f"credentials-{uuid.uuid4().hex}"
    path.touch(0o600)
    path.write_text(content)
    path.chmod(mode)
    return path


def services(configuration: Configuration) -> Any:
    async def answers(_: LeaderInfo) -> bool:
        return False

    return ha_backend(configuration).services(
        configuration,
        Path("/nowhere"),
        new_session=lambda: uuid.uuid4().hex,
        clock_ms=clock_ms,
        boot_time_s=boot_time_s,
        leader_answers=answers,
        is_blocked=lambda _: False,
    )


@contextmanager
def stranger(port: int, **arguments: Any) -> Generator[Any]:
    client: Any = KazooClient(hosts=f"127.0.0.1:{port}", **arguments)
    try:
        client.start(timeout=20)
        yield client
    finally:
        client.stop()
        client.close()


def znodes(client: Any, path: str) -> list[str]:
    return [path, *(found for name in client.get_children(path) for found in znodes(client, f"{path}/{name}"))]


async def use(ha: HaServices) -> None:
    """Lead, write and publish, as a JobManager does."""
    async for term in ha.election.terms():
        async with term as token:
            await ha.stores(token).progress.remove(JobId("a" * 32))
            await ha.stores(token).confirm_term()
            await ha.leader.publish(LeaderAddresses(rpc="one:1", rest="https://one:2").leads(token, confirmed=True))
            return


async def test_a_cluster_works_with_certificates_and_credentials_and_closes_every_znode(
    protected: Protected, tmp_path: Path
) -> None:
    own = credentials(tmp_path)
    configuration = protected.configuration(own)
    async with services(configuration) as ha:
        await use(ha)
        async with ha_backend(configuration).leader_finder(configuration, tmp_path):
            pass
        with stranger(protected.server.port, auth_data=[("digest", "flintlock:of the tests")]) as owner:
            paths = znodes(owner, "/flintlock/protected")
            assert len(paths) > 4
            for path in paths:
                acls, _ = owner.get_acls(path)
                assert {acl.id.scheme for acl in acls} == {"digest"}, path
        with stranger(protected.server.port, auth_data=[("digest", "stranger:x")]) as other:
            for path in paths:
                for method in ("get", "get_children", "delete"):
                    with pytest.raises(NoAuthError):
                        getattr(other, method)(path)
                with pytest.raises(NoAuthError):
                    other.set(path, b"")


@pytest.mark.parametrize(
    "changed",
    [
        {"high-availability.zookeeper.client.tls": "false"},
        {"security.tls.certificate-file": ""},
        {CREDENTIALS: ""},
    ],
    ids=["no TLS", "no certificate", "no credentials"],
)
async def test_the_server_refuses_whoever_lacks_one_of_them(
    protected: Protected, tmp_path: Path, changed: dict[str, str]
) -> None:
    with pytest.raises(Unavailable):
        async with services(protected.configuration(credentials(tmp_path), **changed)):
            pass


async def test_other_credentials_are_refused_with_the_option_that_names_them(
    protected: Protected, tmp_path: Path
) -> None:
    async with services(protected.configuration(credentials(tmp_path))):
        pass
    with pytest.raises(Unavailable, match=CREDENTIALS):
        async with services(protected.configuration(credentials(tmp_path, "other:password"))):
            pass


async def test_znodes_of_a_cluster_without_credentials_are_closed_when_it_gets_some(
    protected: Protected, tmp_path: Path
) -> None:
    changed = {"high-availability.cluster-id": "grown", "high-availability.zookeeper.path.root": "/shared"}
    own = credentials(tmp_path)
    async with services(protected.configuration(own, **changed, **{"high-availability.zookeeper.client.acl": "open"})):
        pass
    with stranger(protected.server.port, auth_data=[("digest", "stranger:x")]) as other:
        assert other.get("/shared/grown/epoch")
        async with services(protected.configuration(own, **changed)):
            pass
        with pytest.raises(NoAuthError):
            other.get("/shared/grown/epoch")


async def test_files_and_options_that_cannot_be_used_are_named(protected: Protected, tmp_path: Path) -> None:
    for file, complaint in (
        (tmp_path / "nowhere", "cannot be read"),
        (credentials(tmp_path, mode=0o644), "chmod 600"),
        (credentials(tmp_path, "no password"), "user:password"),
    ):
        with pytest.raises(Refused, match=complaint):
            async with services(protected.configuration(file)):
                pass
    with pytest.raises(Invalid, match=r"security\.tls\.ca-file has to be set"):
        async with services(protected.configuration(None, **{"security.tls.ca-file": ""})):
            pass
