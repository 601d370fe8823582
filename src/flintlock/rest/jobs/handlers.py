"""Handlers of all that concerns jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Final

import msgspec

from flintlock.api import jobs as shapes
from flintlock.config.options import UPLOAD_LIMIT
from flintlock.model.errors import Fenced, Invalid, NotFound, Unavailable
from flintlock.model.ids import AttemptId, TaskManagerId, VertexId
from flintlock.model.jobs import (
    AwaitJob,
    ClientHeartbeat,
    ExecutionInfo,
    JobQuery,
    JobRequirements,
    JobSnapshot,
    JobsOverview,
    JobSummary,
    ParallelismRange,
    ResultQuery,
)
from flintlock.model.tasks import LogChunk, LogQuery
from flintlock.rest.jobs import bodies, translate
from flintlock.rest.jobs.submission import read_stream, reading_submission, store_uploads
from flintlock.rest.server.http import ARROW, Answer, Call, answer, no_such

MAX_WAIT_S: Final = 600.0
_EVENT_INTERVAL_S: Final = 0.25
_EVENT_SILENCE_S: Final = 10.0
_MAX_EXCEPTIONS: Final = 20
_CANCEL_TIMEOUT_S: Final = 60.0


async def submit(call: Call) -> Answer:
    """Persist and start a job; the answer comes once it is durable."""
    services = call.services
    limit = services.configuration.get(UPLOAD_LIMIT)
    async with reading_submission(call.request, services.blobs, services.new_job_id(), limit) as submission:
        with services.blobs.hold(submission.blob_keys):
            await store_uploads(submission, services.blobs)
            submitted = await services.dispatcher.submit_job(submission.message)
        if submitted.existing:  # its files came with the first one
            await services.blobs.abandon([upload.key for upload in submission.uploads])
    replay = {"Idempotent-Replay": "true"} if submitted.existing else {}
    return answer(shapes.Jobid(jobid=submitted.job_id), 202, replay)


async def upload_blob(call: Call) -> Answer:
    """Store content that a later submission names."""
    stream = read_stream(call.request, call.services.configuration.get(UPLOAD_LIMIT))
    key, size = await call.services.blobs.put(stream)
    return answer(shapes.BlobAnswer(blob=key, size=size), 201)


async def list_ids(call: Call) -> Answer:
    """All jobs: id and status."""
    listing = await call.services.dispatcher.list_jobs()
    return answer(shapes.JobIds(jobs=[shapes.JobIdStatus(id=job.job_id, status=job.status) for job in listing.jobs]))


async def overview(call: Call) -> Answer:
    """All jobs, a line each, newest first."""
    listing = await call.services.dispatcher.list_jobs()
    entries = [translate.overview_entry(job, call.services.clock_ms()) for job in listing.jobs]
    return answer(shapes.JobsOverviewAnswer(jobs=entries))


async def details(call: Call) -> Answer:
    """One job with its steps and its plan."""
    return answer(translate.job_details(await _job(call), call.services.clock_ms()))


async def plan(call: Call) -> Answer:
    """The plan of one job."""
    return answer(shapes.PlanAnswer(plan=translate.plan(await _job(call))))


async def config(call: Call) -> Answer:
    """How one job was configured."""
    return answer(translate.job_config(await _job(call)))


async def status(call: Call) -> Answer:
    """The state of one job."""
    return answer(shapes.JobStatusAnswer(status=(await _job(call)).status))


async def exceptions(call: Call) -> Answer:
    """The failures of one job, newest first."""
    at_most = call.integer("maxExceptions")
    return answer(translate.exceptions(await _job(call), _MAX_EXCEPTIONS if at_most is None else at_most))


async def execution_result(call: Call) -> Answer:
    """How one job ended; `wait` holds the answer until it has."""
    wait_s = min(call.duration_s("wait"), MAX_WAIT_S)
    job = await call.services.dispatcher.await_job(AwaitJob(job_id=call.job_id, wait_s=wait_s))
    return answer(translate.execution_result(job))


async def cancel(call: Call) -> Answer:
    """Ask a job to end."""
    mode = call.request.query_params.get("mode", "cancel")
    if mode != "cancel":
        raise Invalid(f"query parameter 'mode': {mode!r} is not supported; use 'cancel'")
    try:
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            await call.services.dispatcher.cancel_job(JobQuery(job_id=call.job_id))
    except TimeoutError:
        said = f"job {call.job_id} did not take the cancel within {_CANCEL_TIMEOUT_S:g} s; ask again"
        return answer(shapes.Errors(errors=[said]), 408)
    return answer(shapes.Empty(), 202)


async def requirements(call: Call) -> Answer:
    """What the steps of a running job may use."""
    found = await call.services.dispatcher.requirements(JobQuery(job_id=call.job_id))
    return answer(
        {
            name: bodies.VertexRequirements(
                parallelism=bodies.ParallelismBounds(lower_bound=bounds.lower, upper_bound=bounds.upper)
            )
            for name, bounds in found.vertices.items()
        }
    )


async def update_requirements(call: Call) -> Answer:
    """Change what the steps of a running job may use; durable once it is answered."""
    job_id, given = call.job_id, await bodies.read_requirements(call.request)
    vertices = {
        VertexId(name): ParallelismRange(lower=item.parallelism.lower_bound, upper=item.parallelism.upper_bound)
        for name, item in given.items()
    }
    await call.services.dispatcher.update_requirements(JobRequirements(job_id=job_id, vertices=vertices))
    return answer(shapes.Empty())


async def client_heartbeat(call: Call) -> Answer:
    """Say that the client of an attached job is there, and until when that counts."""
    job_id, given = call.job_id, await bodies.read_heartbeat(call.request)
    await call.services.dispatcher.client_heartbeat(ClientHeartbeat(job_id=job_id, expires_ms=given.expired_timestamp))
    return answer(shapes.Empty(), 202)


async def attempts(call: Call) -> Answer:
    """Every region of one job with every attempt at it."""
    return answer(translate.attempts(await _job(call)))


async def results(call: Call) -> Answer:
    """The names of the results that one job keeps."""
    return answer(shapes.ResultNames(results=[*(await _job(call)).result_names]))


async def result(call: Call) -> Answer:
    """Rows that one job kept, as JSON or Arrow."""
    rows = await call.services.dispatcher.result(ResultQuery(job_id=call.job_id, name=call.path("name")))
    if ARROW in call.request.headers.get("accept", "").lower():
        return Answer(body=rows.arrow, content_type=ARROW)
    head = msgspec.json.encode({"name": rows.name, "truncated": rows.truncated})
    return Answer(body=head[:-1] + b"," + rows.json[1:])


async def logs(call: Call) -> Answer:
    """What user code printed, by attempt; `offset` counts for one attempt, given with its region."""
    region, attempt = call.integer("region"), call.integer("attempt")
    offset = call.integer("offset", -(1 << 63)) or 0
    if offset and (region is None or attempt is None):
        raise Invalid("query parameter 'offset': give 'region' and 'attempt', whose output it counts in")
    job = await _job(call)
    chosen = [item for item in job.executions if region in (None, item.region) and attempt in (None, item.attempt)]
    if not chosen and (region is not None or attempt is not None):
        wanted = f"region {'any' if region is None else region}, attempt {'any' if attempt is None else attempt}"
        raise no_such("output", f"of {wanted} of job {job.graph.job_id}")
    found = [await _log(call, job, item, item.task_manager, offset) for item in chosen if item.task_manager]
    return answer(shapes.LogsAnswer(logs=found))


async def _log(
    call: Call, job: JobSnapshot, item: ExecutionInfo, task_manager: TaskManagerId, offset: int
) -> shapes.LogAnswer:
    where = AttemptId(job_id=job.graph.job_id, region=item.region, attempt=item.attempt)
    try:
        chunk = await call.services.resource_manager.read_log(
            LogQuery(task_manager=task_manager, attempt=where, offset=offset)
        )
    except (NotFound, Unavailable) as error:  # the runner has not begun to write, or the TaskManager is away
        start = max(offset, 0)
        ended = item.state.terminal and isinstance(error, NotFound)
        chunk = LogChunk(data=b"", offset=start, size=start, complete=ended)
    whole = chunk.data if chunk.complete and chunk.offset + len(chunk.data) >= chunk.size else _characters(chunk.data)
    return shapes.LogAnswer(
        region=item.region,
        attempt=item.attempt,
        taskmanager_id=task_manager,
        offset=chunk.offset,
        next_offset=chunk.offset + len(whole),
        size=chunk.size,
        complete=chunk.complete,
        text=whole.decode(errors="replace"),
    )


def _characters(data: bytes) -> bytes:
    """Leave out a character at the end that is not whole yet: its other half comes with the next piece."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of 2 to 4 bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < length else data
        if byte < 0x80:
            break
    return data


async def events(call: Call) -> AsyncGenerator[bytes]:
    """Server-sent events: a line for each job that changed, beginning with all of them.

    Says every few seconds that there is nothing to say, so that silence means that nobody is there. Ends when nobody
    leads here for longer: whoever asks again is led to the one that does.
    """
    seen: dict[str, JobSummary] = {}
    last: JobsOverview | None = None
    clock_s = asyncio.get_running_loop().time
    said_s = led_s = clock_s()
    while True:
        try:
            listing = await call.services.dispatcher.list_jobs()
        except (Unavailable, Fenced):  # nobody leads for a moment: whoever leads next is asked next
            if clock_s() - led_s > _EVENT_SILENCE_S:
                return
        else:
            led_s = clock_s()
            changed = [job for job in listing.jobs if seen.get(job.job_id) != job] if listing is not last else []
            if listing is not last:
                last, seen = listing, {job.job_id: job for job in listing.jobs}
            if changed or clock_s() - said_s > _EVENT_SILENCE_S:
                said_s = clock_s()
                yield b"".join(_event_lines(changed, call.services.clock_ms())) or b": nothing new\n\n"
        await asyncio.sleep(_EVENT_INTERVAL_S)


def _event_lines(changed: Iterable[JobSummary], now_ms: int) -> Iterable[bytes]:
    for job in changed:
        data = msgspec.json.encode(translate.overview_entry(job, now_ms))
        yield b"event: job\ndata: " + data + b"\n\n"


async def _job(call: Call) -> JobSnapshot:
    return await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
