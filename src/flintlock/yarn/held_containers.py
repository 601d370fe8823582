"""The containers that YARN has given to this application, decided: what an end, and the outcome of a launch, mean.

Both may come first. A node that is lost completes its containers while the call that starts a process there is still
repeated, and a process may end before YARN confirms its start. A container that has completed during its launch was
never started, for those who wait for that: its end is reported to no other component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from flintlock.yarn.messages import Container, ContainerEnd


class Completion(Struct, frozen=True, kw_only=True):
    """What it means that a container has completed."""

    container: Container
    worker_ended: bool = False  # its TaskManager, which ran and was not released, has ended
    written_off: bool = False  # that TaskManager may run on: its heartbeats decide
    failure_of_node: bool = False


@dataclass
class _Held:
    container: Container
    is_released: bool = False


class HeldContainers:
    """The containers that have not completed. Equal calls in equal order give equal answers."""

    def __init__(self) -> None:
        self._held: Final[dict[str, _Held]] = {}
        self._launching: Final[dict[str, ContainerEnd | None]] = {}  # with what YARN has reported of it meanwhile

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all."""
        return tuple(self._held)

    def awaits_ends(self) -> bool:
        """Return whether one was released that has not completed."""
        return any(each.is_released for each in self._held.values())

    def take_over(self, container: Container) -> bool:
        """A container of an earlier attempt runs; return whether that is new. Idempotent."""
        is_new = container.id not in self._held
        self._held.setdefault(container.id, _Held(container))
        return is_new

    def launch(self, container: Container) -> None:
        """A container is being launched."""
        self._held[container.id] = _Held(container)
        self._launching[container.id] = None

    def launched(self, container_id: str) -> ContainerEnd | None:
        """The launch has succeeded. Return the end of the container, if that has come first."""
        return self._launching.pop(container_id)

    def launch_failed(self, container_id: str) -> ContainerEnd | None:
        """The launch has failed: the container is not held any more.

        Return its end, if that has come first: then YARN has taken it back by itself, and has reported its node.
        """
        self._held.pop(container_id, None)
        return self._launching.pop(container_id)

    def launch_abandoned(self, container_id: str) -> None:
        """Nobody waits for the outcome of the launch any more: the next leader expects the TaskManager to register."""
        self._launching.pop(container_id)

    def release(self, container_id: str) -> Container | None:
        """Expect the container to end; return it if it has not completed."""
        found = self._held.get(container_id)
        if found is None:
            return None
        found.is_released = True
        return found.container

    def complete(self, end: ContainerEnd) -> Completion | None:
        """Take the end of a container. None if it is not held: it was given back, or is one of an earlier attempt."""
        found = self._held.pop(end.id, None)
        if found is None:
            return None
        is_launching = end.id in self._launching
        if is_launching:
            self._launching[end.id] = end
        if found.is_released:
            return Completion(container=found.container)
        return Completion(
            container=found.container,
            worker_ended=end.is_known_to_have_ended and not is_launching,
            written_off=not end.is_known_to_have_ended and not is_launching,
            failure_of_node=end.is_failure_of_node,
        )
