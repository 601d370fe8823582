"""Gives the state of a query another number of partitions, and reads it back: a classic session does that, not Connect.

A query reads its state only when it has rows for a batch, which may be hours after it was started, and it has then
written to its log already that the batch is planned. So the state is read before a query is started on it.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError

#: Spark's option by which its repartition reads a store, whatever the operator keeps in it.
_WHOLE_STORE: Final = "internalOnlyReadAllColumnFamilies"


class StateDiffers(Exception):
    """A repartitioned state has other rows than the one that it was made of."""


def repartition_state(session: Any, checkpoint: str, partitions: int) -> None:
    """Repartition the state in a checkpoint that no query uses, as one more batch, and count its rows before and after.

    A state that Spark cannot read as a table before is not compared. Raises Py4JJavaError or StateDiffers: the
    checkpoint can then no longer be used.
    """
    try:
        before = _rows(session, checkpoint)
    except Py4JJavaError:
        before = None
    session.streamingCheckpointManager().repartition(checkpoint, partitions, True)
    if before is not None:
        check_rows(before, _rows(session, checkpoint))


def check_rows(before: dict[str, int], after: dict[str, int]) -> None:
    """Raise StateDiffers if a store has another number of rows than before, or is new or gone."""
    for store in sorted(before.keys() | after.keys()):
        if before.get(store) != after.get(store):
            found, former = after.get(store, 0), before.get(store, 0)
            raise StateDiffers(f"the repartitioned state has {found} rows in the store {store}, not {former} as before")


def _rows(session: Any, checkpoint: str) -> dict[str, int]:
    """Return how many rows each store has at the last batch, by operator and name; every row is read for that."""
    stores = session.read().format("state-metadata").load(checkpoint).collectAsList()
    found: dict[str, int] = {}
    for store in stores:
        operator, name = str(store.getAs("operatorId")), str(store.getAs("stateStoreName"))
        reader = session.read().format("statestore").option("operatorId", operator).option("storeName", name)
        found[f"{operator}/{name}"] = int(reader.option(_WHOLE_STORE, "true").load(checkpoint).count())
    return found
