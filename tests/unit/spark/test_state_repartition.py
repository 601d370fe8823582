"""A repartitioned state is compared with what it was before, on a session that only says how many rows it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from flintlock.spark.state_repartition import StateDiffers, repartition_state


class FakeSession:
    """A classic session: the rows of each store, before and after it was repartitioned."""

    def __init__(self, before: dict[tuple[int, str], int], after: dict[tuple[int, str], int]) -> None:
        self._rows = before
        self._after = after
        self.repartitioned: list[tuple[str, int]] = []

    def read(self) -> FakeReader:
        return FakeReader(self._rows)

    def streamingCheckpointManager(self) -> FakeSession:  # noqa: N802 - Spark's name
        return self

    def repartition(self, checkpoint: str, partitions: int, enforce: bool) -> None:
        assert enforce
        self.repartitioned.append((checkpoint, partitions))
        self._rows = self._after


class FakeReader:
    def __init__(self, rows: dict[tuple[int, str], int]) -> None:
        self._rows = rows
        self._options: dict[str, str] = {}

    def format(self, name: str) -> FakeReader:
        return self.option("format", name)

    def option(self, key: str, value: str) -> FakeReader:
        self._options[key] = value
        return self

    def load(self, checkpoint: str) -> FakeReader:
        assert checkpoint == "/copy"
        return self

    def collectAsList(self) -> list[FakeRow]:  # noqa: N802 - Spark's name
        assert self._options["format"] == "state-metadata"
        return [FakeRow({"operatorId": operator, "stateStoreName": name}) for operator, name in self._rows]

    def count(self) -> int:
        assert self._options["format"] == "statestore"
        return self._rows[int(self._options["operatorId"]), self._options["storeName"]]


class FakeRow(dict[str, Any]):
    def getAs(self, name: str) -> object:  # noqa: N802 - Spark's name
        return self[name]


def unreadable(*_: object) -> None:
    """What py4j raises of an exception in the JVM."""
    raise Py4JJavaError("no such option", SimpleNamespace(_target_id="o1", _gateway_client=None))


def test_a_state_that_cannot_be_read_as_a_table_is_repartitioned_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeReader, "count", unreadable)
    session = FakeSession({(0, "default"): 7}, {})
    repartition_state(session, "/copy", 3)
    assert session.repartitioned == [("/copy", 3)]


def test_a_state_that_can_no_longer_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession({(0, "default"): 7}, {(0, "default"): 7})
    counted = FakeReader.count

    def count(reader: FakeReader) -> int:
        if session.repartitioned:
            unreadable()
        return counted(reader)

    monkeypatch.setattr(FakeReader, "count", count)
    with pytest.raises(Py4JJavaError):
        repartition_state(session, "/copy", 3)


def test_a_state_with_all_of_its_rows_is_accepted() -> None:
    rows = {(0, "default"): 7, (1, "left-keyToNumValues"): 0}
    session = FakeSession(rows, dict(reversed(rows.items())))
    repartition_state(session, "/copy", 3)
    assert session.repartitioned == [("/copy", 3)]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({(0, "default"): 6, (1, "right"): 2}, "6 rows in the store 0/default, not 7 as before"),
        ({(0, "default"): 7}, "0 rows in the store 1/right, not 2 as before"),
        ({(0, "default"): 7, (1, "right"): 2, (2, "default"): 1}, "1 rows in the store 2/default, not 0 as before"),
    ],
)
def test_a_state_with_other_rows_is_refused(after: dict[tuple[int, str], int], message: str) -> None:
    session = FakeSession({(0, "default"): 7, (1, "right"): 2}, after)
    with pytest.raises(StateDiffers) as refused:
        repartition_state(session, "/copy", 3)
    assert str(refused.value) == f"the repartitioned state has {message}"
