"""Writes tables of catalog plugins: those of `spark.sql.catalog.NAME`, all but Spark's own catalog.

`saveAsTable` names a format for each table that it creates, by default parquet. Catalogs whose tables have no such
format refuse that (JDBC), and where it replaces a table that is after they have dropped the old one. `writeTo` leaves
the format to the catalog; Spark's own catalog, and that of Hive, cannot be written by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flintlock.model.operations import Sink
from flintlock.model.operations.sink import SaveMode

_OWN: Final = "spark_catalog"


def is_plugin_table(table: str, setting: Callable[[str], str | None]) -> bool:
    """Return whether a table belongs to a catalog plugin. `setting` returns the value of a setting, or None."""
    catalog = table.replace("`", "").partition(".")[0]
    if catalog != table and setting(f"spark.sql.catalog.{catalog}") is not None:
        return catalog != _OWN
    return (setting("spark.sql.defaultCatalog") or _OWN) != _OWN


def write_plugin_table(frame: Any, sink: Sink, options: Mapping[str, str]) -> None:
    """Write to the table of a sink, with its mode. Raises what Spark raises."""
    writer = frame.writeTo(sink.table).options(**options)
    columns = [frame[name] for name in sink.partition_by]
    new = writer.partitionedBy(*columns) if columns else writer
    if sink.mode is SaveMode.OVERWRITE:
        new.createOrReplace()
    elif sink.mode is SaveMode.ERROR_IF_EXISTS or not frame.sparkSession.catalog.tableExists(sink.table):
        new.create()
    elif sink.mode is SaveMode.APPEND:
        frame.writeTo(sink.table).options(**options).append()
