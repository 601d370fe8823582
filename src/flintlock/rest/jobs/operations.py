"""Operations of a job: rescaling and savepoints, triggered with an id, and their status by that id."""

from __future__ import annotations

import uuid

from flintlock.api import jobs as shapes
from flintlock.api.requests import DisposalRequest, SavepointRequest, StopRequest
from flintlock.model.commands import (
    JobOperation,
    OperationCommand,
    OperationQuery,
    OperationStatus,
    RescaleJob,
    StopJob,
    TriggerOperation,
    TriggerSavepoint,
)
from flintlock.model.errors import Invalid
from flintlock.model.ids import TriggerId, is_job_id
from flintlock.model.streaming.savepoints import DisposalQuery, DisposeSavepoint
from flintlock.rest.server.http import HttpResponse, RestCall, json_response
from flintlock.rest.server.request_body import read_as


async def trigger_rescaling(call: RestCall) -> HttpResponse:
    """Rescale all steps of a running job as an operation; `triggerId` makes it safe to send again."""
    parallelism = call.integer("parallelism", minimum=1)
    if parallelism is None:
        raise Invalid("query parameter 'parallelism' is missing")
    command = RescaleJob(job_id=call.job_id, parallelism=parallelism, requested_by=call.principal.name)
    return await _trigger(call, call.request.query_params.get("triggerId"), command)


async def rescaling(call: RestCall) -> HttpResponse:
    """The status of a rescaling, and once it is completed its outcome."""
    return _status(await _operation(call))


async def trigger_savepoint(call: RestCall) -> HttpResponse:
    """Make a savepoint of a running streaming job; `triggerId` makes it safe to send again."""
    request = await read_as(call.request, SavepointRequest)
    if request.cancel_job:
        raise Invalid("cancel-job: is not supported: cancel the job when the savepoint is completed")
    command = TriggerSavepoint(
        job_id=call.job_id, target_directory=request.target_directory or "", requested_by=call.principal.name
    )
    return await _trigger(call, request.trigger_id, command)


async def trigger_stop(call: RestCall) -> HttpResponse:
    """End a streaming job with a savepoint; its status is asked for as that of a savepoint."""
    request = await read_as(call.request, StopRequest)
    if request.drain:
        raise Invalid("drain: is not supported: Spark cannot advance the watermark of a query to its end")
    command = StopJob(
        job_id=call.job_id, target_directory=request.target_directory or "", requested_by=call.principal.name
    )
    return await _trigger(call, request.trigger_id, command)


async def savepoint(call: RestCall) -> HttpResponse:
    """The status of a savepoint, and once it is completed where it is, or why it could not be made."""
    return _status(await _operation(call))


async def dispose(call: RestCall) -> HttpResponse:
    """Remove a savepoint; `triggerId` makes it safe to send again, and its status says what came of it."""
    request = await read_as(call.request, DisposalRequest)
    trigger_id = _trigger_id(request.trigger_id or uuid.uuid4().hex)
    await call.services.dispatcher.dispose_savepoint(
        DisposeSavepoint(trigger_id=trigger_id, path=request.savepoint_path)
    )
    return json_response(shapes.TriggerResponse(request_id=trigger_id), 202)


async def disposal(call: RestCall) -> HttpResponse:
    """The status of the removal of a savepoint, one of the latest, and once it is completed what came of it."""
    query = DisposalQuery(trigger_id=_trigger_id(call.path("triggerid")))
    disposed = await call.services.dispatcher.disposal(query)
    status, outcome = OperationStatus.IN_PROGRESS, None
    if disposed.completed:
        status, outcome = OperationStatus.COMPLETED, shapes.OperationOutcome()
    if disposed.error:
        cause = shapes.FailureCause(class_=disposed.error, stack_trace=disposed.message, serialized_throwable="")
        outcome = shapes.OperationOutcome(failure_cause=cause)
    return json_response(shapes.OperationResponse(status=shapes.OperationStatusId(id=status), operation=outcome))


async def _trigger(call: RestCall, trigger_id: str | None, command: OperationCommand) -> HttpResponse:
    trigger = TriggerOperation(trigger_id=_trigger_id(trigger_id or uuid.uuid4().hex), command=command)
    operation = await call.services.dispatcher.trigger(trigger)
    return json_response(shapes.TriggerResponse(request_id=operation.trigger_id), 202)


async def _operation(call: RestCall) -> JobOperation:
    query = OperationQuery(job_id=call.job_id, trigger_id=_trigger_id(call.path("triggerid")))
    return await call.services.dispatcher.operation(query)


def _status(operation: JobOperation) -> HttpResponse:
    failure, outcome = operation.failure, None
    if operation.status is OperationStatus.COMPLETED:
        outcome = shapes.OperationOutcome(
            location=operation.location or None,
            failure_cause=None
            if failure is None
            else shapes.FailureCause(class_=failure.error, stack_trace=failure.message, serialized_throwable=""),
        )
    return json_response(
        shapes.OperationResponse(status=shapes.OperationStatusId(id=operation.status), operation=outcome)
    )


def _trigger_id(text: str) -> TriggerId:
    if not is_job_id(text.lower()):
        raise Invalid(f"{text!r} is not a trigger id: 32 hex digits")
    return TriggerId(text.lower())
