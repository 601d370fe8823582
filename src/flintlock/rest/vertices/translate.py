"""From steps and attempts to the vertices and subtasks of Flink's REST API. Pure.

A vertex is a step; its one subtask is the current attempt at its region (docs/decisions/0004). Times and states are the
attempt's. Numbers are the step's own, where they can be determined: Spark counts what an attempt reads and writes,
so they belong to a step when it is the only one in its region that reads, or the only one that writes; rows and bytes
of outputs are known by step once the attempt has ended. Elsewhere they are 0 and not complete.

Rejected: showing the numbers of a region at each of its steps. A client that adds up vertices would count them several
times.
"""

from __future__ import annotations

from msgspec import Struct, structs

from flintlock.api import jobs as shapes
from flintlock.api import vertices as made
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import MAX_PARALLELISM, JobGraph, JobVertex
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.operations import Program, Result
from flintlock.model.regions import Region, region_outputs
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import TaskMetrics


class VertexView(Struct, frozen=True, kw_only=True):
    """One step, its region, and the current attempt at that region (None: not planned yet)."""

    job: JobSnapshot
    region: Region
    vertex: JobVertex
    now_ms: int

    @property
    def current(self) -> ExecutionInfo | None:
        """The current attempt."""
        return self.job.current(self.region.id)

    @property
    def state(self) -> ExecutionState:
        """The state of the step: that of its region."""
        return self.current.state if self.current else ExecutionState.CREATED


def find_vertex(job: JobSnapshot, vertex_id: str, now_ms: int) -> VertexView | None:
    """Return the step with this id, if the job has it."""
    return next((view for view in vertex_views(job, now_ms) if view.vertex.id == vertex_id), None)


def vertex_views(job: JobSnapshot, now_ms: int) -> list[VertexView]:
    """Return all steps, region by region."""
    return [
        VertexView(job=job, region=region, vertex=job.graph.vertex(name), now_ms=now_ms)
        for region in job.regions
        for name in region.steps
    ]


def parallelism(job: JobSnapshot, region: Region | None) -> int:
    """Return how many slots a region has, or will request."""
    current = job.current(region.id) if region is not None else None
    if current is not None and current.slots:
        return current.slots
    return (region.parallelism if region is not None else None) or job.graph.parallelism or 1


def vertex(view: VertexView) -> shapes.Vertex:
    """One step in /jobs/:jobid."""
    start_ms, end_ms, duration_ms = _times(view)
    return shapes.Vertex(
        id=view.vertex.id,
        slot_sharing_group_id=f"{view.region.id:032x}",
        name=view.vertex.title,
        max_parallelism=MAX_PARALLELISM,
        parallelism=parallelism(view.job, view.region),
        status=view.state,
        start_time=start_ms,
        end_time=end_ms,
        duration=duration_ms,
        tasks=_counts(view),
        metrics=metrics_of(view),
    )


def details(view: VertexView) -> made.VertexDetails:
    """The body of /jobs/:jobid/vertices/:vertexid."""
    return made.VertexDetails(
        id=view.vertex.id,
        name=view.vertex.title,
        parallelism=parallelism(view.job, view.region),
        max_parallelism=MAX_PARALLELISM,
        now=view.now_ms,
        subtasks=[subtask(view)],
        aggregated=_aggregated(view),
    )


def subtask(view: VertexView) -> made.Subtask:
    """The step's one subtask."""
    start_ms, end_ms, duration_ms = _times(view)
    endpoint, task_manager = _place(view)
    return made.Subtask(
        subtask=0,
        status=view.state,
        attempt=_attempt(view),
        endpoint=endpoint,
        start_time=start_ms,
        end_time=end_ms,
        duration=duration_ms,
        metrics=metrics_of(view),
        taskmanager_id=task_manager,
        status_duration=_durations(view),
        start_time_once_more=start_ms,
    )


def times(view: VertexView) -> made.VertexTimes:
    """When the step's subtask came into each state."""
    stamps = view.current.timestamps if view.current else {}
    begun_ms = stamps.get(ExecutionState.SCHEDULED, -1)
    ended_ms = stamps.get(view.state, view.now_ms) if view.state.terminal else view.now_ms
    return made.VertexTimes(
        id=view.vertex.id,
        name=view.vertex.title,
        now=view.now_ms,
        subtasks=[
            made.SubtaskTimes(
                subtask=0,
                endpoint=_place(view)[0],
                duration=-1 if begun_ms < 0 else ended_ms - begun_ms,
                timestamps={state: stamps.get(state, 0) for state in ExecutionState},
            )
        ],
    )


def task_managers(view: VertexView) -> made.VertexTaskManagers:
    """Where the step's subtask is."""
    start_ms, end_ms, duration_ms = _times(view)
    endpoint, task_manager = _place(view)
    return made.VertexTaskManagers(
        id=view.vertex.id,
        name=view.vertex.title,
        now=view.now_ms,
        taskmanagers=[
            made.VertexTaskManager(
                endpoint=endpoint,
                status=view.state,
                start_time=start_ms,
                end_time=end_ms,
                duration=duration_ms,
                metrics=metrics_of(view),
                status_counts=_counts(view),
                taskmanager_id=task_manager,
                aggregated=_aggregated(view),
            )
        ],
    )


def accumulators(view: VertexView) -> made.VertexAccumulators:
    """No accumulators."""
    return made.VertexAccumulators(id=view.vertex.id, user_accumulators=[])


def subtasks_accumulators(view: VertexView) -> made.SubtasksAccumulators:
    """No accumulators, by subtask."""
    none = made.SubtaskAccumulators(subtask=0, attempt=_attempt(view), endpoint=_place(view)[0], user_accumulators=[])
    return made.SubtasksAccumulators(id=view.vertex.id, parallelism=parallelism(view.job, view.region), subtasks=[none])


def metrics_of(view: VertexView) -> shapes.VertexMetrics:
    """What the step itself read and wrote, as far as that can be determined."""
    current, name = view.current, view.vertex.name
    reads = _counted(current) if readers(view.job.graph, view.region) == (name,) else None
    writes = _counted(current) if writers(view.job.graph, view.region) == (name,) else None
    output = next((out for out in current.outputs if out.step == name), None) if current else None
    if output is not None:
        writes = TaskMetrics(write_records=output.rows, write_bytes=output.bytes)
    return shapes.VertexMetrics(
        read_bytes=reads.read_bytes if reads else 0,
        read_bytes_complete=reads is not None,
        write_bytes=writes.write_bytes if writes else 0,
        write_bytes_complete=writes is not None,
        read_records=reads.read_records if reads else 0,
        read_records_complete=reads is not None,
        write_records=writes.write_records if writes else 0,
        write_records_complete=writes is not None,
        accumulated_backpressured_time=0,
        accumulated_idle_time=0,
        accumulated_busy_time=0.0,
    )


def readers(graph: JobGraph, region: Region) -> tuple[StepName, ...]:
    """Return the steps of the region that make Spark read: those without inputs, and readers of blocking results.

    A step with inputs may read a table on the side; that cannot be determined here, and counts for the other steps.
    """
    steps = [graph.vertex(name) for name in region.steps]
    return tuple(step.name for step in steps if not step.inputs or any(name in region.reads for name in step.inputs))


def writers(graph: JobGraph, region: Region) -> tuple[StepName, ...]:
    """Return the steps of the region that make Spark write. Results do not: their rows are stored with the job."""
    outputs = [step for step in region_outputs(graph, region) if not isinstance(step.operation, Result)]
    programs = [name for name in region.steps if isinstance(graph.vertex(name).operation, Program)]
    return (*(step.name for step in outputs), *programs)


def _counted(current: ExecutionInfo | None) -> TaskMetrics | None:
    """Return what Spark has counted; None while it has not reported anything."""
    if current is None or (not current.state.terminal and current.metrics == TaskMetrics()):
        return None
    return current.metrics


def _times(view: VertexView) -> tuple[int, int, int]:
    """Return start, end and duration of the current attempt; -1 for what has not been yet."""
    current = view.current
    if current is None:
        return -1, -1, -1
    start_ms = current.timestamps.get(ExecutionState.DEPLOYING, -1)
    end_ms = current.timestamps.get(current.state, -1) if current.state.terminal else -1
    return start_ms, end_ms, -1 if start_ms < 0 else (view.now_ms if end_ms < 0 else end_ms) - start_ms


def _place(view: VertexView) -> tuple[str, str]:
    current = view.current
    if current is None:
        return made.UNASSIGNED, made.UNASSIGNED
    return current.address or made.UNASSIGNED, current.task_manager or made.UNASSIGNED


def _attempt(view: VertexView) -> int:
    return view.current.attempt if view.current else 0


def _counts(view: VertexView) -> dict[str, int]:
    return {state: int(state is view.state) for state in ExecutionState}


def _durations(view: VertexView) -> dict[str, int]:
    """Return how long the attempt was in each state: until it came into the next one, or until now."""
    stamps = view.current.timestamps if view.current else {}
    durations: dict[str, int] = {}
    for state in ExecutionState:
        if not state.timed:
            continue
        entered_ms = stamps.get(state)
        if entered_ms is None:
            durations[state] = -1
            continue
        # Two states may have been entered within one millisecond: then their order decides which one was left.
        left_ms = [
            at for other, at in stamps.items() if at > entered_ms or (at == entered_ms and other.comes_after(state))
        ]
        durations[state] = (view.now_ms if state is view.state else min(left_ms, default=view.now_ms)) - entered_ms
    return durations


def _aggregated(view: VertexView) -> made.Aggregated:
    numbers = structs.asdict(metrics_of(view))
    return made.Aggregated(
        metrics={
            name.replace("_", "-"): _spread(int(value))
            for name, value in numbers.items()
            if not name.endswith("_complete")
        },
        status_duration={state: _spread(max(0, value)) for state, value in _durations(view).items()},
    )


def _spread(value: int) -> made.Spread:
    """One subtask: every summary of its number is the number."""
    return made.Spread(min=value, max=value, avg=value, sum=value, median=value, p25=value, p75=value, p95=value)
