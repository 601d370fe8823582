"""An ApplicationMaster's side of YARN over the bridge.

The token of the attempt is in the file that HADOOP_TOKEN_FILE_LOCATION names, which the NodeManager has set: the JVM
inherits it. While the ResourceManager of YARN is away, `heartbeat` blocks; the other calls must not wait behind it.
"""

from __future__ import annotations

from typing import Any, Final

from flintlock.model.errors import NotFound
from flintlock.spark.engine.metrics import JavaObject
from flintlock.yarn.bridge import YarnJvm
from flintlock.yarn.client_bridge import launch_context, size_record
from flintlock.yarn.messages import Allocation, Container, ContainerEnd, ContainerSize, FinalStatus, Launch, Registered

_PRIORITY: Final = 1  # one size of containers, hence one priority
_PROGRESS: Final = 0.5  # a cluster has none


class BridgedApplicationMaster:
    """An ApplicationMasterGateway. `close` it."""

    def __init__(self, yarn: YarnJvm) -> None:
        self._yarn: Final = yarn
        api = yarn.jvm.org.apache.hadoop.yarn.client.api
        self._requests_class: Final[JavaObject] = api.AMRMClient.ContainerRequest
        self._masters: Final[JavaObject] = api.AMRMClient.createAMRMClient()
        self._nodes: Final[JavaObject] = api.NMClient.createNMClient()
        for client in (self._masters, self._nodes):
            yarn.call(client.init, yarn.conf)
        self._nodes.cleanupRunningContainersOnStop(False)  # the next attempt takes them over
        for client in (self._masters, self._nodes):
            yarn.call(client.start)
        self._requested: Final[list[JavaObject]] = []  # requests that no allocation has answered yet
        self._allocated: Final[dict[str, JavaObject]] = {}  # containers in which nothing was started yet
        self._excluded: frozenset[str] = frozenset()  # hosts; written by `exclude`

    def close(self) -> None:
        """Close the connections to YARN. Containers run on."""
        for client in (self._nodes, self._masters):
            self._yarn.call(client.stop)

    def register(self, host: str, port: int, tracking_url: str) -> Registered:
        """See `ApplicationMasterGateway`."""
        answer: Any = self._yarn.call(self._masters.registerApplicationMaster, host, port, tracking_url)
        return Registered(containers=tuple(map(_container, answer.getContainersFromPreviousAttempts())))

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
            container = _container(found)
            self._allocated[container.id] = found
            allocated.append(container)
        return Allocation(
            allocated=tuple(allocated),
            recovered=tuple(map(_container, answer.getContainersFromPreviousAttempts() or ())),
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
            request = self._requests_class(size_record(self._yarn, size), None, None, priority)
            self._yarn.call(self._masters.addContainerRequest, request)
            self._requested.append(request)

    def _withdraw(self) -> None:
        self._yarn.call(self._masters.removeContainerRequest, self._requested.pop())

    def exclude(self, hosts: frozenset[str]) -> None:
        """See `ApplicationMasterGateway`."""
        added, removed = sorted(hosts - self._excluded), sorted(self._excluded - hosts)
        self._yarn.call(self._masters.updateBlacklist, added, removed)
        self._excluded = hosts

    def launch(self, container: Container, launch: Launch) -> None:
        """See `ApplicationMasterGateway`."""
        allocated = self._allocated.pop(container.id)
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

    def unregister(self, status: FinalStatus, diagnostics: str) -> None:
        """See `ApplicationMasterGateway`."""
        final = self._yarn.records.FinalApplicationStatus.valueOf(status.value)
        self._yarn.call(self._masters.unregisterApplicationMaster, final, diagnostics, "")


def _container(found: JavaObject) -> Container:
    return Container(id=str(found.getId()), node=str(found.getNodeId()))
