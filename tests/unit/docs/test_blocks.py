"""No block of the documentation that can be run is forgotten: a test runs it, or it has a reason why not."""

from __future__ import annotations

from tests.cluster.documented_blocks import (
    FOLLOWED,
    NOT_RUN,
    OWN_CLUSTERS,
    PYTHON_NOT_RUN,
    RECIPES,
    other_blocks,
    python_blocks,
)


def test_every_shell_block_is_run_or_has_a_reason_not_to_be() -> None:
    places = [place for place, _ in other_blocks()]
    recipes = {("docs/dependencies.md", name) for name in RECIPES}
    listed = [*FOLLOWED, *OWN_CLUSTERS, *recipes, *NOT_RUN]
    assert set(places) - set(listed) == set(), "run it, or say why it cannot be run"
    assert set(listed) - set(places) == set(), "these are in no page any more"
    assert len(listed) == len(set(listed)), "run, or not run"


def test_every_python_block_is_run_or_has_a_reason_not_to_be() -> None:
    assert sorted(python_blocks()) == sorted(PYTHON_NOT_RUN)
