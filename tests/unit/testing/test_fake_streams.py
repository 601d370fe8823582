"""Simulated queries continue where their checkpoint ends, and write each batch once, wherever they were interrupted."""

from __future__ import annotations

import pytest

from flintlock.testing.fakes.fake_streams import FakeQuery, batches, latest

PLACES = ("checkpoints/1/files-v1", "streams/1/files-v1")


def query(content: dict[str, str], attempt: str) -> FakeQuery:
    return FakeQuery(content, *PLACES, attempt)


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_query_that_was_interrupted_at_any_step_is_continued_with_the_same_batch(steps: int) -> None:
    content: dict[str, str] = {}
    first = query(content, "first")
    for _ in range(steps):
        first.step()
    planned = latest(content, f"{PLACES[0]}/offsets")
    complete = first.is_complete
    second = query(content, "second")
    second.step()

    assert complete == (steps % 3 == 0)
    assert latest(content, f"{PLACES[0]}/offsets") == (planned + 1 if complete else planned)
    while not second.is_complete:
        second.step()
    for log in (f"{PLACES[0]}/offsets", f"{PLACES[0]}/commits", PLACES[1]):
        assert batches(content, log) == list(range(latest(content, log) + 1))
    assert content[f"{PLACES[1]}/0"] == ("first" if steps >= 2 else "second"), "a batch that is there stays as it is"


def test_a_log_without_a_batch_ends_before_the_first() -> None:
    assert latest({}, "checkpoints/1/files-v1/offsets") == -1
    assert batches({"checkpoints/1/files-v10/offsets/3": ""}, "checkpoints/1/files-v1/offsets") == []
