"""The two backends that a region can run on: a session of the shared engine's Connect server, or a dedicated driver.

Everything that differs between them is here, so that `plan` and `batch` use one interface. Connect decides the speed:
each round trip to the engine costs milliseconds, so a query over views is built as one relation that carries its
views (no call at all until it is used), and rows come back with their schema in the one call that executes.

Rejected for Connect: `spark.sql`, which makes a round trip to learn whether its text is a command, and temporary
views, one round trip each. A relation that carries its views has a pitfall: the server makes the views before it runs
the query and drops them afterwards, so the views of an inner query, if it is resolved later, drop those of the same
name around it. Resolving the later steps first avoids that: a step's own query only ever names earlier ones.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import quote, unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.metrics import PlanMetrics
from pyspark.sql.types import StructType

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.jobgraph import Scalar
from flintlock.model.tasks import FailureKind, TaskMetrics
from flintlock.spark.engine.metrics import count, flush_events, job_ids
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.progress import Progress
from flintlock.spark.region.rows import ArrowTable

#: Retries of a call to a lost engine before the task fails. Few: the engine is on the same host, and its TaskManager
#: detects its end.
RETRIES: Final = 5
_STATIC: Final = frozenset({"CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG"})
#: The nodes of a physical plan whose output Spark counts as read.
_READS: Final = re.compile(r"(?:Batch|Columnar)?Scan |Range\b")
NamedFrame: TypeAlias = tuple[str, DataFrame]


class ResultTooLarge(Exception):
    """A result's rows take more bytes than the limit allows."""


class SparkBackend(Protocol):
    """One Spark session, on the shared engine or on a dedicated driver."""

    @property
    def spark(self) -> SparkSession:
        """The session itself, as user code gets it."""
        ...

    def configure(self, config: Mapping[str, str]) -> None:
        """Apply the settings that differ from the session's. Raises TaskError for one that Spark refuses."""
        ...

    def setting(self, key: str) -> str | None:
        """Return the value of a setting; None if it has none."""
        ...

    def sql(self, query: str, views: Sequence[NamedFrame], params: Mapping[str, Scalar]) -> DataFrame:
        """Return the query's rows; the views are in topological order."""
        ...

    def as_view(self, frame: DataFrame, name: str) -> DataFrame:
        """Return the same rows read from a view of this name, which is resolved once."""
        ...

    def rows(self, frame: DataFrame, max_bytes: int) -> tuple[ArrowTable, StructType]:
        """Execute, and return rows and schema. Raises ResultTooLarge."""
        ...

    def operation(self, frame: DataFrame) -> str | None:
        """Return Spark's id of the operation that last executed this frame, if there is one."""
        ...

    def take_write_metrics(self) -> TaskMetrics | None:
        """Return what was written since the last call; None if the TaskManager measures operations by their ids."""
        ...

    def interrupt(self) -> None:
        """Cancel the session's running operations; called from another thread."""
        ...


class ConnectBackend:
    """A session of a shared engine's Connect server."""

    def __init__(self, session: Any) -> None:
        self._session: Final = session
        self._config: Final[dict[str, str]] = {}  # what was set, so that it is not set twice
        self._progress: Progress | None = None  # set by watch

    @property
    def spark(self) -> SparkSession:
        """The session itself."""
        return self._session

    def configure(self, config: Mapping[str, str]) -> None:
        """Apply all settings in one round trip, or in none if nothing differs."""
        wanted = {key: value for key, value in config.items() if self._config.get(key) != value}
        if wanted:
            _apply(lambda: self._session.conf._set_all(wanted, silent=False))
            self._config.update(wanted)

    def setting(self, key: str) -> str | None:
        """Return the value of a setting; a round trip."""
        return self._session.conf.get(key, None)

    def watch(self, progress: Progress) -> None:
        """Register `progress` as the session's progress handler."""
        self._session.registerProgressHandler(progress)
        self._progress = progress

    def warm_up(self) -> None:
        """Make client and server build what a session needs once, before a task would wait for it.

        Resolving a query achieves that for a few milliseconds of CPU; running one costs many times as much and was
        measured to save the task nothing more.
        """
        self.sql("SELECT 1", (), {}).schema  # noqa: B018 - resolving it is the point

    def sql(self, query: str, views: Sequence[NamedFrame], params: Mapping[str, Scalar]) -> DataFrame:
        """Return a relation that carries its views; the server is not called."""
        from pyspark.sql.connect import functions
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL, SubqueryAlias

        bound = {name: functions.lit(value) for name, value in params.items()}
        aliases = [SubqueryAlias(_plan(frame), name) for name, frame in reversed(views)]
        return ConnectFrame(SQL(query, [], bound, aliases), self._session)

    def as_view(self, frame: DataFrame, name: str) -> DataFrame:
        """Create a temporary view on the server and return a frame that reads it."""
        frame.createOrReplaceTempView(name)
        return self._session.read.table(name)

    def rows(self, frame: DataFrame, max_bytes: int) -> tuple[ArrowTable, StructType]:
        """Execute; raise as soon as the batches received exceed the limit."""
        from pyspark.sql.pandas import types

        client = self._session.client
        plan = _plan(frame)
        schema: StructType | None = None
        tables: list[ArrowTable] = []
        size = 0
        for part in _execute_plan(client, plan):
            match part:
                case StructType():
                    schema = part
                case pa.RecordBatch():
                    size += int(cast("Any", part).nbytes)
                    if size > max_bytes:
                        raise ResultTooLarge
                    tables.append(pa.Table.from_batches([part]))
                case PlanMetrics():
                    self._count(part)
                case _:
                    pass
        schema = schema if schema is not None else frame.schema
        arrow = cast("Any", types).to_arrow_schema(
            schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC"
        )
        return cast("ArrowTable", pa.concat_tables(tables).cast(arrow) if tables else arrow.empty_table()), schema

    def _count(self, node: PlanMetrics) -> None:
        """Add the rows and bytes that a node of an executed plan has read, if it is a scan."""
        if self._progress is not None and _READS.match(node.name):
            values = {str(one.name): int(one.value) for one in node.metrics}
            self._progress.add_read(values.get("numOutputRows", 0), values.get("filesSize", 0))

    def operation(self, frame: DataFrame) -> str | None:
        """Return the id of the frame's last ExecutePlan."""
        info = frame.executionInfo
        return info.operation_id if info is not None else None

    def take_write_metrics(self) -> TaskMetrics | None:
        """Return None: operations have ids, and the TaskManager's engine knows their numbers."""
        return None

    def modifiable(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return those of the settings that a running session can change: not those fixed when Spark starts."""
        return {key: value for key, value in config.items() if self._session.conf.isModifiable(key)}

    def interrupt(self) -> None:
        """Interrupt every operation of the session."""
        self._session.interruptAll()


class ClassicBackend:
    """The session of a job's dedicated driver."""

    def __init__(self, session: SparkSession) -> None:
        self._session: Final = session
        self._counted: Final[set[int]] = set()  # the Spark jobs that `take_write_metrics` has counted

    @property
    def spark(self) -> SparkSession:
        """The session itself."""
        return self._session

    def configure(self, config: Mapping[str, str]) -> None:
        """Do nothing: the driver was started with it."""

    def setting(self, key: str) -> str | None:
        """Return the value of a setting."""
        return self._session.conf.get(key, None)

    def sql(self, query: str, views: Sequence[NamedFrame], params: Mapping[str, Scalar]) -> DataFrame:
        """Create temporary views, then the query: calls into the same process tree, not round trips."""
        for name, frame in views:
            frame.createOrReplaceTempView(name)
        return self._session.sql(query, args=dict(params))

    def as_view(self, frame: DataFrame, name: str) -> DataFrame:  # noqa: ARG002 - the other backend needs it
        """Return the frame: a classic one is resolved when it is made."""
        return frame

    def rows(self, frame: DataFrame, max_bytes: int) -> tuple[ArrowTable, StructType]:
        """Execute and fetch all rows, then check their size. Instants are in UTC, as from Connect."""
        from pyspark.sql.pandas import types

        table = cast("ArrowTable", frame.toArrow())
        if table.nbytes > max_bytes:
            raise ResultTooLarge
        arrow = cast("Any", types).to_arrow_schema(
            frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC"
        )
        return table.cast(arrow), frame.schema

    def operation(self, frame: DataFrame) -> str | None:  # noqa: ARG002 - the other backend needs it
        """Return None: classic operations have no ids."""
        return None

    def take_write_metrics(self) -> TaskMetrics | None:
        """Return what the Spark jobs since the last call have written, as the driver counted it."""
        driver: Any = getattr(self._session.sparkContext, "_jsc").sc()  # noqa: B009 - py4j has no types
        flush_events(driver)
        new = [job for job in job_ids(driver) if job not in self._counted]
        self._counted.update(new)
        return count(driver, new)

    @property
    def counted(self) -> frozenset[int]:
        """The Spark jobs that `take_write_metrics` has counted."""
        return frozenset(self._counted)

    def interrupt(self) -> None:
        """Cancel every job."""
        self._session.sparkContext.cancelAllJobs()


def session_url(remote_url: str, key: SparkSessionKey) -> str:
    """Return the address of one session of the engine at `remote_url`."""
    address, _, parameters = remote_url.partition("/;")
    extra = f"{parameters.rstrip(';')};" if parameters else ""
    return f"{address.rstrip('/')}/;{extra}session_id={key.session_id};user_id={quote(key.user_id)}"


def connect_tokens(remote_url: str) -> tuple[str, ...]:
    """Return the token in the address of an engine, as it is and as it is quoted there."""
    quoted = remote_url.partition(f"authorization={quote('Bearer ')}")[2].partition(";")[0]
    return (quoted, unquote(quoted)) if quoted else ()


def open_session(remote_url: str, key: SparkSessionKey) -> ConnectBackend:
    """Return a session of the engine; nothing is sent yet. From then on it is PySpark's session in this process.

    `SPARK_REMOTE` names the engine and the user, not the session: user code that stops the session and makes another
    gets a new one, since a session's id cannot be used twice.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    url = session_url(remote_url, key)
    os.environ["SPARK_REMOTE"] = url.replace(f"session_id={key.session_id};", "")
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # `pyspark.sql` returns Connect's classes
    session = ConnectSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=1000)])
    atexit.unregister(getattr(session.client, "_on_exit"))  # noqa: B009 - the TaskManager releases the session
    return ConnectBackend(session)


def refused_setting(error: BaseException) -> TaskError:
    """Return the task error for a setting that Spark refused."""
    condition: str | None = getattr(error, "getCondition", lambda: None)()
    parameters: dict[str, str] = getattr(error, "getMessageParameters", lambda: None)() or {}
    text = str(error).partition("\n")[0]
    if condition in _STATIC:
        key = parameters.get("key", "").strip("\"'`") or "a setting"
        return TaskError(
            FailureKind.CONFIGURATION,
            f"{key} is fixed when a Spark application starts, and the shared engine is already running: "
            "set 'engine: dedicated' (--engine dedicated) to give the job a Spark driver of its own",
        )
    return TaskError(FailureKind.CONFIGURATION, f"Spark refuses the job's configuration: {text}")


def _apply(act: Callable[[], object]) -> None:
    """Call `act`, which changes settings. Raises TaskError if Spark refuses one."""
    from pyspark.errors import PySparkException

    try:
        act()
    except PySparkException as error:
        if getattr(getattr(error, "getGrpcStatusCode", lambda: None)(), "name", "") == "UNAVAILABLE":
            raise
        raise refused_setting(error) from error


def _execute_plan(client: Any, plan: Any) -> Iterator[object]:
    """Execute, and yield the server's responses: schema, batches, and the metrics of the plan.

    `SparkConnectClient.to_table_as_iterator` does the same, but does not return the metrics.
    """
    from pyspark.sql.connect.shell.progress import Progress as Bar

    request = client._execute_plan_request_with_metadata()
    request.plan.CopyFrom(plan.to_proto(client))
    with Bar(handlers=client._progress_handlers, operation_id=request.operation_id) as bar:
        yield from client._execute_and_fetch_as_iterator(request, plan.observations, bar)


def _plan(frame: Any) -> Any:
    return frame._plan
