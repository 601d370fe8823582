"""Commands: what a client may ask of a job, and what a job's master may ask of a task.

A command is one message, the same struct from where it is given to where it is carried out:

    JobCommand    client -> REST -> DispatcherGateway.command -> DispatchedJob -> JobMasterRunner.command
    TaskCommand   JobMaster -> TaskManagerGateway.command -> EngineSession -> Runner.command -> the runner's process

So a new command is a new member of its union and a case at each end, where a type checker points at what is missing;
nothing between the ends is edited. The next members of `JobCommand` are StopJob, TriggerSavepoint and
TriggerCheckpoint; a command to a running task that has something to answer adds a member to `TaskAnswer` too.
`docs/contributing-commands.md` lists the places.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from flintlock.model.ids import AttemptId, JobId, VertexId
from flintlock.model.jobs import ParallelismRange


class CancelJob(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End the job. Acknowledged once it is accepted, not once the job has ended; a CANCELED job acknowledges again."""

    job_id: JobId


class RescaleJob(Struct, frozen=True, kw_only=True, tag="rescale"):
    """Let these steps use another number of slots. Steps that are not named keep what they have."""

    job_id: JobId
    vertices: dict[VertexId, ParallelismRange]


JobCommand: TypeAlias = CancelJob | RescaleJob


class CancelTask(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End this attempt. Unknown or ended attempts are reported as CANCELED."""

    attempt: AttemptId


TaskCommand: TypeAlias = CancelTask


class CommandAccepted(Struct, frozen=True, kw_only=True, tag="accepted"):
    """The command is being carried out; what it leads to is reported."""


TaskAnswer: TypeAlias = CommandAccepted
