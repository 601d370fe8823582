"""Users' jobs in users' tests: run on rows of the test's own, on one engine that stays warm.

Owns: an embedded cluster for many jobs, and what becomes of a job in a test: sources are given rows, and sinks return
theirs instead of writing them.
Rejected: a local Spark session without a cluster. A test would not see what the service does with a job: how its
functions are pickled, what its regions exchange, which step an error is blamed on.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import structs

from flintlock.client.authoring.package import UNSENT, JobPackage, Packable, given_overrides
from flintlock.client.clusters.local_cluster import EmbeddedCluster, embedded_cluster
from flintlock.client.connection.client import Client
from flintlock.client.running import JobRun
from flintlock.config.files import load
from flintlock.config.job_problems import job_problems
from flintlock.model.checking.graphcheck import in_order, invalid_job
from flintlock.model.checking.jobspec import JobSpec, StepSpec, draft_graph
from flintlock.model.checking.problems import reported
from flintlock.model.checking.suggestions import suggestion
from flintlock.model.errors import Refused
from flintlock.model.operations import MAX_RESULT_ROWS, ConfigValue, ResultSpec, SourceSpec

InputRows: TypeAlias = Iterable[Mapping[str, Any]]
"""Rows as dicts. A pandas DataFrame or a PyArrow table does as well."""

_PATIENCE_S: Final = 30.0


class LocalCluster:
    """An embedded cluster that runs the jobs of a test session, one after another or side by side."""

    def __init__(self, client: Client, embedded: EmbeddedCluster, data: Path) -> None:
        self.client: Final = client
        self._embedded: Final = embedded
        self._data: Final = data
        self._count = 0

    def run(
        self,
        job: Packable,
        *,
        inputs: Mapping[str, InputRows | object] | None = None,
        params: Mapping[str, object] | None = None,
        parallelism: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
        timeout: float | None = None,
    ) -> JobRun:
        """Run a job graph to its end and return its results.

        `inputs` replace steps by rows: sources, or any other step that rows come from. Sinks write nothing: their rows
        are results under the sinks' names, up to 100,000. What is not replaced is read as the job says. Raises
        JobFailed, Invalid, Refused for an input that the job does not have, TimeoutError.
        """
        package = job.package(given_overrides(params=params, parallelism=parallelism, config=config))
        sources = {name: self._source(package.spec, name, rows) for name, rows in (inputs or {}).items()}
        handle = self.client.submit(in_test(package, sources))
        while True:
            self._embedded.check()
            try:
                handle.wait(min(timeout, 1.0) if timeout is not None else 1.0)
                break
            except TimeoutError:
                if timeout is not None and (timeout := timeout - 1.0) <= 0:
                    handle.cancel()
                    raise
        results = {name: handle.result(name).fetch() for name in handle.results()}
        return JobRun(job_id=handle.id, name=handle.name, results=results)

    def _source(self, spec: JobSpec, name: str, rows: InputRows | object) -> SourceSpec:
        if name not in spec.steps:
            raise Refused(f"the job has no step {name!r} to give rows to" + suggestion(name, spec.steps))
        self._count += 1
        folder = self._data / f"{self._count}-{name}"
        folder.mkdir(parents=True)
        source = spec.steps[name].source
        return write_rows(rows, folder, name, schema=None if source is None else source.schema)


@contextmanager
def local_cluster(settings: Sequence[str] = ()) -> Generator[LocalCluster]:
    """Run an embedded cluster for the block; `settings` (`key=value`) configure it."""
    data = Path(tempfile.mkdtemp(prefix="flintlock-test-inputs-"))
    try:
        with embedded_cluster(load(), settings) as embedded, embedded.client(patience_s=_PATIENCE_S) as client:
            yield LocalCluster(client, embedded, data)
    finally:
        shutil.rmtree(data, ignore_errors=True)


class _SharedCluster:
    """The cluster of `run_local`: started by the first call, ended with the process.

    A thread of its own holds it, because the processes of an embedded cluster end with the thread that started them.
    """

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._ready: Final = Event()
        self._end: Final = Event()
        self._thread: Thread | None = None
        self._cluster: LocalCluster | None = None  # written by the thread, before `_ready` is set
        self._error: BaseException | None = None

    def get(self) -> LocalCluster:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._hold, name="flintlock-local-cluster", daemon=True)
                self._thread.start()
                atexit.register(self.close)
        self._ready.wait()
        if self._cluster is None:
            raise self._error or Refused("the cluster of run_local has ended")
        return self._cluster

    def close(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _hold(self) -> None:
        try:
            with local_cluster() as cluster:
                self._cluster = cluster
                self._ready.set()
                self._end.wait()
                self._cluster = None
        except BaseException as error:  # noqa: BLE001 the callers raise it
            self._error = error
        finally:
            self._ready.set()


_shared: Final = _SharedCluster()


def run_local(
    job: Packable,
    *,
    inputs: Mapping[str, InputRows | object] | None = None,
    params: Mapping[str, object] | None = None,
    parallelism: int | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    timeout: float | None = None,
) -> JobRun:
    """Run a job graph on rows of a test's own: `LocalCluster.run`, on one cluster for the whole process.

    The first call starts the cluster, which takes seconds; it ends with the process.
    """
    return _shared.get().run(job, inputs=inputs, params=params, parallelism=parallelism, config=config, timeout=timeout)


def in_test(package: JobPackage, sources: Mapping[str, SourceSpec]) -> JobPackage:
    """Return the job with these sources in place of the steps of their names, and with results in place of sinks.

    Steps that only led to what was replaced are left out: they are not even analysed. Raises Invalid.
    """
    replaced = {name: _step_in_test(step, sources.get(name)) for name, step in package.spec.steps.items()}
    needed: set[str] = set()
    waiting = [name for name, step in replaced.items() if step.result is not None or step.program is not None]
    while waiting:
        name = waiting.pop()
        if name in replaced and name not in needed:
            needed.add(name)
            waiting += replaced[name].inputs
    steps = {name: step for name, step in replaced.items() if name in needed}
    spec = structs.replace(package.spec, steps=steps)
    contents = {artifact.name: artifact for artifact in package.graph.artifacts}
    draft, unfilled = draft_graph(spec, UNSENT, contents)
    problems = reported([*unfilled, *job_problems(draft)])
    if problems:
        raise invalid_job(spec.name, problems)
    return JobPackage(spec=spec, files=package.files, graph=in_order(draft))


def _step_in_test(step: StepSpec, source: SourceSpec | None) -> StepSpec:
    if source is not None:
        return structs.replace(
            step, source=source, sql=None, function=None, sink=None, result=None, program=None, inputs=()
        )
    if step.sink is not None:
        return structs.replace(step, sink=None, result=ResultSpec(limit=MAX_RESULT_ROWS))
    return step


def write_rows(rows: InputRows | object, folder: Path, name: str, *, schema: str | None = None) -> SourceSpec:
    """Write rows into a folder and return a source that reads them: with this schema, else with the types they have."""
    if schema is not None and isinstance(rows, Sequence):
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in cast("Sequence[object]", rows))
        (folder / "rows.json").write_bytes(lines)
        return SourceSpec(format="json", path=str(folder), schema=schema)
    import pyarrow as pa
    from pyarrow import parquet

    arrow = cast("Any", pa)
    if hasattr(rows, "schema") and hasattr(rows, "to_pydict"):
        table: Any = rows
    elif hasattr(rows, "iloc"):
        table = arrow.Table.from_pandas(rows, preserve_index=False)
    else:
        listed = [dict(row) for row in cast("InputRows", rows)]
        if not listed:
            raise Refused(f"{name!r} has no rows, and so no columns: give a pandas DataFrame or a PyArrow table")
        table = arrow.Table.from_pylist(listed)
    parquet.write_table(
        _in_utc(table), folder / "rows.parquet", coerce_timestamps="us", allow_truncated_timestamps=True
    )
    return SourceSpec(format="parquet", path=str(folder))


def _in_utc(table: Any) -> Any:
    """Return the table with times without a zone as times in UTC, the zone of sessions: Spark's TIMESTAMP."""
    import pyarrow as pa

    arrow = cast("Any", pa)
    for index, field in enumerate(table.schema):
        if arrow.types.is_timestamp(field.type) and field.type.tz is None:
            column = table.column(index).cast(arrow.timestamp("us", tz="UTC"))
            table = table.set_column(index, field.name, column)
    return table
