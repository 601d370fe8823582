"""Handlers of the routes about jobs."""

from __future__ import annotations

import asyncio
import codecs
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import structs

from flintlock.api import jobs as shapes
from flintlock.api.requests import ClientHeartbeatRequest
from flintlock.config.options import UPLOAD_LIMIT
from flintlock.model.commands import CancelJob, RescaleJob
from flintlock.model.errors import Invalid, NotFound, Unavailable
from flintlock.model.ids import AttemptId, VertexId
from flintlock.model.jobs import (
    AwaitJob,
    ClientHeartbeat,
    ExecutionInfo,
    JobQuery,
    JobSnapshot,
    ParallelismRange,
    ResultQuery,
)
from flintlock.model.tasks import LogChunk, LogQuery
from flintlock.rest.jobs import translate
from flintlock.rest.jobs.requirements import read_requirements
from flintlock.rest.jobs.submission import reading_submission, store_uploads
from flintlock.rest.server.http import ARROW, HttpResponse, RestCall, json_response, no_such
from flintlock.rest.server.request_body import read_as, read_stream

_MAX_EXCEPTIONS: Final = 20
_LOG_BYTES: Final = 1 << 20  # of all attempts in one response; the latest attempts come first
_CANCEL_TIMEOUT_S: Final = 60.0


async def submit(call: RestCall) -> HttpResponse:
    """Persist and start a job; responds once the job is durable."""
    services = call.services
    limit = services.configuration.get(UPLOAD_LIMIT)
    async with reading_submission(call.request, services.blobs, services.new_job_id(), limit) as submission:
        with services.blobs.pin(submission.blob_keys):
            await store_uploads(submission, services.blobs)
            graph = structs.replace(submission.message.graph, submitted_by=call.principal.name)
            submitted = await services.dispatcher.submit_job(structs.replace(submission.message, graph=graph))
        if submitted.existing:  # its files were stored with the first submission
            await services.blobs.abandon([upload.key for upload in submission.uploads])
    replay = {"Idempotent-Replay": "true"} if submitted.existing else {}
    return json_response(shapes.SubmittedJob(jobid=submitted.job_id), 202, replay)


async def upload_blob(call: RestCall) -> HttpResponse:
    """Store content for a later submission."""
    stream = read_stream(call.request, call.services.configuration.get(UPLOAD_LIMIT))
    key, size = await call.services.blobs.put(stream)
    return json_response(shapes.StoredBlob(blob=key, size=size), 201)


async def details(call: RestCall) -> HttpResponse:
    """One job with its steps and its plan."""
    return json_response(translate.job_details(await _job(call), call.services.clock_ms(), call.services.application))


async def plan(call: RestCall) -> HttpResponse:
    """The plan of one job."""
    return json_response(shapes.PlanResponse(plan=translate.plan(await _job(call))))


async def config(call: RestCall) -> HttpResponse:
    """The configuration of one job."""
    return json_response(translate.job_config(await _job(call)))


async def status(call: RestCall) -> HttpResponse:
    """The state of one job."""
    return json_response(shapes.JobStatusResponse(status=(await _job(call)).status))


async def exceptions(call: RestCall) -> HttpResponse:
    """The failures of one job, newest first."""
    at_most = call.integer("maxExceptions")
    return json_response(translate.exceptions(await _job(call), _MAX_EXCEPTIONS if at_most is None else at_most))


async def execution_result(call: RestCall) -> HttpResponse:
    """How one job ended; `wait` delays the response until it has ended."""
    job = await call.services.dispatcher.await_job(AwaitJob(job_id=call.job_id, wait_s=call.wait_s()))
    return json_response(translate.execution_result(job))


async def cancel(call: RestCall) -> HttpResponse:
    """Cancel a job; responds once the request is durable. The job ends later."""
    mode = call.request.query_params.get("mode", "cancel")
    if mode != "cancel":
        raise Invalid(f"query parameter 'mode': {mode!r} is not supported; use 'cancel'")
    try:
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            await call.services.dispatcher.command(
                CancelJob(job_id=call.job_id, force=call.flag("force"), requested_by=call.principal.name)
            )
    except TimeoutError:
        text = f"job {call.job_id} did not accept the cancellation within {_CANCEL_TIMEOUT_S:g} s; try again"
        return json_response(shapes.Errors(errors=[text]), 408)
    return json_response(shapes.Empty(), 202)


async def requirements(call: RestCall) -> HttpResponse:
    """The parallelism that the steps of a running job may use."""
    found = await call.services.dispatcher.requirements(JobQuery(job_id=call.job_id))
    return json_response(
        {
            name: shapes.VertexRequirements(
                parallelism=msgspec.convert(bounds, shapes.ParallelismBounds, from_attributes=True)
            )
            for name, bounds in found.vertices.items()
        }
    )


async def update_requirements(call: RestCall) -> HttpResponse:
    """Change the parallelism that the steps of a running job may use; responds once the change is durable."""
    job_id, given = call.job_id, await read_requirements(call.request)
    vertices = {
        VertexId(name): msgspec.convert(item.parallelism, ParallelismRange, from_attributes=True)
        for name, item in given.items()
    }
    await call.services.dispatcher.command(
        RescaleJob(job_id=job_id, vertices=vertices, requested_by=call.principal.name)
    )
    return json_response(shapes.Empty())


async def changes(call: RestCall) -> HttpResponse:
    """Who submitted one job, and who cancelled or rescaled it since."""
    job = await _job(call)
    recorded = await call.services.dispatcher.job_changes(JobQuery(job_id=call.job_id))
    return json_response(translate.changes(job, recorded))


async def client_heartbeat(call: RestCall) -> HttpResponse:
    """Report that the client of an attached job is alive, which counts for the timeout that the job was submitted with.

    `expiredTimestamp` is Flink's. It has to be there, and counts for nothing: clocks may differ, and jump.
    """
    job_id = call.job_id
    await read_as(call.request, ClientHeartbeatRequest)
    await call.services.dispatcher.client_heartbeat(ClientHeartbeat(job_id=job_id))
    return json_response(shapes.Empty(), 202)


async def attempts(call: RestCall) -> HttpResponse:
    """Every region of one job with every attempt at it."""
    return json_response(translate.attempts(await _job(call)))


async def results(call: RestCall) -> HttpResponse:
    """The names of one job's results."""
    return json_response(shapes.ResultNames(results=(await _job(call)).result_names))


async def result(call: RestCall) -> HttpResponse:
    """The rows of one result of a job, as JSON or Arrow."""
    rows = await call.services.dispatcher.result(ResultQuery(job_id=call.job_id, name=call.path("name")))
    if ARROW in call.request.headers.get("accept", "").lower():
        return HttpResponse(body=rows.arrow, content_type=ARROW)
    head = msgspec.json.encode({"name": rows.name, "truncated": rows.truncated})
    return HttpResponse(body=head[:-1] + b"," + rows.json[1:])


async def logs(call: RestCall) -> HttpResponse:
    """What user code printed, by attempt, 1 MB in all; `offset` needs `region` and `attempt`."""
    region, attempt = call.integer("region"), call.integer("attempt")
    offset = call.integer("offset", -(1 << 63)) or 0
    if offset and (region is None or attempt is None):
        raise Invalid("query parameter 'offset': needs 'region' and 'attempt'")
    job = await _job(call)
    chosen = [item for item in job.executions if region in (None, item.region) and attempt in (None, item.attempt)]
    if not chosen and (region is not None or attempt is not None):
        wanted = f"region {'any' if region is None else region}, attempt {'any' if attempt is None else attempt}"
        raise no_such("output", f"of {wanted} of job {job.graph.job_id}")
    found: list[shapes.LogPart] = []
    left = _LOG_BYTES
    for item in reversed(chosen):
        if item.task_manager:
            where = AttemptId(job_id=job.graph.job_id, region=item.region, attempt=item.attempt)
            query = LogQuery(task_manager=item.task_manager, attempt=where, offset=offset, limit=left)
            part, size = await _log(call, item, query)
            found.append(part)
            left -= size
    return json_response(shapes.JobLogs(logs=tuple(reversed(found))))


async def _log(call: RestCall, item: ExecutionInfo, query: LogQuery) -> tuple[shapes.LogPart, int]:
    """Return a part of an attempt's output, and how many bytes it has."""
    try:
        chunk = await call.services.resource_manager.read_log(query)
    except (NotFound, Unavailable) as error:  # nothing is written yet, or the TaskManager does not respond
        start = max(query.offset, 0)
        ended = item.state.terminal and isinstance(error, NotFound)
        chunk = _stored_output(item.output_tail, query) if item.output_tail else None
        chunk = chunk or LogChunk(data=b"", offset=start, size=start, complete=ended)
    text, consumed, stderr = _decoded(chunk)
    part = shapes.LogPart(
        region=item.region,
        attempt=item.attempt,
        taskmanager_id=query.task_manager,
        offset=chunk.offset,
        next_offset=chunk.offset + consumed,
        size=chunk.size,
        complete=chunk.complete,
        text=text,
        stderr=stderr,
    )
    return part, len(chunk.data)


def _decoded(chunk: LogChunk) -> tuple[str, int, tuple[shapes.TextSpan, ...]]:
    """Return the text of a piece of output, how many bytes it has, and which characters are standard error."""
    # A character of which only the first bytes have been written is returned with the next piece.
    at_end = chunk.complete and chunk.offset + len(chunk.data) >= chunk.size
    if not chunk.stderr:
        return *codecs.utf_8_decode(chunk.data, "replace", at_end), ()
    places = [0, *(place - chunk.offset for span in chunk.stderr for place in span), len(chunk.data)]
    pieces: list[str] = []
    spans: list[shapes.TextSpan] = []
    length, consumed = 0, 0
    for number, (first, last) in enumerate(pairwise(places)):  # every second one is standard error
        final = at_end or last < len(chunk.data)
        piece, used = codecs.utf_8_decode(chunk.data[first:last], "replace", final)
        if number % 2 and piece:
            spans.append(shapes.TextSpan(start=length, end=length + len(piece)))
        pieces.append(piece)
        length, consumed = length + len(piece), consumed + used
    return "".join(pieces), consumed, tuple(spans)


def _stored_output(tail: bytes, query: LogQuery) -> LogChunk:
    """Return the end of the output that is stored with the job: the TaskManagers that have all of it are gone."""
    whole = f"[flintlock: what is left of the output is its last {len(tail)} bytes]\n".encode() + tail
    offset = max(len(whole) + query.offset, 0) if query.offset < 0 else min(query.offset, len(whole))
    return LogChunk(data=whole[offset : offset + query.limit], offset=offset, size=len(whole), complete=True)


async def _job(call: RestCall) -> JobSnapshot:
    return await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
