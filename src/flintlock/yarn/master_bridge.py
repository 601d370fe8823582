"""An ApplicationMaster's side of YARN over the bridge.

The token of the attempt is in the file that HADOOP_TOKEN_FILE_LOCATION names, which the NodeManager has set: the JVM
inherits it. While the ResourceManager of YARN is away, `heartbeat` blocks; the other calls must not wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from flintlock.model.errors import NotFound, Unavailable
from flintlock.spark.engine.metrics import JavaObject
from flintlock.yarn.bridge import YarnJvm
from flintlock.yarn.client_bridge import launch_context, size_record
from flintlock.yarn.messages import Allocation, Container, ContainerEnd, ContainerSize, FinalStatus, Launch, Registered

_PRIORITY: Final = 1  # one size of containers, hence one priority
_PROGRESS: Final = 0.5  # a cluster has none
#: Whether YARN tells nodes of one host apart: then the names by which nodes are excluded have their ports.
_NAMES_HAVE_PORTS: Final = "yarn.scheduler.include-port-in-node-name"


class BridgedApplicationMaster:
    """An ApplicationMasterGateway, connected by `register`. `close` it.

    `jvm` waits for the bridge.
    """

    def __init__(self, jvm: Callable[[], YarnJvm]) -> None:
        self._jvm: Final = jvm
        self._yarn: Any = None  # this and the two clients are written by `register`
        self._masters: JavaObject = None
        self._nodes: JavaObject = None
        self._requested: Final[list[JavaObject]] = []  # requests that no allocation has answered yet
        self._allocated: Final[dict[str, JavaObject]] = {}  # containers in which nothing was started yet
        self._excluded: frozenset[str] = frozenset()  # names of nodes; written by `exclude`
        self._names_have_ports = False  # of nodes; written by `register`

    def close(self) -> None:
        """Close the connections to YARN, unless the bridge has ended. Containers run on."""
        if self._masters is not None:
            with suppress(Unavailable):
                for client in (self._nodes, self._masters):
                    self._yarn.call(client.stop)

    def register(self, host: str, port: int, tracking_url: str) -> Registered:
        """See `ApplicationMasterGateway`."""
        yarn = self._yarn = self._jvm()
        api = yarn.jvm.org.apache.hadoop.yarn.client.api
        nodes, masters = api.NMClient.createNMClient(), api.AMRMClient.createAMRMClient()
        nodes.cleanupRunningContainersOnStop(False)  # the next attempt takes them over
        for client in (nodes, masters):
            yarn.call(client.init, yarn.conf)
            yarn.call(client.start)
        self._nodes, self._masters = nodes, masters
        self._names_have_ports = bool(yarn.call(yarn.conf.getBoolean, _NAMES_HAVE_PORTS, False))
        answer: Any = self._yarn.call(self._masters.registerApplicationMaster, host, port, tracking_url)
        return Registered(containers=tuple(map(self._container, answer.getContainersFromPreviousAttempts())))

    def heartbeat(self, size: ContainerSize, wanted: int) -> Allocation:
        """See `ApplicationMasterGateway`."""
        self._request(size, wanted)
        try:
            answer: Any = self._yarn.call(self._masters.allocate, _PROGRESS)
        except NotFound:  # ApplicationAttemptNotFoundException: another attempt has taken over
            return Allocation(shut_down=True)
        allocated: list[Container] = []
        for found in answer.getAllocatedContainers():
            if self._requested:  # else the client requests another one in its place
                self._withdraw()
            container = self._container(found)
            self._allocated[container.id] = found
            allocated.append(container)
        return Allocation(
            allocated=tuple(allocated),
            recovered=tuple(map(self._container, answer.getContainersFromPreviousAttempts() or ())),
            completed=tuple(
                ContainerEnd(
                    id=str(status.getContainerId()),
                    exit_status=int(status.getExitStatus()),
                    diagnostics=str(status.getDiagnostics() or "").strip(),
                )
                for status in answer.getCompletedContainersStatuses()
            ),
            nodes=int(answer.getNumClusterNodes()),
            shut_down=answer.getAMCommand() is not None,
        )

    def _request(self, size: ContainerSize, wanted: int) -> None:
        """Have the next call to YARN request so many containers in all."""
        while len(self._requested) > wanted:
            self._withdraw()
        while len(self._requested) < wanted:
            priority = self._yarn.records.Priority.newInstance(_PRIORITY)
            requests: JavaObject = self._yarn.jvm.org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest
            request = requests(size_record(self._yarn, size), None, None, priority)
            self._yarn.call(self._masters.addContainerRequest, request)
            self._requested.append(request)

    def _withdraw(self) -> None:
        self._yarn.call(self._masters.removeContainerRequest, self._requested.pop())

    def exclude(self, nodes: frozenset[str]) -> None:
        """See `ApplicationMasterGateway`."""
        added, removed = sorted(nodes - self._excluded), sorted(self._excluded - nodes)
        self._yarn.call(self._masters.updateBlacklist, added, removed)
        self._excluded = nodes

    def launch(self, container: Container, launch: Launch) -> None:
        """See `ApplicationMasterGateway`."""
        allocated = self._allocated.pop(container.id, None)
        if allocated is None:
            raise Unavailable("it was given back")
        self._yarn.call(self._nodes.startContainer, allocated, launch_context(self._yarn, launch))

    def stop(self, container: Container) -> None:
        """See `ApplicationMasterGateway`."""
        records = self._yarn.records
        self._yarn.call(
            self._nodes.stopContainer,
            records.ContainerId.fromString(container.id),
            records.NodeId.fromString(container.node),
        )

    def give_back(self, container: Container) -> None:
        """See `ApplicationMasterGateway`."""
        self._allocated.pop(container.id, None)
        self._yarn.call(self._masters.releaseAssignedContainer, self._yarn.records.ContainerId.fromString(container.id))

    def check_bridge(self) -> None:
        """See `ApplicationMasterGateway`."""
        self._yarn.check()

    def end_bridge(self) -> None:
        """See `ApplicationMasterGateway`."""
        self._yarn.kill()

    def unregister(self, status: FinalStatus, diagnostics: str) -> None:
        """See `ApplicationMasterGateway`."""
        final = self._yarn.records.FinalApplicationStatus.valueOf(status.value)
        self._yarn.call(self._masters.unregisterApplicationMaster, final, diagnostics, "")

    def _container(self, found: JavaObject) -> Container:
        return container_of(found, names_have_ports=self._names_have_ports)


def container_of(found: JavaObject, *, names_have_ports: bool) -> Container:
    """Return what a record of YARN says of a container."""
    node = str(found.getNodeId())
    return Container(id=str(found.getId()), node=node, node_name=node if names_have_ports else node.rpartition(":")[0])
