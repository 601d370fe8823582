"""What protects the calls between the processes of a cluster, from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.entrypoints.process import ProcessSettings
from flintlock.rpc.authentication import CallSigner
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.security.cluster_secret import Purpose


def rpc_security(settings: ProcessSettings) -> RpcSecurity:
    """Return how calls are authenticated: with the cluster's secret."""
    return RpcSecurity(signer=CallSigner(settings.secret.key(Purpose.RPC)))


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
