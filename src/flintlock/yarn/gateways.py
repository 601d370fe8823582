"""What Flintlock requires of YARN, as Protocols: the bridge implements them, and so do the fakes for tests.

All calls block. They raise Unavailable if YARN, or the bridge to it, cannot be reached, and Refused if YARN refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flintlock.yarn.messages import (
    Allocation,
    ApplicationReport,
    ApplicationSubmission,
    Container,
    ContainerSize,
    FinalStatus,
    Launch,
    Registered,
    StagedFile,
)


class YarnGateway(Protocol):
    """What a client asks of YARN."""

    def is_secure(self) -> bool:
        """Return whether the Hadoop configuration requires Kerberos."""
        ...

    def node_hosts(self) -> frozenset[str]:
        """Return the hosts of the nodes that run."""
        ...

    def queues(self) -> tuple[str, ...]:
        """Return the names of all queues, as a submission may name them."""
        ...

    def create_application(self) -> tuple[str, ContainerSize]:
        """Reserve an application id; return it with the size of the largest container there can be."""
        ...

    def submit(self, submission: ApplicationSubmission) -> None:
        """Submit an application; return once YARN has stored it."""
        ...

    def report(self, application_id: str) -> ApplicationReport:
        """Return what YARN knows of an application. Raises NotFound if that is nothing."""
        ...

    def kill(self, application_id: str) -> None:
        """Have YARN end all containers of an application. Idempotent."""
        ...


class StagingGateway(Protocol):
    """The staging directory of one application, on the file system that all machines share."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    def create(self) -> None:
        """Make it, for its owner only."""
        ...

    def put(self, name: str, source: Path) -> None:
        """Copy a local file into it, for its owner only; one of that name is replaced.

        Readers see all of it or none.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a small file. Raises NotFound if it is not there."""
        ...

    def files(self) -> tuple[StagedFile, ...]:
        """Return the files in it, without those of its directories."""
        ...

    def provided(self, url: str, at_most: int) -> tuple[StagedFile, ...]:
        """Return the files of another directory and of those in it, as provided ones, by their paths within it.

        No more than `at_most` are listed: each takes several calls. Raises NotFound if there is none.
        """
        ...

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        ...


class ApplicationMasterGateway(Protocol):
    """What an ApplicationMaster asks of YARN. One process registers once."""

    def register(self, host: str, port: int, tracking_url: str) -> Registered:
        """Register this attempt; return the containers of earlier ones that run."""
        ...

    def heartbeat(self, size: ContainerSize, wanted: int) -> Allocation:
        """Tell YARN that this attempt is alive, and request `wanted` containers in all, with those of earlier calls.

        Return what has happened since the last call. A container that is returned as allocated is no longer requested;
        one may also come for a request that this call withdraws. Raises Refused for requests that YARN can never serve.
        """
        ...

    def exclude(self, nodes: frozenset[str]) -> None:
        """Request no containers on the nodes with these names from now on, and on all others again."""
        ...

    def launch(self, container: Container, launch: Launch) -> None:
        """Start the process of a container that was allocated."""
        ...

    def stop(self, container: Container) -> None:
        """Have a container end. Its end is part of a later heartbeat."""
        ...

    def give_back(self, container: Container) -> None:
        """Return a container in which nothing was started, or whose node cannot be reached."""
        ...

    def check_bridge(self) -> None:
        """Return once the bridge answers, whether YARN does or not; for the time after the registration."""
        ...

    def end_bridge(self) -> None:
        """End the bridge at once, also one that hangs: all calls raise Unavailable from then on."""
        ...

    def unregister(self, status: FinalStatus, diagnostics: str) -> None:
        """End the application: YARN starts no other attempt and ends all containers."""
        ...
