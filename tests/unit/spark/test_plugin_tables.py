"""Tables of catalog plugins are written without naming a format, which not every catalog accepts."""

from __future__ import annotations

import pytest

from flintlock.model.operations import Sink
from flintlock.model.operations.sink import SaveMode
from flintlock.spark.region.plugin_tables import is_plugin_table, write_plugin_table


class Frame:
    """A DataFrame, its session, the catalog and the writer in one; remembers what it was asked for."""

    def __init__(self, *tables: str) -> None:
        self.calls: list[object] = []
        self.sparkSession = self.catalog = self
        self._tables = tables

    def tableExists(self, table: str) -> bool:  # noqa: N802
        return table in self._tables

    def writeTo(self, table: str) -> Frame:  # noqa: N802
        self.calls.append(table)
        return self

    def options(self, **options: str) -> Frame:
        self.calls.append(options)
        return self

    def partitionedBy(self, *columns: str) -> Frame:  # noqa: N802
        self.calls.append(columns)
        return self

    def __getitem__(self, name: str) -> str:
        return f"column {name}"

    def create(self) -> None:
        self.calls.append("create")

    def createOrReplace(self) -> None:  # noqa: N802
        self.calls.append("createOrReplace")

    def append(self) -> None:
        self.calls.append("append")


@pytest.mark.parametrize(
    ("table", "settings", "expected"),
    [
        ("db.public.t", {"spark.sql.catalog.db": "Jdbc"}, True),
        ("`db`.public.t", {"spark.sql.catalog.db": "Jdbc"}, True),
        ("db", {"spark.sql.catalog.db": "Jdbc"}, False),
        ("public.t", {"spark.sql.catalog.db": "Jdbc"}, False),
        ("public.t", {"spark.sql.defaultCatalog": "db"}, True),
        ("t", {"spark.sql.defaultCatalog": "spark_catalog"}, False),
        # A session catalog may have tables of Hive beside its own.
        ("spark_catalog.default.t", {"spark.sql.catalog.spark_catalog": "Delta"}, False),
        ("t", {"spark.sql.catalogImplementation": "hive"}, False),
    ],
)
def test_the_name_says_whose_table_it_is(table: str, settings: dict[str, str], *, expected: bool) -> None:
    assert is_plugin_table(table, settings.get) is expected


@pytest.mark.parametrize(
    ("mode", "exists", "written"),
    [
        (SaveMode.OVERWRITE, True, "createOrReplace"),
        (SaveMode.OVERWRITE, False, "createOrReplace"),
        (SaveMode.ERROR_IF_EXISTS, True, "create"),  # the catalog refuses it
        (SaveMode.ERROR_IF_EXISTS, False, "create"),
        (SaveMode.APPEND, True, "append"),
        (SaveMode.APPEND, False, "create"),
        (SaveMode.IGNORE, True, None),
        (SaveMode.IGNORE, False, "create"),
    ],
)
def test_each_mode_is_kept(mode: SaveMode, written: str | None, *, exists: bool) -> None:
    frame = Frame(*["db.t"] if exists else [])

    write_plugin_table(frame, Sink(table="db.t", mode=mode), {"batchsize": "10"})

    assert frame.calls[:2] == ["db.t", {"batchsize": "10"}]
    assert [call for call in frame.calls if call in ("create", "createOrReplace", "append")] == (
        [written] if written else []
    )


def test_a_new_table_is_partitioned() -> None:
    frame = Frame()
    write_plugin_table(frame, Sink(table="db.t", mode=SaveMode.OVERWRITE, partition_by=("a", "b")), {})
    assert frame.calls == ["db.t", {}, ("column a", "column b"), "createOrReplace"]
