"""Errors of a query whose state is that of another query: its steps have changed since the state was written.

Spark finds that out while it runs a batch, and reports it as it reports every batch that fails: an outer error says
that the query has ended, and only its text names the cause. Such a query fails with each restart.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Not those that Spark also reports of state that is damaged, or missing while storage is not complete: rows in another
#: format, and the missing directory of an operator.
_CONDITIONS: Final = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
)
_FOUND: Final = re.compile(
    rf"\[(?P<condition>{'|'.join(_CONDITIONS)})\] (?P<text>.*?)(?=\s*SQLSTATE: |\n\tat |$)", re.DOTALL
)
#: Spark's advice to read the state all the same, from which wrong results follow.
_ADVICE: Final = re.compile(r"\n?If you want to force running the query without schema validation.*", re.DOTALL)
_REMEDY: Final = (
    "The state of this query was written before its steps were changed, and does not fit any more: no restart helps."
    " Undo the change of its grouping, its aggregations or its state, or give the sink another uid, which begins"
    " without a state. What was saved stays in the checkpoint, and in savepoints"
)


class StateChange(NamedTuple):
    """Why a query cannot go on with its state."""

    condition: str  # Spark's name for it
    message: str  # with what to do


def state_change(message: str) -> StateChange | None:
    """Return what a message of Spark says of a state that does not fit; None if it is about something else."""
    found = _FOUND.search(message)
    if found is None:
        return None
    text = _ADVICE.sub("", found["text"]).strip()
    return StateChange(found["condition"], f"[{found['condition']}] {text}\n{_REMEDY}")
