"""Refuses tables that would be lost: Spark's own catalog is in the memory of an engine, and ends with it.

A table that an engine forgets leaves its files behind, so that it can neither be read nor created again. So a table is
created only where a catalog is configured that outlives engines, and that all of them share. A program with a driver of
its own is excepted: its tables last as long as it does, as they do with spark-submit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flintlock.model.ids import StepName
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.plan_hook import statement_of
from flintlock.spark.region.sql_text import created_table

_REMEDY: Final = (
    "Configure a catalog for the cluster (spark.sql.catalog.NAME, or spark.sql.catalogImplementation: hive with a "
    "metastore), or write files to a path"
)


class TableRefused(TaskError):
    """A table would be created in a catalog that does not last."""


class LastingTables:
    """Checks the tables that one task creates. `setting` returns the value of a setting of its session, or None."""

    def __init__(self, setting: Callable[[str], str | None]) -> None:
        self._setting: Final = setting

    def check(self, table: str, step: StepName | None = None) -> None:
        """Raise TableRefused if a table of this name would be lost with its engine."""
        if not self._lasts(table):
            raise TableRefused(
                FailureKind.CONFIGURATION,
                f"the table {table!r} would be lost with its Spark engine, whose catalog is in memory. {_REMEDY}",
                step,
            )

    def check_plan(self, message: Any) -> None:
        """Raise TableRefused if a relation or command of Spark Connect creates a table that would be lost."""
        table = _created_by(message)
        if table is not None:
            self.check(table)

    def _lasts(self, table: str) -> bool:
        catalog = table.replace("`", "").partition(".")[0]
        if catalog != table and self._setting(f"spark.sql.catalog.{catalog}") is not None:
            return True
        default = self._setting("spark.sql.defaultCatalog") or "spark_catalog"
        return (
            default != "spark_catalog"
            or self._setting("spark.sql.catalog.spark_catalog") not in (None, "builtin")
            or self._setting("spark.sql.catalogImplementation") == "hive"
        )


def _created_by(message: Any) -> str | None:
    """Return the name of the table that a relation or command creates; None if it creates none."""
    match message.DESCRIPTOR.full_name, message.WhichOneof(message.DESCRIPTOR.oneofs[0].name):
        case "spark.connect.Command", "write_operation" if message.write_operation.HasField("table"):
            table = message.write_operation.table
            return table.table_name if table.save_method == table.TABLE_SAVE_METHOD_SAVE_AS_TABLE else None
        case "spark.connect.Command", "write_operation_v2":
            return message.write_operation_v2.table_name if message.write_operation_v2.mode in _CREATING else None
        case "spark.connect.Command", "sql_command":
            return created_table(statement_of(message.sql_command))
        case "spark.connect.Relation", "catalog":
            created = message.catalog.create_table if message.catalog.HasField("create_table") else None
            return created.table_name if created is not None else None
        case _:
            return None


_CREATING: Final = frozenset({1, 5, 6})  # MODE_CREATE, MODE_REPLACE, MODE_CREATE_OR_REPLACE
