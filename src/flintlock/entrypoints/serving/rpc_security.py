"""What protects the calls between the processes of a cluster, from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.config.configuration import Configuration, Option
from flintlock.config.options import TLS_AUTHORITIES, TLS_MEMBER
from flintlock.entrypoints.process import ProcessSettings
from flintlock.host.addresses import is_loopback_host
from flintlock.model.errors import Invalid
from flintlock.rpc.authentication import CallSigner
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.security.cluster_secret import Purpose
from flintlock.security.tls_files import TlsFiles


def rpc_security(settings: ProcessSettings, bound: str, option: Option[str]) -> RpcSecurity:
    """Return how calls are protected: signed with the cluster's secret, and in TLS connections if that is configured.

    `bound` is the address that the process listens on, as `option` sets it. Raises Invalid if others than this machine
    reach it and there is no TLS, Refused if the files of the certificate cannot be used.
    """
    tls = tls_files(settings.configuration)
    if tls is None and not is_loopback_host(bound):
        raise Invalid(f"{option.key}: {bound} is reached by other machines, and TLS is not configured: {HOW_TO_TLS}")
    return RpcSecurity(signer=CallSigner(settings.secret.key(Purpose.RPC)), tls=tls)


def tls_files(configuration: Configuration) -> TlsFiles | None:
    """Return the files of this machine's certificate; None without TLS. Raises Invalid, Refused."""
    member, authorities = configuration.get(TLS_MEMBER), configuration.get(TLS_AUTHORITIES)
    if not member:
        return None
    if not authorities:
        raise Invalid(f"{TLS_MEMBER.key} is set: {TLS_AUTHORITIES.key} has to be set as well ({TLS_AUTHORITIES.kind})")
    return TlsFiles(Path(member).expanduser(), Path(authorities).expanduser())


#: What an operator has to do before a process may listen beyond this machine.
HOW_TO_TLS: Final = (
    "run `flintlock certs init`, then `flintlock certs issue HOST` for each machine, and set"
    f" {TLS_MEMBER.key} and {TLS_AUTHORITIES.key}"
)


class UnauthenticatedCalls(Collector):
    """`flintlock_rpc_unauthenticated_calls_total` of one server."""

    def __init__(self, server: RpcServer) -> None:
        self._server: Final = server

    def collect(self) -> Iterable[Metric]:
        """Return the counter."""
        yield CounterMetricFamily(
            "flintlock_rpc_unauthenticated_calls",
            "RPCs that were refused because their caller is not a member of the cluster.",
            value=self._server.unauthenticated_calls,
        )
