"""Short ways to name attempts and to order them deployed."""

from __future__ import annotations

from typing import Final

from flintlock.model.ids import AttemptId, BlobKey, InstanceId, JobId, RegionId, StepName
from flintlock.model.jobgraph import Artifact, JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Result, Source
from flintlock.model.regions import regions_of
from flintlock.model.tasks import DeployTask, Failure, FailureKind, TaskFailed

JOB: Final = JobId("0123456789abcdef0123456789abcdef")


def attempt_id(attempt: int = 0, region: int = 0) -> AttemptId:
    return AttemptId(job_id=JOB, region=RegionId(region), attempt=attempt)


def order(
    attempt: AttemptId,
    *slots: int,
    cancel_timeout_s: float = 10.0,
    artifacts: tuple[str, ...] = (),
    instance: str | None = "instance-1",
    lease_s: float = 0.0,
) -> DeployTask:
    """A deployment of a graph with one source and one result."""
    graph = JobGraph(
        job_id=JOB,
        name="job",
        vertices=(
            JobVertex(id=vertex_id(JOB, "a"), name=StepName("a"), operation=Source(format="csv", paths=("in",))),
            JobVertex(id=vertex_id(JOB, "top"), name=StepName("top"), operation=Result(), inputs=(StepName("a"),)),
        ),
        artifacts=tuple(Artifact(name=name, blob=BlobKey(f"blob-of-{name}")) for name in artifacts),
    )
    return DeployTask(
        attempt=attempt,
        graph=graph,
        region=regions_of(graph)[0],
        slots=slots or (0,),
        cancel_timeout_s=cancel_timeout_s,
        instance=None if instance is None else InstanceId(instance),
        lease_s=lease_s,
    )


def failed(message: str = "it broke", kind: FailureKind = FailureKind.USER_CODE) -> TaskFailed:
    return TaskFailed(failure=Failure(kind=kind, message=message, exception="ValueError"))
