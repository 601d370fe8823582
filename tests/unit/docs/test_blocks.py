"""No shell block of the documentation is forgotten: it is run by a test, or listed with the reason why not."""

from __future__ import annotations

from tests.cluster.documented_blocks import FOLLOWED, NOT_RUN, other_blocks


def test_every_shell_block_is_run_or_has_a_reason_not_to_be() -> None:
    places = {place for place, _ in other_blocks()}
    assert places - FOLLOWED - NOT_RUN.keys() == set(), "run it, or say why it cannot be run"
    assert (FOLLOWED | NOT_RUN.keys()) - places == set(), "these are in no page any more"
    assert FOLLOWED.isdisjoint(NOT_RUN)
