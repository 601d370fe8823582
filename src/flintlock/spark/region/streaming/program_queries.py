"""The streaming queries of a program: found when it starts them, followed while it runs, stopped when it ends.

A program starts queries by itself, in any thread and in sessions of its own. Each of them passes through the class of
PySpark that represents a query, so that is where they are found. A thread asks Spark for their progress; a program that
starts no query has no such thread.

With spark-submit a query ends with the driver of its script. Here the engine may be shared and outlives the script, so
the runner stops the queries that are left when the script ends, and says so in its output. If the runner is killed, the
TaskManager releases the session of the attempt, which stops them, too.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import structs

from flintlock.model.checking.problems import abbreviated
from flintlock.model.operations import Program
from flintlock.model.streaming.query_figures import MAX_QUERIES, MAX_TEXT, QueryFigures
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.streaming.query_figures import QueryObserver

#: How often the queries are observed.
POLL_S: Final = 1.0
#: How long the end of a program waits for its queries to stop.
STOP_S: Final = 5.0
#: PySpark's classes of queries, of Connect and of a driver.
_CLASSES: Final = ("pyspark.sql.connect.streaming.query", "pyspark.sql.streaming.query")


class ProgramQueries:
    """The queries of one program. `report` is called with all of them whenever one has changed."""

    def __init__(
        self, report: Callable[[tuple[QueryFigures, ...]], None], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._report: Final = report
        self._now_s: Final = now_s
        self._found: Final[deque[Any]] = deque()  # objects that PySpark has made, not looked at yet
        self._queries: Final[dict[str, Any]] = {}  # by run id, once for each start; used under the lock
        self._observers: Final[dict[str, QueryObserver]] = {}
        self._figures: Final[dict[str, QueryFigures]] = {}
        self._reported: tuple[QueryFigures, ...] = ()
        self._lock: Final = threading.Lock()  # held while queries are observed
        self._over: Final = threading.Event()
        self._reporting: Final = threading.Lock()
        self._closed = False  # nothing is reported any more; changed under `_reporting`
        self._thread: threading.Thread | None = None  # started with the first query

    def install(self) -> None:
        """Find every query that is started from now on."""
        for module in _CLASSES:
            kind: Any = importlib.import_module(module).StreamingQuery
            kind.__init__ = self._finding(kind.__init__)

    def _finding(self, create: Callable[..., None]) -> Callable[..., None]:
        def create_and_find(query: Any, *args: Any, **more: Any) -> None:
            create(query, *args, **more)
            self.add(query)

        return create_and_find

    def add(self, query: Any) -> None:
        """Follow a query from now on; one that is known already is not followed twice."""
        self._found.append(query)
        if self._thread is None and not self._over.is_set():
            self._thread = threading.Thread(target=self._follow, name="flintlock-queries", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        while True:
            self.observe()
            if self._over.wait(POLL_S):
                return

    def observe(self) -> None:
        """Look at each query once, and report if something has changed."""
        with self._lock:
            while self._found:
                query = self._found.popleft()
                with suppress(Exception):  # a query that Spark does not know any more
                    run_id = str(query.runId)
                    if run_id not in self._queries:
                        self._queries[run_id] = query
                        self._observers[run_id] = QueryObserver(now_s=self._now_s)
                        name = str(query.name or f"query-{len(self._queries)}")
                        self._figures[run_id] = QueryFigures(name=name, query_id=str(query.id), run_id=run_id)
            for run_id, figures in self._figures.items():
                if figures.active:
                    self._figures[run_id] = _latest(figures, self._queries[run_id], self._observers[run_id])
            shown = tuple(self._figures.values())[-MAX_QUERIES:]
            if shown != self._reported:
                self._reported = shown
                with self._reporting:
                    if not self._closed:
                        self._report(shown)

    def stop(self, *, warn: bool) -> None:
        """Stop the queries that are still active, within `STOP_S`. `warn`: the program has ended without doing it."""
        if self._thread is None:
            return
        self._over.set()
        ending = threading.Thread(target=self._stop_all, kwargs={"warn": warn}, name="flintlock-stop", daemon=True)
        ending.start()
        ending.join(STOP_S)  # a query that takes longer ends with its session
        with self._reporting:
            self._closed = True  # the outcome of the task is its last message

    def _stop_all(self, *, warn: bool) -> None:
        self.observe()
        with self._lock:
            active = [(run_id, figures) for run_id, figures in self._figures.items() if figures.active]
        for run_id, figures in active:
            if warn:
                sys.stderr.write(
                    f"[flintlock: the query {figures.name!r} was still running when the program ended, and is stopped"
                    " with it; awaitTermination() waits for its end]\n"
                )
            with suppress(Exception):  # it ends with its session
                self._queries[run_id].stop()
        self.observe()


def activity(program: Program, queries: tuple[QueryFigures, ...]) -> str:
    """Return what a program with these queries does now."""
    active = sum(figures.active for figures in queries)
    streaming = f" with {active} streaming {'query' if active == 1 else 'queries'}" if active else ""
    return f"running {program.script}{streaming}"


def _latest(known: QueryFigures, query: Any, observer: QueryObserver) -> QueryFigures:
    """Return the figures of a query as it is now: what Spark does not answer is left as it was."""
    try:
        active = bool(query.isActive)  # asked first: the last batch of a query that has ended is not missed
        known, _ = observer.observe(known, query)
        if active:
            return known
        error: object = query.exception()
    except Exception as lost:  # noqa: BLE001 - watching fails no program
        gone = SparkError(lost).connection_lost
        return _ended(known, "its Spark session has ended") if gone else known
    return _ended(known, abbreviated(_first_line(error), MAX_TEXT))


def _ended(known: QueryFigures, error: str) -> QueryFigures:
    return structs.replace(known, active=False, error=error, running_since_ms=0, running_ms=0)


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0] if error is not None else ""
