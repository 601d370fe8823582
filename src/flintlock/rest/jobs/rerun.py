"""POST /jobs/:jobid/rerun: a job is submitted once more, from what is stored of it."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import structs

from flintlock.api import jobs as shapes
from flintlock.api.requests import RerunRequest
from flintlock.model.checking.problems import reported
from flintlock.model.checking.rerun import continuation_refusal, continued_graph, rerun_graph
from flintlock.model.errors import Conflict, Invalid
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobQuery, JobSnapshot, JobSubmission
from flintlock.rest.jobs.submission import BlobUploads, idempotency_key
from flintlock.rest.server.http import HttpResponse, RestCall, json_response
from flintlock.rest.server.request_body import read_as

_REMEDY: Final = "submit it again with `flintlock run`"
_SHOWN: Final = 3


async def rerun(call: RestCall) -> HttpResponse:
    """Run a job again, as a new job, with other values of its parameters; responds once the new job is durable."""
    services, request = call.services, await read_as(call.request, RerunRequest)
    snapshot = await services.dispatcher.job(JobQuery(job_id=call.job_id))
    earlier = snapshot.graph
    if not earlier.vertices:
        raise Conflict(f"the steps of job {call.job_id} are no longer stored: {_REMEDY}")
    graph, problems = rerun_graph(earlier, services.new_job_id(), request.params)
    if request.from_failed:
        _check_continues(snapshot, request)
        graph = continued_graph(earlier, graph.job_id)
    if problems:
        lines = reported(problems)
        raise Invalid("; ".join(lines), problems=lines)
    key = idempotency_key(call.request)
    digest = hashlib.sha256(call.job_id.encode() + msgspec.json.encode(request, order="deterministic")).hexdigest()
    message = JobSubmission(
        graph=structs.replace(graph, submitted_by=call.principal.name),
        idempotency_key=key,
        digest="" if key is None else digest,
    )
    with services.blobs.pin(artifact.blob for artifact in graph.artifacts):
        await _check_files(earlier, services.blobs)
        submitted = await services.dispatcher.submit_job(message)
    replay = {"Idempotent-Replay": "true"} if submitted.existing else {}
    return json_response(shapes.SubmittedJob(jobid=submitted.job_id), 202, replay)


def _check_continues(snapshot: JobSnapshot, request: RerunRequest) -> None:
    """Raise Invalid or Conflict if there is nothing in which a job could continue where this one failed."""
    if request.params:
        raise Invalid("parameters cannot be changed with from-failed: what had finished was computed with the old ones")
    refusal = continuation_refusal(snapshot)
    if refusal is not None:
        raise Conflict(refusal)


async def _check_files(graph: JobGraph, blobs: BlobUploads) -> None:
    """Raise Conflict if files of the job are no longer stored."""
    gone = [artifact.name for artifact in graph.artifacts if await blobs.size_of(artifact.blob) is None]
    if gone:
        raise Conflict(
            f"files of job {graph.job_id} are no longer stored ({', '.join(gone[:_SHOWN])}"
            f"{' …' if len(gone) > _SHOWN else ''}; blob.ended-jobs.max-size, job-result-store.retention): {_REMEDY}"
        )
