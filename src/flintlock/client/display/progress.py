"""The progress of a job as text: pure functions from the response of `/attempts` to what a person reads.

Both displays are made from these: the live one shows `region_rows` again and again, the plain one prints `changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from flintlock.api.cluster import ClusterResources
from flintlock.api.jobs import SLOTS, AttemptInfo, FailureInfo, FailureSummary, JobAttempts, RegionAttempts
from flintlock.model.failures.failure_text import headline
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import Failure

_LONGEST = 120  # characters of a failure in a line; the complete text is shown elsewhere


class RegionRow(Struct, frozen=True, kw_only=True):
    """One region as a display shows it. `fraction` is how much of Spark's work known so far is done."""

    title: str
    state: str
    detail: str
    fraction: float | None = None


def job_line(job: JobAttempts) -> str:
    """Return the job's progress in one line."""
    done = sum(1 for region in job.regions if _state(region) is ExecutionState.FINISHED)
    line = f"{job.name} {job.shown_state}"
    if job.regions:
        line += f", {done} of {_counted(len(job.regions), 'region')} finished"
    if job.publishing is not None:
        line += f", {publishing_line(job)}"
    return line


def publishing_line(job: JobAttempts) -> str:
    """Return the progress of the publication; empty if there is none."""
    published = job.publishing
    return "" if published is None else f"publishing {published.done}/{_counted(published.total, 'file')}"


def region_rows(job: JobAttempts) -> tuple[RegionRow, ...]:
    """Return a row for each region, in the job's order."""
    return tuple(
        RegionRow(
            title=region_title(region), state=_state(region), detail=_detail(region, job), fraction=_fraction(region)
        )
        for region in job.regions
    )


def region_title(region: RegionAttempts) -> str:
    """Name a region by its steps; of many, by the first and the last."""
    steps = region.steps
    return ", ".join(steps) if len(steps) <= 4 else f"{steps[0]}, {steps[1]} … {steps[-1]}"


def failure_lines(job: JobAttempts) -> list[str]:
    """Return a line for each failure: attempt, TaskManager, time, cause and labels; the oldest first."""
    titles = {region.id: region_title(region) for region in job.regions}
    lines = [_failure_line(line, titles) for line in job.failures]
    if job.failures_omitted:
        lines.append(f"… and {job.failures_omitted} between the first and the latest of these")
    return lines


def failure_of(info: FailureInfo | None) -> Failure | None:
    """Return a failure as a struct of the model, which has the functions that format it."""
    return None if info is None else msgspec.convert(info, Failure, from_attributes=True)


def waiting_notes(seen: ClusterResources) -> dict[str, str]:
    """Return, by job id, the position in the queue of each job that waits for slots, and what it waits for."""
    order = list(dict.fromkeys(item.job_id for item in seen.waiting))
    starting = f"; {_counted(seen.starting, 'TaskManager')} starting" if seen.starting else ""
    return {
        jobid: f"{_ordinal(place)} of {len(order)} in the queue; needs {_wanted(jobid, seen)}"
        f"{_behind_streaming(jobid, seen)}{starting}"
        for place, jobid in enumerate(order, 1)
    }


def waiting_note(waits_for: str, notes: Mapping[str, str], jobid: str) -> str:
    """Return what is known of what a job waits for: its place in the queue for slots, or what else holds it up."""
    return notes.get(jobid) or ("" if waits_for == SLOTS else waits_for)


def changes(before: JobAttempts | None, after: JobAttempts) -> list[str]:
    """Return what has changed between two responses: a line for each change of state, none for mere progress.

    A job that waits for slots has no line here: most wait for milliseconds, and a display shows the others with their
    place in the queue.
    """
    lines: list[str] = []
    if not after.waits_for and (before is None or before.waits_for or before.status != after.status):
        lines.append(f"{after.name}: {after.status}")
    known = {} if before is None else {region.id: region for region in before.regions}
    for region in after.regions:
        old, new = known.get(region.id), region.latest
        seen = old.latest if old is not None else None
        lines += _ended_meanwhile(region, seen)
        if new is None or new.state.waiting or (seen and (seen.attempt, seen.state) == (new.attempt, new.state)):
            continue
        detail = _detail(region, after)
        lines.append(f"  [{region_title(region)}] {new.state}" + (f": {detail}" if detail else ""))
    if after.publishing is not None and (before is None or before.publishing is None):
        lines.append(f"  {publishing_line(after)}")
    return lines


def _ended_meanwhile(region: RegionAttempts, seen: AttemptInfo | None) -> list[str]:
    """Return a line for each attempt that has failed since the one that was seen last, and is no longer the latest."""
    known = (-1, None) if seen is None else (seen.attempt, seen.state)
    return [
        f"  [{region_title(region)}] FAILED: "
        + ", ".join([f"attempt {item.attempt}", *([_shortened(headline(failure))] if failure is not None else [])])
        for item in region.attempts[:-1]
        if item.state is ExecutionState.FAILED and item.attempt >= known[0] and (item.attempt, item.state) != known
        for failure in [failure_of(item.failure)]
    ]


def elapsed_text(seconds: float) -> str:
    """Write a duration so that its size is seen at once."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _failure_line(line: FailureSummary, titles: Mapping[int, str]) -> str:
    at = datetime.fromtimestamp(line.timestamp / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    whose = "the job" if line.region is None else f"attempt {line.attempt} at [{titles.get(line.region, '')}]"
    place = f" on {line.task_manager}" if line.task_manager else ""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(line.labels.items()))
    also = "and " if line.concurrent else ""
    return f"{at}  {also}{whose}{place}: {line.kind}: {_shortened(line.headline)}" + (f" ({labels})" if labels else "")


def _wanted(jobid: str, seen: ClusterResources) -> str:
    """Return what a job waits for: all its requests together. None is all slots of one TaskManager."""
    requests = [item.slots for item in seen.waiting if item.job_id == jobid]
    slots = sum(slots for slots in requests if slots is not None)
    entire = sum(slots is None for slots in requests)
    parts = [_counted(slots, "slot")] if slots else []
    parts += ["all slots of " + ("a TaskManager" if entire == 1 else _counted(entire, "TaskManager"))] if entire else []
    return " and ".join(parts)


def _behind_streaming(jobid: str, seen: ClusterResources) -> str:
    behind = any(item.behind_streaming for item in seen.waiting if item.job_id == jobid)
    return " of one TaskManager, which streaming jobs use: stop one of them, or ask for fewer slots" if behind else ""


def _state(region: RegionAttempts) -> ExecutionState:
    return region.latest.state if region.latest is not None else ExecutionState.CREATED


def _detail(region: RegionAttempts, job: JobAttempts) -> str:
    attempt = region.latest
    again = [f"attempt {attempt.attempt}"] if attempt is not None and attempt.attempt > 0 else []
    if attempt is None or attempt.state.waiting:
        return ", ".join([*again, _waiting_for(region, job)])
    match attempt.state:
        case ExecutionState.DEPLOYING:
            return ", ".join([*again, f"on {attempt.task_manager}"] if attempt.task_manager else again)
        case ExecutionState.FINISHED:
            return ", ".join([*again, *_outputs(attempt)])
        case ExecutionState.FAILED:
            failure = failure_of(attempt.failure)
            return ", ".join([*again, *([_shortened(headline(failure))] if failure is not None else [])])
        case _:
            return ", ".join([*again, *_work(attempt)])


def _waiting_for(region: RegionAttempts, job: JobAttempts) -> str:
    """Return what a region waits for: its inputs first, else slots."""
    if not job.status.schedules_regions:
        return ""
    makers = {name: other for other in job.regions for name in other.materialises}
    missing = [name for name in region.reads if name in makers and _state(makers[name]) is not ExecutionState.FINISHED]
    return f"waits for {', '.join(missing)}" if missing else "waits for slots"


def _work(attempt: AttemptInfo) -> list[str]:
    parts: list[str] = [attempt.activity] if attempt.activity else []
    counted = attempt.metrics
    if counted.stages_total:
        parts.append(f"stages {counted.stages_done}/{counted.stages_total}")
    if counted.tasks_total:
        parts.append(f"tasks {counted.tasks_done}/{counted.tasks_total}")
    if counted.write_records:
        parts.append(f"{_counted(counted.write_records, 'row')} written")
    elif counted.read_records:
        parts.append(f"{_counted(counted.read_records, 'row')} read")
    return parts


def _outputs(attempt: AttemptInfo) -> list[str]:
    return [f"{output.step}: {_counted(output.rows, 'row')}" for output in attempt.outputs]


def _fraction(region: RegionAttempts) -> float | None:
    attempt = region.latest
    if attempt is None or attempt.state.waiting:
        return None
    if attempt.state is ExecutionState.FINISHED:
        return 1.0
    counted = attempt.metrics
    return counted.tasks_done / counted.tasks_total if counted.tasks_total else None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
