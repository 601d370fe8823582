"""A client's handle of a job on a cluster. It has no state of its own: every call asks the cluster."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from flintlock.api.cluster import ClusterResources
from flintlock.api.jobs import (
    AttemptInfo,
    ExecutionResultResponse,
    JobAttempts,
    JobChanges,
    JobLogs,
    JobsOverviewEntry,
    JobStatusResponse,
    LogPart,
    OperationResponse,
    ParallelismBounds,
    ResultNames,
    ResultTable,
    SubmittedJob,
    TriggerResponse,
    VertexRequirements,
)
from flintlock.api.process import ThreadDump, ThreadInfo
from flintlock.api.quarantine import QuarantineEntry
from flintlock.api.queries import QueriesResponse
from flintlock.api.requests import RerunRequest, SavepointRequest, StopRequest
from flintlock.client.connection.http import Http
from flintlock.client.connection.results import ResultHandle, only_name
from flintlock.client.display.notebook import in_notebook
from flintlock.client.display.progress import failure_lines, failure_of, waiting_note, waiting_notes
from flintlock.client.errors import JobCanceled
from flintlock.model.errors import FlintlockError, JobFailed
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobType, Scalar, vertex_id
from flintlock.model.states import ExecutionState, JobStatus

#: Between two looks at an operation that is being carried out.
POLL_OPERATION_S: Final = 0.2

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"


class _JobKind(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a job's details that says what kind of job it is."""

    job_type: str = msgspec.field(name="job-type", default=str(JobType.BATCH))


class JobHandle:
    """One job of one cluster."""

    def __init__(self, http: Http, job_id: JobId, name: str = "") -> None:
        self.id: Final = job_id
        self.name: Final = name
        self._http: Final = http

    @property
    def status(self) -> JobStatus:
        """The job's state now."""
        return self._http.get(f"/jobs/{self.id}/status", JobStatusResponse).status

    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> JobHandle:
        """Wait until the job is FINISHED and return the handle.

        With `progress` shows the job meanwhile, and what its code prints: in a notebook a table that is updated in
        place, elsewhere on stderr. Without a value, in notebooks only.

        Raises JobFailed with the structured failure, JobCanceled, or TimeoutError after `timeout` seconds; the job
        keeps running then. Waits for a JobManager that restarts meanwhile, and follows a new leader.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if in_notebook() if progress is None else progress:
            self._show_until_end(timeout, deadline)
            return self.require_success()
        while True:
            longest = self._http.longest_wait_s
            left = longest if deadline is None else max(0.0, deadline - time.monotonic())
            if self.ended_within(min(left, longest)):
                return self.require_success()
            self._check_deadline(timeout, deadline)

    def _show_until_end(self, timeout: float | None, deadline: float | None) -> None:
        from flintlock.client.display.console import display_for, error_console
        from flintlock.client.display.following import OutputReader, follow

        display = display_for(error_console(), sys.stderr)
        try:
            follow(self, display, OutputReader(self), check=lambda: self._check_deadline(timeout, deadline))
        finally:
            display.close()

    def _check_deadline(self, timeout: float | None, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s; it keeps running")

    def ended_within(self, wait_s: float) -> bool:
        """Wait up to `wait_s` for the job's end and return whether it has ended."""
        response = self._http.get(
            f"/jobs/{self.id}/execution-result",
            ExecutionResultResponse,
            params={"wait": f"{int(wait_s * 1000)}ms"} if wait_s > 0 else None,
            wait_s=wait_s,
        )
        return response.status.id == "COMPLETED"

    def require_success(self) -> JobHandle:
        """Return the handle of an ended job if it is FINISHED, else raise JobFailed or JobCanceled."""
        job = self.attempts()
        match job.status:
            case JobStatus.FINISHED:
                return self
            case JobStatus.CANCELED:
                raise JobCanceled(f"job {job.name!r} ({self.id}) was cancelled", self.id)
            case JobStatus.FAILED:
                raise failed(job)
            case _:
                raise FlintlockError(f"job {self.id} has not ended: it is {job.status}")

    def changes(self) -> JobChanges:
        """Return who submitted the job, and who cancelled or rescaled it since."""
        return self._http.get(f"/jobs/{self.id}/changes", JobChanges)

    def waiting_note(self) -> str:
        """Return the job's place in the queue for slots, and what it needs, or what holds it up; empty: nothing."""
        notes = waiting_notes(self._http.get("/resources", ClusterResources))
        return notes.get(self.id) or waiting_note(self.attempts().waits_for, notes, self.id)

    def queries(self) -> QueriesResponse:
        """Return the job's streaming queries, with the figures of their latest batches."""
        return self._http.get(f"/jobs/{self.id}/queries", QueriesResponse)

    def attempts(self) -> JobAttempts:
        """Return regions, attempts, progress and failures as they are now."""
        return self._http.get(f"/jobs/{self.id}/attempts", JobAttempts)

    def logs(
        self,
        region: int | None = None,
        attempt: int | None = None,
        *,
        offset: int = 0,
        patience_s: float | None = None,
    ) -> tuple[LogPart, ...]:
        """Return what user code wrote, for each attempt; of one attempt from `offset` on."""
        params = {} if region is None else {"region": region, "attempt": attempt or 0, "offset": offset}
        return self._http.get(f"/jobs/{self.id}/logs", JobLogs, params=params, patience_s=patience_s).logs

    def events(self) -> Generator[JobsOverviewEntry]:
        """Yield the job as it is, then each time that it has changed, until it has ended.

        Waits for a JobManager that restarts meanwhile. Raises NotFound for a job that the cluster does not know.
        """
        last: JobsOverviewEntry | None = None
        while True:
            _ = self.status  # waits for a leader, and raises NotFound
            for line in self._http.lines(f"/events?job={self.id}"):
                kind, _, data = line.partition(": ")
                if kind != "data" or str(self.id) not in data:
                    continue
                job = msgspec.json.decode(data, type=JobsOverviewEntry)
                if job.jid != self.id or (last is not None and (job.state, job.tasks) == (last.state, last.tasks)):
                    continue
                last = job
                yield job
                if job.state.globally_terminal:
                    return

    def results(self) -> tuple[str, ...]:
        """Return the names of the results."""
        return self._http.get(f"/jobs/{self.id}/results", ResultNames).results

    def result(self, name: str | None = None) -> ResultHandle:
        """Return a result by its step's name. Its rows are fetched on first use, which may raise NotFound.

        Without a name: the only result. Raises NotFound if there is none (yet), Refused if there are several.
        """
        name = only_name(self.results()) if name is None else name
        path = f"/jobs/{self.id}/results/{name}"
        return ResultHandle(
            name,
            lambda: self._http.get(path, ResultTable),
            lambda: self._http.call("GET", path, headers={"Accept": ARROW_STREAM}).content,
        )

    def cancel(self, *, force: bool = False, patience_s: float | None = None) -> None:
        """Cancel the job; it is CANCELED once its work has stopped. Raises Conflict if it ended otherwise.

        `force` also ends publications, and attempts of a CANCELLING job that no TaskManager can end; the job's
        exceptions then say what is left behind.
        """
        params = {"mode": "cancel", **({"force": "true"} if force else {})}
        self._http.call("PATCH", f"/jobs/{self.id}", params=params, patience_s=patience_s)

    def rerun(
        self,
        *,
        params: Mapping[str, Scalar] | None = None,
        from_failed: bool = False,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Submit the job once more, with other values of its parameters, and return the handle of the new job.

        `from_failed`: what had finished before this job failed is not run again; its parameters stay.
        However often the request has to be repeated, it creates one job. Raises Conflict if the cluster no longer
        stores what the job needs, Invalid for parameters that the job does not have.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex, "Content-Type": "application/json"}
        body = msgspec.json.encode(RerunRequest(params=dict(params or {}), from_failed=from_failed))
        response = self._http.call("POST", f"/jobs/{self.id}/rerun", headers=headers, body=lambda: {"content": body})
        submitted = msgspec.json.decode(response.content, type=SubmittedJob)
        return JobHandle(self._http, JobId(submitted.jobid), self.name)

    def threads(self, step: str, subtask: int = 0) -> tuple[ThreadInfo, ...]:
        """Return what each Python thread of the runner does in which a step runs now.

        `subtask`: which of the regions that share the step. Raises NotFound for an unknown step, Conflict for one that
        does not run, Unavailable if its runner does not answer.
        """
        path = f"/jobs/{self.id}/vertices/{vertex_id(self.id, step)}/subtasks/{subtask}/thread-dump"
        return tuple(self._http.get(path, ThreadDump, patience_s=0.0).thread_infos)

    def quarantined(self) -> QuarantineEntry:
        """Return why the job is quarantined, and what is kept of it. Raises NotFound if it is not."""
        return self._http.get(f"/quarantine/{self.id}", QuarantineEntry)

    def retry_quarantined(self) -> None:
        """Put the quarantined job back, under its own id. Raises NotFound; Conflict if it is quarantined again."""
        self._http.call("POST", f"/quarantine/{self.id}/retry")

    def drop_quarantined(self) -> None:
        """Give the quarantined job up: its records, files and artifacts are removed. Raises NotFound, Conflict."""
        self._http.call("DELETE", f"/quarantine/{self.id}")

    def requirements(self) -> dict[str, VertexRequirements]:
        """Return what each step may use, by its vertex id. Raises NotFound."""
        return self._http.get(f"/jobs/{self.id}/resource-requirements", dict[str, VertexRequirements])

    @property
    def streaming(self) -> bool:
        """Whether it is a streaming job."""
        return self._http.get(f"/jobs/{self.id}", _JobKind).job_type == JobType.STREAMING

    def rescale(
        self, parallelism: int, *, timeout_s: float | None = None, trigger_id: str | None = None
    ) -> dict[str, VertexRequirements]:
        """Let every step use up to `parallelism` slots, durably, and return the new requirements.

        Of a batch job, it applies to regions that have not been deployed yet; running attempts are not changed. The
        queries of a streaming job are restarted, with `parallelism` partitions of their state, and this returns when
        all of them run again. Repeated with the same `trigger_id` (32 hex digits) it is the same rescale.

        Raises Invalid for what the graph does not allow, Conflict while another change is in progress or once the job
        has ended; FlintlockError if the state of a query could not be repartitioned: the job goes on as it was;
        TimeoutError if it takes longer than `timeout_s`.
        """
        if self.streaming:
            wanted = {"parallelism": parallelism, "triggerId": trigger_id or uuid.uuid4().hex}
            response = self._http.call("PATCH", f"/jobs/{self.id}/rescaling", params=wanted)
            triggered = msgspec.json.decode(response.content, type=TriggerResponse).request_id
            self._await_operation(f"rescaling/{triggered}", f"job {self.id} was not rescaled", timeout_s)
            return self.requirements()
        wanted = {
            name: VertexRequirements(
                parallelism=ParallelismBounds(lower=min(step.parallelism.lower, parallelism), upper=parallelism)
            )
            for name, step in self.requirements().items()
        }
        body = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        path = f"/jobs/{self.id}/resource-requirements"
        self._http.call("PUT", path, headers=headers, body=lambda: {"content": body})
        return wanted

    def savepoint(
        self, directory: str | None = None, *, timeout_s: float | None = None, trigger_id: str | None = None
    ) -> str:
        """Make a savepoint of the running streaming job, and return where it is; the job goes on.

        `directory` is one of the cluster, by default `state.savepoints.dir`. Repeated with the same `trigger_id` (32
        hex digits) it is the same savepoint, also if the leader has changed. Raises Conflict for a job that has ended,
        TimeoutError if it takes longer than `timeout_s`, FlintlockError if it cannot be made.
        """
        request = SavepointRequest(target_directory=directory, trigger_id=trigger_id or uuid.uuid4().hex)
        return self._await_savepoint(self._trigger("savepoints", request), timeout_s)

    def stop(
        self, directory: str | None = None, *, timeout_s: float | None = None, trigger_id: str | None = None
    ) -> str:
        """End the streaming job with a savepoint, and return where that is; the job is FINISHED then.

        Each query completes the batch that it has begun. As for the rest, see `savepoint`.
        """
        request = StopRequest(target_directory=directory, trigger_id=trigger_id or uuid.uuid4().hex)
        return self._await_savepoint(self._trigger("stop", request), timeout_s)

    def wait_until_running(self, timeout_s: float | None = None) -> None:
        """Return when every region of the job runs, of a streaming job its query, or when the job has finished.

        Raises JobFailed or JobCanceled if it ends otherwise, TimeoutError if it takes longer than `timeout_s`.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            job = self.attempts()
            latest = [region.latest for region in job.regions]
            if job.status is JobStatus.FINISHED or (latest and all(_is_under_way(attempt) for attempt in latest)):
                return
            if job.status is JobStatus.FAILED:
                raise failed(job)
            if job.status is JobStatus.CANCELED:
                raise JobCanceled(f"job {self.id} was cancelled", self.id)
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"job {self.id} does not run after {timeout_s:g} s")
            threading.Event().wait(POLL_OPERATION_S)

    def _trigger(self, what: str, request: SavepointRequest | StopRequest) -> str:
        """Trigger an operation and return its id."""
        body = msgspec.json.encode(request)
        headers = {"Content-Type": "application/json"}
        path = f"/jobs/{self.id}/{what}"
        response = self._http.call("POST", path, headers=headers, body=lambda: {"content": body})
        return msgspec.json.decode(response.content, type=TriggerResponse).request_id

    def _await_savepoint(self, trigger_id: str, timeout_s: float | None) -> str:
        return self._await_operation(f"savepoints/{trigger_id}", f"no savepoint of job {self.id} was made", timeout_s)

    def _await_operation(self, path: str, failed: str, timeout_s: float | None) -> str:
        """Wait for the outcome of an operation, and return the place of the savepoint that it has made, if any."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            outcome = self._http.get(f"/jobs/{self.id}/{path}", OperationResponse).operation
            if outcome is not None and outcome.failure_cause is not None:
                raise FlintlockError(f"{failed}: {outcome.failure_cause.stack_trace}")
            if outcome is not None:
                return outcome.location or ""
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(
                    f"the operation of job {self.id} is not complete after {timeout_s:g} s; its trigger"
                    f" id is {path.rpartition('/')[2]}"
                )
            threading.Event().wait(POLL_OPERATION_S)

    def __repr__(self) -> str:
        return f"<job {self.id} {self.name!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the job as it is now."""
        from flintlock.client.display.html import job_html

        job = self.attempts()
        return job_html(job, self.waiting_note() if job.waits_for else "")


def _is_under_way(attempt: AttemptInfo | None) -> bool:
    if attempt is None or attempt.state is not ExecutionState.RUNNING:
        return attempt is not None and attempt.state is ExecutionState.FINISHED
    return not attempt.activity.startswith(("analysing", "starting", "completing", "repartitioning", "waiting"))


def failed(job: JobAttempts) -> JobFailed:
    """Return the error for a failed job, with the text for its user."""
    failure = failure_of(job.failure)
    if failure is None:
        error = JobFailed(f"job {job.name!r} ({job.jobid}) failed")
    else:
        from flintlock.model.failures.failure_text import render

        before = failure_lines(job) if len(job.failures) > 1 else []
        lines = [f"job {job.name!r} ({job.jobid}) failed", *before, render(failure, verbose=False)]
        error = JobFailed("\n".join(lines))
    error.failure, error.job_id = failure, JobId(job.jobid)
    return error
