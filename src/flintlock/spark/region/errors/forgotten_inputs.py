"""Recognises the commonest mistake in a graph: a query names a step that is not among the inputs of its own step."""

from __future__ import annotations

import re
from typing import Final

from msgspec import structs

from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Sql
from flintlock.model.tasks import Failure

_NAMED: Final = re.compile(r"The table or view ((?:`[^`]+`)(?:\.`[^`]+`)*) cannot be found")


def with_forgotten_input(failure: Failure, graph: JobGraph) -> Failure:
    """Return the failure with the remedy, if the table that was not found is a step that its query did not list."""
    if failure.error_class != "TABLE_OR_VIEW_NOT_FOUND" or failure.step is None:
        return failure
    named = _NAMED.search(failure.message)
    steps = {vertex.name.lower(): vertex for vertex in graph.vertices}
    own = steps.get(failure.step.lower())
    if named is None or own is None or not isinstance(own.operation, Sql):
        return failure
    forgotten = steps.get(named[1].rpartition(".")[2].strip("`").lower())
    if forgotten is None or not forgotten.has_output or forgotten.name in own.inputs or forgotten is own:
        return failure
    inputs = ", ".join((*own.inputs, forgotten.name))
    remedy = f"there is a step {str(forgotten.name)!r}, which is not an input of this one: add it (inputs: [{inputs}])"
    return structs.replace(failure, message=f"{remedy}\n{failure.message}")
