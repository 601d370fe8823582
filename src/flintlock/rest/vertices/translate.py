"""From steps and attempts to the vertices and subtasks of Flink's REST API. Pure.

A vertex is a step. It has one subtask for each region that the step is in (docs/decisions/0004): the current attempt at
that region. Steps of batch jobs are in one region; steps that several outputs of a streaming job share are in several.

Times and states are the attempts'. Numbers are the step's own, and only where they are known: Spark counts what an
attempt reads and writes, so they belong to a step when it is the only one in its region that reads, or the only one
that writes; rows and bytes of outputs are known by step once the attempt has ended. Elsewhere they are 0 and not
complete.

Rejected: showing the whole region's numbers at each of its steps. A client that adds up vertices would count them
several times.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from flintlock.api import jobs as shapes
from flintlock.api import vertices as made
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import MAX_PARALLELISM, JobVertex
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.regions import Region
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import TaskMetrics
from flintlock.model.times import elapsed_ms


class SubtaskView(Struct, frozen=True, kw_only=True):
    """One step in one region, and the current attempt at that region (None: not planned yet)."""

    job: JobSnapshot
    region: Region
    vertex: JobVertex
    now_ms: int
    index: int = 0

    @property
    def current(self) -> ExecutionInfo | None:
        """The current attempt."""
        return self.job.current(self.region.id)

    @property
    def state(self) -> ExecutionState:
        """The state of the region's current attempt."""
        return self.current.state if self.current else ExecutionState.CREATED


class VertexView(Struct, frozen=True, kw_only=True):
    """One step with its subtasks, one for each region that it is in."""

    job: JobSnapshot
    vertex: JobVertex
    now_ms: int

    @property
    def subtasks(self) -> tuple[SubtaskView, ...]:
        """The step in each of its regions."""
        return tuple(
            SubtaskView(job=self.job, region=region, vertex=self.vertex, now_ms=self.now_ms, index=index)
            for index, region in enumerate(self.job.regions_with(self.vertex.name))
        )

    @property
    def state(self) -> ExecutionState:
        """The state of the step: that of its region, or Flink's aggregate of several."""
        return ExecutionState.aggregate([subtask.state for subtask in self.subtasks])


def find_vertex(job: JobSnapshot, vertex_id: str, now_ms: int) -> VertexView | None:
    """Return the step with this id, if the job has it."""
    return next((view for view in vertex_views(job, now_ms) if view.vertex.id == vertex_id), None)


def vertex_views(job: JobSnapshot, now_ms: int) -> list[VertexView]:
    """Return all steps, region by region; one that several regions share is listed with the first of them."""
    names = dict.fromkeys(name for region in job.regions for name in region.steps)
    return [VertexView(job=job, vertex=job.graph.vertex(name), now_ms=now_ms) for name in names]


def parallelism(job: JobSnapshot, step: StepName) -> int:
    """Return how many slots a step's region has, or will request; of several regions the most."""
    regions = job.regions_with(step)
    return max((_slots(job, region) for region in regions), default=job.graph.parallelism or 1)


def vertex(view: VertexView) -> shapes.Vertex:
    """One step in /jobs/:jobid."""
    start_ms, end_ms, duration_ms = _times(view.subtasks, view.now_ms)
    return shapes.Vertex(
        id=view.vertex.id,
        slot_sharing_group_id=f"{view.subtasks[0].region.id:032x}",
        name=view.vertex.title,
        max_parallelism=MAX_PARALLELISM,
        parallelism=parallelism(view.job, view.vertex.name),
        status=view.state,
        start_time=start_ms,
        end_time=end_ms,
        duration=duration_ms,
        tasks=_counts(view.subtasks),
        metrics=metrics_of(*view.subtasks),
    )


def details(view: VertexView) -> made.VertexDetails:
    """The body of /jobs/:jobid/vertices/:vertexid."""
    return made.VertexDetails(
        id=view.vertex.id,
        name=view.vertex.title,
        parallelism=parallelism(view.job, view.vertex.name),
        max_parallelism=MAX_PARALLELISM,
        now=view.now_ms,
        subtasks=[subtask(one) for one in view.subtasks],
        aggregated=_aggregated(view.subtasks),
    )


def subtask(view: SubtaskView) -> made.Subtask:
    """The step in one of its regions."""
    start_ms, end_ms, duration_ms = _times([view], view.now_ms)
    endpoint, task_manager = _place(view)
    return made.Subtask(
        subtask=view.index,
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
    """When the step's subtasks entered each state."""
    return made.VertexTimes(
        id=view.vertex.id,
        name=view.vertex.title,
        now=view.now_ms,
        subtasks=[_subtask_times(one) for one in view.subtasks],
    )


def task_managers(view: VertexView) -> made.VertexTaskManagers:
    """Where the step's subtasks are: an entry for each TaskManager."""
    places: dict[tuple[str, str], list[SubtaskView]] = {}
    for one in view.subtasks:
        places.setdefault(_place(one), []).append(one)
    return made.VertexTaskManagers(
        id=view.vertex.id,
        name=view.vertex.title,
        now=view.now_ms,
        taskmanagers=[_on_task_manager(place, subtasks) for place, subtasks in places.items()],
    )


def accumulators(view: VertexView) -> made.VertexAccumulators:
    """No accumulators: Spark's are not shown here."""
    return made.VertexAccumulators(id=view.vertex.id, user_accumulators=[])


def subtasks_accumulators(view: VertexView) -> made.SubtasksAccumulators:
    """No accumulators, by subtask."""
    return made.SubtasksAccumulators(
        id=view.vertex.id,
        parallelism=parallelism(view.job, view.vertex.name),
        subtasks=[
            made.SubtaskAccumulators(
                subtask=one.index, attempt=_attempt(one), endpoint=_place(one)[0], user_accumulators=[]
            )
            for one in view.subtasks
        ],
    )


def metrics_of(*subtasks: SubtaskView) -> shapes.VertexMetrics:
    """What the step itself read and wrote in these regions; complete where that is known for each of them."""
    reads = [_read(one) for one in subtasks]
    writes = [_written(one) for one in subtasks]
    known_reads = [counted for counted in reads if counted is not None]
    known_writes = [counted for counted in writes if counted is not None]
    return shapes.VertexMetrics(
        read_bytes=sum(counted.read_bytes for counted in known_reads),
        read_bytes_complete=None not in reads,
        write_bytes=sum(counted.write_bytes for counted in known_writes),
        write_bytes_complete=None not in writes,
        read_records=sum(counted.read_records for counted in known_reads),
        read_records_complete=None not in reads,
        write_records=sum(counted.write_records for counted in known_writes),
        write_records_complete=None not in writes,
        accumulated_backpressured_time=0,
        accumulated_idle_time=0,
        accumulated_busy_time=0.0,
    )


def _slots(job: JobSnapshot, region: Region) -> int:
    current = job.current(region.id)
    return (current.slots if current is not None else 0) or region.parallelism or job.graph.parallelism or 1


def _subtask_times(view: SubtaskView) -> made.SubtaskTimes:
    stamps = view.current.timestamps if view.current else {}
    begun_ms = stamps.get(ExecutionState.SCHEDULED, -1)
    ended_ms = stamps.get(view.state, view.now_ms) if view.state.terminal else view.now_ms
    return made.SubtaskTimes(
        subtask=view.index,
        endpoint=_place(view)[0],
        duration=-1 if begun_ms < 0 else elapsed_ms(begun_ms, ended_ms),
        timestamps={state: stamps.get(state, 0) for state in ExecutionState},
    )


def _on_task_manager(place: tuple[str, str], subtasks: Sequence[SubtaskView]) -> made.VertexTaskManager:
    start_ms, end_ms, duration_ms = _times(subtasks, subtasks[0].now_ms)
    return made.VertexTaskManager(
        endpoint=place[0],
        status=ExecutionState.aggregate([one.state for one in subtasks]),
        start_time=start_ms,
        end_time=end_ms,
        duration=duration_ms,
        metrics=metrics_of(*subtasks),
        status_counts=_counts(subtasks),
        taskmanager_id=place[1],
        aggregated=_aggregated(subtasks),
    )


def _read(view: SubtaskView) -> TaskMetrics | None:
    """Return what Spark counted if the step is the only one of its region that reads."""
    return _counted(view.current) if view.job.readers[view.region.id] == (view.vertex.name,) else None


def _written(view: SubtaskView) -> TaskMetrics | None:
    """Return what the step wrote: as its output says, or what Spark counted if no other step of its region writes."""
    current, name = view.current, view.vertex.name
    output = next((out for out in current.outputs if out.step == name), None) if current else None
    if output is not None:
        return TaskMetrics(write_records=output.rows, write_bytes=output.bytes)
    return _counted(current) if view.job.writers[view.region.id] == (name,) else None


def _counted(current: ExecutionInfo | None) -> TaskMetrics | None:
    """Return what Spark has counted; None while it has not reported anything."""
    if current is None or (not current.state.terminal and current.metrics == TaskMetrics()):
        return None
    return current.metrics


def _times(subtasks: Sequence[SubtaskView], now_ms: int) -> tuple[int, int, int]:
    """Return start, end and duration of the current attempts together; -1 for what has not happened yet."""
    attempts = [one.current for one in subtasks]
    starts = [at for one in attempts if one is not None and (at := one.timestamps.get(ExecutionState.DEPLOYING))]
    start_ms = min(starts, default=-1)
    ends = [one.timestamps.get(one.state, -1) for one in attempts if one is not None and one.state.terminal]
    end_ms = max(ends) if ends and len(ends) == len(attempts) else -1
    return start_ms, end_ms, -1 if start_ms < 0 else elapsed_ms(start_ms, now_ms if end_ms < 0 else end_ms)


def _place(view: SubtaskView) -> tuple[str, str]:
    current = view.current
    if current is None:
        return made.UNASSIGNED, made.UNASSIGNED
    return current.address or made.UNASSIGNED, current.task_manager or made.UNASSIGNED


def _attempt(view: SubtaskView) -> int:
    return view.current.attempt if view.current else 0


def _counts(subtasks: Sequence[SubtaskView]) -> dict[str, int]:
    return {state: sum(one.state is state for one in subtasks) for state in ExecutionState}


def _durations(view: SubtaskView) -> dict[str, int]:
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
        until_ms = view.now_ms if state is view.state else min(left_ms, default=view.now_ms)
        durations[state] = elapsed_ms(entered_ms, until_ms)
    return durations


def _aggregated(subtasks: Sequence[SubtaskView]) -> made.Aggregated:
    numbers = [structs.asdict(metrics_of(one)) for one in subtasks]
    durations = [_durations(one) for one in subtasks]
    return made.Aggregated(
        metrics={
            name.replace("_", "-"): _spread([int(each[name]) for each in numbers])
            for name in shapes.VertexMetrics.__struct_fields__
            if not name.endswith("_complete")
        },
        status_duration={state: _spread([max(0, each[state]) for each in durations]) for state in durations[0]},
    )


def _spread(values: list[int]) -> made.Spread:
    """Summarise a number over the subtasks; percentiles are the nearest ranks."""
    ranked, last = sorted(values), len(values) - 1
    return made.Spread(
        min=ranked[0],
        max=ranked[-1],
        avg=sum(ranked) // len(ranked),
        sum=sum(ranked),
        median=ranked[round(0.5 * last)],
        p25=ranked[round(0.25 * last)],
        p75=ranked[round(0.75 * last)],
        p95=ranked[round(0.95 * last)],
    )
