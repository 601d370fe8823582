"""Records to put into stores."""

from __future__ import annotations

from msgspec import structs

from flintlock.model.access.principals import Role
from flintlock.model.access.tokens import AccessToken, AccessTokens
from flintlock.model.commands import CancelJob, JobOperation, JobOperations, OperationFailure, RescaleJob
from flintlock.model.errors import Invalid
from flintlock.model.files.manifests import manifest_of
from flintlock.model.ids import AccessTokenId, InstanceId, JobId, RegionId, StepName, TaskManagerId, TriggerId
from flintlock.model.jobgraph import Artifact, BlobKey, JobGraph, JobVertex, Scalar, vertex_id
from flintlock.model.jobs import (
    ExceptionEntry,
    ExecutionInfo,
    JobHistory,
    JobResult,
    JobSnapshot,
    ParallelismRange,
    RestartHistory,
    RetentionReading,
    StoredJob,
)
from flintlock.model.operations import Function, Result, Sink, Source, Sql
from flintlock.model.regions import Region
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.savepoints import SavepointDisposal, SavepointDisposals
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FileMove,
    RegionPhase,
    RegionRecord,
    ResultRows,
    SinkFiles,
    TaskFinished,
)

JOB_A = JobId("a" * 32)
JOB_B = JobId("b" * 32)


def graph(job_id: JobId, params: dict[str, Scalar] | None = None) -> JobGraph:
    operations = {
        "orders": Source(format="parquet", paths=("in/orders",), options={"mergeSchema": "true"}),
        "clean": Sql(query="SELECT * FROM orders WHERE day = :day"),
        "priced": Function(pickle="priced.pkl"),
        "out": Sink(format="parquet", path="out", partition_by=("day",)),
        "top": Result(limit=3),
    }
    return JobGraph(
        job_id=job_id,
        name="revenue",
        vertices=tuple(
            JobVertex(id=vertex_id(job_id, name), name=StepName(name), operation=operation)
            for name, operation in operations.items()
        ),
        params={"day": "2026-01-01", "rate": 0.5, "n": 3, "on": True, "none": None} if params is None else params,
        artifacts=(Artifact(name="priced.pkl", blob=BlobKey("sha256-" + "0" * 64), size=12),),
    )


def stored_job(job_id: JobId = JOB_A, *, key: str | None = None, digest: str = "") -> StoredJob:
    return StoredJob(graph=graph(job_id), submitted_ms=1_000, idempotency_key=key, digest=digest)


def job_result(job_id: JobId = JOB_A, *, end_ms: int = 2_000) -> JobResult:
    return JobResult(
        job_id=job_id, name="revenue", status=JobStatus.FINISHED, start_ms=1_000, end_ms=end_ms, scratch=("work/a",)
    )


def region_record(
    job_id: JobId = JOB_A, *, region: int = 0, phase: RegionPhase = RegionPhase.DEPLOYED, attempt: int = 0
) -> RegionRecord:
    sink = SinkFiles(
        step=StepName("out"), target="out", staging="out/.staging", moves=(FileMove("out/.staging/1", "out/1"),)
    )
    return RegionRecord(
        job_id=job_id,
        region=RegionId(region),
        phase=phase,
        attempt=attempt,
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("life-1"),
        outcome=None
        if phase is RegionPhase.DEPLOYED
        else TaskFinished(
            sinks=(sink,),
            results=(rows(),),
            materialised={StepName("clean"): "work/clean/0"},
            manifests={StepName("clean"): manifest_of({"part-0": 10}, rows=3)},
        ),
        staging=("out/.staging",),
    )


def snapshot(job_id: JobId = JOB_A, *, end_ms: int = 2_000) -> JobSnapshot:
    return JobSnapshot(
        graph=graph(job_id),
        regions=(Region(id=RegionId(0), steps=(StepName("orders"), StepName("out"))),),
        status=JobStatus.FINISHED,
        timestamps={JobStatus.INITIALIZING: 1_000, JobStatus.FINISHED: end_ms},
        end_ms=end_ms,
        last_modified_ms=end_ms,
        executions=(
            ExecutionInfo(
                region=RegionId(0),
                attempt=0,
                state=ExecutionState.FINISHED,
                timestamps={ExecutionState.FINISHED: end_ms},
            ),
        ),
        result_names=(StepName("top"),),
    )


def operation(trigger: str = "0" * 32, job_id: JobId = JOB_A) -> JobOperation:
    limits = ParallelismRange(lower=1, upper=3)
    command = RescaleJob(job_id=job_id, vertices={vertex_id(job_id, "orders"): limits}, parallelism=2)
    return JobOperation(trigger_id=TriggerId(trigger), command=command, started_ms=1_500)


def operations(job_id: JobId = JOB_A) -> JobOperations:
    failure = OperationFailure(error="Conflict", message="another change is in progress")
    cancel = JobOperation(trigger_id=TriggerId("2" * 32), command=CancelJob(job_id=job_id), started_ms=1_800)
    return JobOperations(
        job_id=job_id,
        operations=(operation("0" * 32, job_id).completed(failure, 1_600), operation("1" * 32, job_id), cancel),
    )


def job_history(job_id: JobId = JOB_A) -> JobHistory:
    failure = Failure(kind=FailureKind.SPARK_TASK, message="a Spark task failed", exception="SparkException")
    attempt = ExecutionInfo(
        region=RegionId(0),
        attempt=1,
        state=ExecutionState.FAILED,
        timestamps={ExecutionState.FAILED: 1_500},
        task_manager=TaskManagerId("tm-1"),
        failure=failure,
    )
    entry = ExceptionEntry(
        failure=failure, timestamp_ms=1_500, region=RegionId(0), attempt=1, labels={"team": "etl"}, task_name="orders"
    )
    return JobHistory(
        job_id=job_id,
        restarts=RestartHistory(restarts=2, failures_ms=(1_400, 1_500), backoff_s=2.0, last_ms=1_500),
        infrastructure_restarts=1,
        failing=True,
        exceptions=(entry,),
        exceptions_omitted=3,
        attempts=(attempt,),
        attempts_omitted={RegionId(0): 1},
    )


def retention_reading() -> RetentionReading:
    return RetentionReading(clock_ms=5_000, wall_ms=7_000)


def access_tokens() -> AccessTokens:
    first = AccessToken(
        id=AccessTokenId("0011223344556677"),
        name="airflow",
        role=Role.SUBMITTER,
        digest="ab" * 32,
        created_ms=1_000,
        created_by="maria",
        expires_ms=9_000,
    )
    return AccessTokens(tokens=(first, structs.replace(first, id=AccessTokenId("ff" * 8), expires_ms=None)))


def savepoint_disposals() -> SavepointDisposals:
    first = SavepointDisposal(trigger_id=TriggerId("3" * 32), path="/savepoints/one")
    second = structs.replace(first, trigger_id=TriggerId("4" * 32), path="/savepoints/two")
    return SavepointDisposals(disposals=(first.failed(Invalid("there is none")), second))


def rows(name: str = "top", json: bytes = b'{"columns": [], "rows": []}') -> ResultRows:
    return ResultRows(name=StepName(name), rows=0, truncated=False, arrow=b"\xff\x00arrow", json=json)
