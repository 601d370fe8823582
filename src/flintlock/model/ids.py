"""Every kind of id is a type of its own, so that one is never used in place of another.

Ids are invented at the edges (REST, client, entrypoints) and arrive in the cores as data.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from msgspec import Struct

JobId = NewType("JobId", str)
AccessTokenId = NewType("AccessTokenId", str)
TriggerId = NewType("TriggerId", str)
"""32 lower-case hex digits, as Flink writes job ids."""

StepName = NewType("StepName", str)
"""A step's name as the user wrote it; also the name of its SQL view."""

VertexId = NewType("VertexId", str)
"""32 hex digits derived from job and step; what REST calls a vertex id."""

RegionId = NewType("RegionId", int)
"""Position of a pipelined region in the job's topological order; the unit of deployment, the *task*."""

TaskManagerId = NewType("TaskManagerId", str)
"""A TaskManager's permanent name: the same when it registers again."""

InstanceId = NewType("InstanceId", str)
"""One incarnation of a TaskManager: a restarted process has another."""

RequestId = NewType("RequestId", str)
"""One slot request of one job."""

BlobKey = NewType("BlobKey", str)
"""`sha256-` and 64 hex digits: the content's own hash."""

Epoch = NewType("Epoch", int)
"""A term of leadership: only ever grows."""

JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
BLOB_KEY: Final = re.compile(r"sha256-[0-9a-f]{64}")


_OF_CLUSTER: Final = "@"


class FencingToken(Struct, frozen=True, order=True):
    """The leadership that a command belongs to: the epoch decides, the session distinguishes claimants of one epoch.

    The session also names the cluster (`session_of`): epochs of different clusters cannot be compared.
    """

    epoch: Epoch
    session: str

    @property
    def cluster(self) -> str:
        """The cluster whose leader it is; empty in tokens of versions that did not name it."""
        return self.session.partition(_OF_CLUSTER)[2]


class AttemptId(Struct, frozen=True, kw_only=True, order=True):
    """One attempt to run one region of one job. Attempt numbers start at 0 and never repeat within a region."""

    job_id: JobId
    region: RegionId
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}/{self.region}#{self.attempt}"


def session_of(cluster: str, unique: str) -> str:
    """Return the session of a claim to lead `cluster`; `unique` distinguishes it from all other claims."""
    return f"{unique}{_OF_CLUSTER}{cluster}" if cluster else unique


def is_job_id(text: str) -> bool:
    """Return whether `text` has the form of a job id."""
    return JOB_ID.fullmatch(text) is not None


def is_blob_key(text: str) -> bool:
    """Return whether `text` has the form of a blob key."""
    return BLOB_KEY.fullmatch(text) is not None
