"""What ends and launches of containers mean, in whichever order they come."""

from __future__ import annotations

import pytest

from flintlock.yarn.held_containers import Completion, HeldContainers
from flintlock.yarn.messages import ABORTED, Container, ContainerEnd

CONTAINER = Container(id="container_1_0001_01_000002", node="node:1", node_name="node")
STOPPED = -105


def end(exit_status: int) -> ContainerEnd:
    return ContainerEnd(id=CONTAINER.id, exit_status=exit_status)


@pytest.fixture
def held() -> HeldContainers:
    """Those of an application with one container, which is being launched."""
    made = HeldContainers()
    made.launch(CONTAINER)
    return made


def test_a_worker_that_ends_after_its_launch_is_reported(held: HeldContainers) -> None:
    assert held.launched(CONTAINER.id) is None
    assert held.complete(end(1)) == Completion(container=CONTAINER, worker_ended=True, failure_of_node=True)
    assert held.ids() == ()


def test_a_worker_that_ends_before_its_launch_is_confirmed_was_never_started(held: HeldContainers) -> None:
    """Whoever waits for its start is told so, and nobody else."""
    assert held.complete(end(1)) == Completion(container=CONTAINER, failure_of_node=True)
    assert held.launched(CONTAINER.id) == end(1)
    assert held.ids() == ()


@pytest.mark.parametrize("exit_status", [ABORTED, 1])
def test_a_launch_that_fails_after_the_container_has_ended_has_nothing_to_give_back(
    held: HeldContainers, exit_status: int
) -> None:
    """Its node was lost while the call was repeated."""
    meaning = held.complete(end(exit_status))
    assert meaning is not None
    assert not meaning.written_off, "no TaskManager can be expected to register"
    assert held.launch_failed(CONTAINER.id) == end(exit_status)
    assert held.ids() == ()


def test_a_container_that_ends_after_its_launch_has_failed_is_not_known(held: HeldContainers) -> None:
    assert held.launch_failed(CONTAINER.id) is None
    assert held.complete(end(ABORTED)) is None


def test_a_container_that_was_written_off_after_its_launch_is_silent_not_dead(held: HeldContainers) -> None:
    held.launched(CONTAINER.id)
    assert held.complete(end(ABORTED)) == Completion(container=CONTAINER, written_off=True)


@pytest.mark.parametrize("confirmed_first", [True, False])
def test_a_container_that_is_released_during_its_launch_ends_without_a_report(
    held: HeldContainers, confirmed_first: bool
) -> None:
    assert held.release(CONTAINER.id) == CONTAINER
    assert held.awaits_ends()
    if confirmed_first:
        assert held.launched(CONTAINER.id) is None
    assert held.complete(end(STOPPED)) == Completion(container=CONTAINER)
    if not confirmed_first:
        assert held.launched(CONTAINER.id) == end(STOPPED)
    assert not held.awaits_ends()
    assert held.release(CONTAINER.id) is None


def test_a_container_whose_launch_nobody_waits_for_any_more_is_the_next_leaders(held: HeldContainers) -> None:
    held.launch_abandoned(CONTAINER.id)
    assert held.ids() == (CONTAINER.id,)
    assert held.complete(end(1)) == Completion(container=CONTAINER, worker_ended=True, failure_of_node=True)


def test_a_container_is_taken_over_once() -> None:
    """YARN may hand it over with the registration and with a heartbeat; it may have been released in between."""
    held = HeldContainers()
    held.take_over(CONTAINER)
    held.release(CONTAINER.id)
    held.take_over(CONTAINER)
    assert held.complete(end(1)) == Completion(container=CONTAINER)
