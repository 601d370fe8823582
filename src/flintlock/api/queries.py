"""Structs of the route about streaming queries. Their attributes have the names of `model.query_figures`."""

from __future__ import annotations

from msgspec import field

from flintlock.api.base import KebabCase


class QuerySource(KebabCase, frozen=True, kw_only=True):
    """A source of a query in its latest batch. `backlog` is null where the source does not say what waits in it."""

    description: str
    input_rows: int
    input_rate: float = field(name="input-rows-per-second")
    processed_rate: float = field(name="processed-rows-per-second")
    backlog: int | None = None


class QueryOperator(KebabCase, frozen=True, kw_only=True):
    """A stateful operator of a query in its latest batch. `late-rows` were dropped because of the watermark."""

    name: str
    rows: int
    updated_rows: int
    memory: int
    late_rows: int


class QueryInfo(KebabCase, frozen=True, kw_only=True):
    """A query, by its latest batch; `batch` is -1 before its first one.

    `running-since`: since when a batch runs that is not committed yet, as its runner has seen it; 0: none runs.
    `behind-ms`: for how long its batches have taken longer than the interval of the trigger, or the backlog has grown;
    it grows while a batch runs. `falls-behind`: that is for a minute or more.
    `idle-since`: since when its sources have had no rows, for ten seconds at least: its rates are 0; 0: it is not idle.
    """

    name: str
    uid: str = ""  # of a sink of a graph
    region: int = 0
    attempt: int = 0
    query_id: str
    run_id: str
    active: bool
    error: str = ""
    batch: int
    started_ms: int = field(name="started")
    interval_ms: int = field(name="trigger-interval-ms")
    input_rows: int
    input_rate: float = field(name="input-rows-per-second")
    processed_rate: float = field(name="processed-rows-per-second")
    duration_ms: int
    durations: dict[str, int]
    backlog: int | None = None
    watermark: str
    state_rows: int
    state_bytes: int
    late_rows: int
    running_since_ms: int = field(name="running-since", default=0)
    idle_since_ms: int = field(name="idle-since", default=0)
    behind_ms: int
    falls_behind: bool
    sources: tuple[QuerySource, ...]
    operators: tuple[QueryOperator, ...]


class QueriesResponse(KebabCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/queries."""

    queries: tuple[QueryInfo, ...]
    now: int = 0  # the time of the cluster
