"""Handlers of the routes about one step of one job."""

from __future__ import annotations

from flintlock.api import vertices as shapes
from flintlock.api.cluster import Metric
from flintlock.model.commands import DumpThreads, ThreadsDumped
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.ids import AttemptId
from flintlock.model.jobs import JobQuery
from flintlock.rest.cluster import process
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such
from flintlock.rest.vertices import translate
from flintlock.rest.vertices.watermarks import INPUT_WATERMARK, active_queries, input_watermark_ms


async def details(call: RestCall) -> HttpResponse:
    """One step with its subtasks: the current attempt at each of its regions."""
    return json_response(translate.details(await view_of(call)))


async def times(call: RestCall) -> HttpResponse:
    """When a step's subtasks entered each state."""
    return json_response(translate.times(await view_of(call)))


async def task_managers(call: RestCall) -> HttpResponse:
    """Where a step runs."""
    return json_response(translate.task_managers(await view_of(call)))


async def subtask(call: RestCall) -> HttpResponse:
    """One subtask of a step; steps of batch jobs have one, number 0."""
    return json_response(translate.subtask(await subtask_of(call)))


async def thread_dump(call: RestCall) -> HttpResponse:
    """The stack of every Python thread of the runner in which a subtask runs now."""
    view = await subtask_of(call)
    number = view.current.attempt if view.current else 0
    attempt = AttemptId(job_id=view.job.graph.job_id, region=view.region.id, attempt=number)
    answer = await call.services.dispatcher.query_task(DumpThreads(attempt=attempt))
    if not isinstance(answer, ThreadsDumped):
        raise Unavailable(f"the runner of attempt {attempt} returned no threads")
    return json_response(process.thread_dump(answer.threads))


async def accumulators(call: RestCall) -> HttpResponse:
    """The accumulators of a step: none."""
    return json_response(translate.accumulators(await view_of(call)))


async def subtasks_accumulators(call: RestCall) -> HttpResponse:
    """The accumulators of a step by subtask: none."""
    return json_response(translate.subtasks_accumulators(await view_of(call)))


async def watermarks(call: RestCall) -> HttpResponse:
    """The watermark of each subtask of a step, as the latest batch of its query had it; none of sources."""
    found = [(one.index, input_watermark_ms(one, active_queries(one))) for one in (await view_of(call)).subtasks]
    return json_response(
        [Metric(id=f"{index}.{INPUT_WATERMARK}", value=str(at)) for index, at in found if at is not None]
    )


async def job_accumulators(call: RestCall) -> HttpResponse:
    """The accumulators of a job: none."""
    await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    return json_response(
        shapes.JobAccumulators(job_accumulators=[], user_task_accumulators=[], serialized_user_task_accumulators={})
    )


async def view_of(call: RestCall) -> translate.VertexView:
    """Return the step that the path names. Raises NotFound."""
    job = await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    wanted = call.path("vertexid")
    view = translate.find_vertex(job, wanted.lower(), call.services.clock_ms())
    if view is None:
        raise no_such("vertex", f"{wanted} of job {job.graph.job_id}")
    return view


async def subtask_of(call: RestCall) -> translate.SubtaskView:
    """Return the subtask that the path names: 0, unless several regions share the step. Raises NotFound, Invalid."""
    text = call.path("subtaskindex")
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"{text!r} is not the number of a subtask")
    view = await view_of(call)
    subtasks = view.subtasks
    index = text.lstrip("0") or "0"
    if len(index) > len(str(len(subtasks))) or int(index) >= len(subtasks):
        raise no_such("subtask", f"{text} of step {view.vertex.name!r}")
    return subtasks[int(index)]
