"""The JobGraph: a job as its user describes it, as one frozen value.

Python, YAML and program jobs all become this. Names are the user's; ids are derived from them, so that the same
step of the same job has the same vertex id after a failover. User code inside is opaque: a blob key or the name of a
module in an artifact. Nothing here runs it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.ids import BlobKey, JobId, StepName, VertexId
from flintlock.model.operations import Guarantee, Operation
from flintlock.model.streaming.streams import StreamQuery, Watermark

Scalar: TypeAlias = str | int | float | bool | None
"""What a parameter's value may be."""

MAX_PARALLELISM: Final = 1 << 15
"""Flink's own bound."""


class JobType(StrEnum):
    """Whether a job's inputs end."""

    BATCH = "BATCH"
    STREAMING = "STREAMING"


class Exchange(StrEnum):
    """How a step's output reaches its consumers."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"


class EngineKind(StrEnum):
    """The Spark driver that a job runs on."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    AUTO = "auto"  # programs only: the shared one, until the program asks for a driver


class Resources(Struct, frozen=True, kw_only=True):
    """What a task needs, or a TaskManager has, besides slots."""

    cpu: float = 0.0  # cores
    memory: int = 0  # bytes


class JobVertex(Struct, frozen=True, kw_only=True):
    """One named step."""

    id: VertexId
    name: StepName
    operation: Operation
    inputs: tuple[StepName, ...] = ()
    exchange: Exchange = Exchange.PIPELINED
    parallelism: int | None = None
    cache: bool = False
    resources: Resources | None = None  # set on all steps of a job, or on none
    query: StreamQuery | None = None  # of a sink of a streaming job
    watermark: Watermark | None = None  # of the step's rows, in a streaming job

    @property
    def has_output(self) -> bool:
        """Whether other steps may read from this one."""
        return self.operation.has_output

    @property
    def guarantee(self) -> Guarantee | None:
        """What delivery means for this step's output; None if it only passes rows to other steps."""
        return self.operation.guarantee if self.query is None else self.operation.stream_guarantee

    @property
    def uid(self) -> str:
        """The identity of the step's state, if it is a streaming query."""
        return "" if self.query is None else self.query.uid or str(self.name)

    @property
    def description(self) -> str:
        """What the step does, in one line."""
        parts = [self.operation.describe()]
        if self.query is not None:
            parts = [self.operation.describe_stream(), self.query.describe()]
        if self.watermark is not None:
            parts.append(f"watermark {self.watermark.column}, {self.watermark.delay} late")
        return ", ".join(parts)

    @property
    def title(self) -> str:
        """The step as Flink names vertices: `Source: orders`."""
        label = self.operation.label
        return f"{label}: {self.name}" if label is not None else str(self.name)


class ArtifactKind(StrEnum):
    """What a runner does with an artifact before it runs user code."""

    PY_FILE = "py-file"  # put on sys.path, and sent to Spark's Python workers
    PICKLE = "pickle"  # a function; loaded when a step names it
    FILE = "file"  # a program, or anything else that user code opens by name
    JAR = "jar"  # on the class path of the job's dedicated driver
    REQUIREMENTS = "requirements"  # for pip: what is installed into the job's Python environment
    REQUIREMENT_FILE = "requirement-file"  # a wheel or a file of constraints, which the requirements name
    ENVIRONMENT = "environment"  # a packed Python environment


class Artifact(Struct, frozen=True, kw_only=True):
    """A file of the job, by the hash of its content."""

    name: str
    blob: BlobKey
    size: int = 0
    kind: ArtifactKind = ArtifactKind.PY_FILE


class VersionMismatch(Struct, frozen=True, kw_only=True):
    """A product whose minor version is not the same on both sides; empty where it is not installed."""

    product: str
    own: str
    other: str


class Versions(Struct, frozen=True, kw_only=True):
    """What a process runs: pickled functions need the same Python and PySpark on both sides."""

    flintlock: str
    python: str
    pyspark: str

    def mismatches(self, other: Versions) -> tuple[VersionMismatch, ...]:
        """Return the products that do not agree up to the minor version. Patch releases may differ."""
        pairs = (
            ("Flintlock", self.flintlock, other.flintlock),
            ("Python", self.python, other.python),
            ("PySpark", self.pyspark, other.pyspark),
        )
        return tuple(
            VersionMismatch(product=product, own=own, other=others)
            for product, own, others in pairs
            if own.split(".")[:2] != others.split(".")[:2]
        )


#: The setting of a job that names the one whose place it takes.
UPGRADE_OF_KEY: Final = "execution.upgrade-of"


class JobGraph(Struct, frozen=True, kw_only=True, dict=True):
    """A complete job. Vertices are in topological order once `check_graph` has passed."""

    job_id: JobId
    name: str
    job_type: JobType = JobType.BATCH
    vertices: tuple[JobVertex, ...] = ()
    parallelism: int | None = None
    params: dict[str, Scalar] = {}
    config: dict[str, str] = {}
    artifacts: tuple[Artifact, ...] = ()
    packages: tuple[str, ...] = ()  # Maven coordinates, which the job's dedicated driver resolves when it starts
    engine: EngineKind = EngineKind.SHARED
    client: Versions | None = None  # the versions of the client that pickled the functions, if any are pickled
    client_timeout_s: float | None = None  # an attached client: the job is cancelled this long after its last heartbeat
    labels: dict[str, str] = {}  # for people and their tools; Flintlock lists and filters by them
    submitted_by: str = ""  # the name of the caller who submitted it; "" for jobs of older versions
    directory: str = ""  # the one that it was submitted from, where relative paths of user code start; "" for none
    document: bytes = b""  # what it was made of (`JobSpec` as JSON, without `params`), if they were filled in there
    rerun_of: str = ""  # the job that this one runs again
    reuses: tuple[JobId, ...] = ()  # failed jobs whose finished regions it does not run again: `rerun_of`, and its own
    format_version: int = 1

    @property
    def upgrade_of(self) -> str:
        """The id of the job whose place this one takes; "" if it takes none's."""
        return self.config.get(UPGRADE_OF_KEY, "")

    def vertex(self, name: str) -> JobVertex:
        """Return the step of that name; KeyError if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, JobVertex]:
        """The steps by name; of several with one name, which no check accepts, the first."""
        return {vertex.name: vertex for vertex in reversed(self.vertices)}


def vertex_id(job_id: JobId, name: str) -> VertexId:
    """Derive a step's id: the same step of the same job always has the same one."""
    return VertexId(hashlib.blake2b(f"{job_id}\0{name}".encode(), digest_size=16).hexdigest())
