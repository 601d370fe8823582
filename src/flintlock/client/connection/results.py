"""A job's result: the rows stored with it, fetched on first use, in the form that is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from flintlock.api.jobs import ResultColumn, ResultTable
from flintlock.model.errors import NotFound, Refused

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Row


class ResultHandle:
    """Rows of one result step. Nothing is fetched before it is needed, and nothing twice."""

    def __init__(self, name: str, fetch_table: Callable[[], ResultTable], fetch_arrow: Callable[[], bytes]) -> None:
        self.name: Final = name
        self._fetch_table: Final = fetch_table
        self._fetch_arrow: Final = fetch_arrow

    @cached_property
    def table(self) -> ResultTable:
        """The rows as JSON carries them: what JSON has no type for (dates, decimals) is text."""
        return self._fetch_table()

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        """Names and Spark types of the columns."""
        return self.table.columns

    @property
    def truncated(self) -> bool:
        """Whether there were more rows than the result's limit."""
        return self.table.truncated

    @cached_property
    def arrow_stream(self) -> bytes:
        """The rows as an Arrow IPC stream."""
        return self._fetch_arrow()

    def arrow(self) -> Any:
        """Return the rows as a `pyarrow.Table`. Raises Refused if PyArrow is not installed; `table` does without."""
        _require("pyarrow")
        import pyarrow as pa

        ipc: Any = pa.ipc
        with ipc.open_stream(self.arrow_stream) as reader:
            return reader.read_all()

    def pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame. Raises Refused if pandas or PyArrow is not installed."""
        _require("pandas", "pyarrow")
        return self.arrow().to_pandas()

    def rows(self) -> list[Row]:
        """Return the rows as PySpark Rows with Python's own types, converted from Arrow.

        Four types differ from what `DataFrame.collect` returns: a map is a list of pairs, a struct a dict, a timestamp
        has a time zone, and a variant is a dict of its bytes (`value`, `metadata`).

        Raises Refused if PySpark or PyArrow is not installed; `table` does without.
        """
        _require("pyspark", "pyarrow")
        from pyspark.sql import Row

        table = self.arrow()
        make = Row(*table.column_names)
        return [make(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]

    def fetch(self) -> ResultHandle:
        """Fetch both forms now: for a result that must outlive its cluster."""
        _ = self.table, self.arrow_stream
        return self

    def __repr__(self) -> str:
        return f"<result {self.name!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows. Fetches the rows."""
        from flintlock.client.display.html import result_html

        return result_html(self.table)


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " ".join(missing)
        raise Refused(f"this form of a result needs {names}, not installed here: pip install {names} (or read `table`)")


def only_name(names: tuple[str, ...]) -> str:
    """Return the only name there is. Raises NotFound if there is none, Refused if there are several."""
    if not names:
        raise NotFound("the job has no results")
    if len(names) > 1:
        raise Refused(f"the job has several results: name one of {', '.join(names)}")
    return next(iter(names))
