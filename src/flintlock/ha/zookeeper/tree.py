"""The layout of ZooKeeper, below `<path.root>/<cluster-id>`.

    epoch                           the current term: EpochRecord. Its version is what every write checks
    storage                         the name of the file that marks the storage directory as this cluster's
    leader/latch/<candidate>-<n>    ephemeral, one for each process that contends; the lowest number leads
    leader/connection_info          ephemeral: where the leader listens (LeaderInfo)
    job-graphs/xx/<job>             GraphPointer
    quarantined/xx/<job>            QuarantinePointer
    idempotency-keys/xx/<sha256>    KeyRecord
    job-keys/xx/<job>               the sha256 of the job's key
    job-results/xx/<job>            ResultPointer
    dirty-results/xx/<job>          empty: cleanup is not done
    progress/xx/<job>/<region>      RegionPointer
    progress/xx/<job>/history       RegionPointer
    ended-jobs/xx/<job>             EndedPointer, with the job's summary
    operations/xx/<job>             JobOperations: small, so no file
    blobs/xx/<sha256>               BlobPointer: where the copy of a blob is
    ends/xx/<job>.<ms>.<kind>       empty: when a job's retention began; retention reads names only
    retention-clock                 RetentionReading
    access-tokens                   AccessTokens
    blocking-jobs/<job>.<uuid>      empty: a leader works on the job for too long, or was lost by it

xx is the first two hex digits: ZooKeeper returns lists of up to some 25,000 names. Pointers carry format version
and checksum as payloads do.

Rejected: Flink's lock nodes below each graph. They keep a former leader from deleting what a new one uses; here the
epoch in each transaction does that. Rejected: one znode for each job with all of this; finding the few that run among
the many that have ended would require reading them all.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

from flintlock.ha.payloads import Payload
from flintlock.ha.zookeeper.operations import Create, Delete, Op
from flintlock.model.ids import Epoch, FencingToken, JobId, RegionId


class EpochRecord(Struct, frozen=True, kw_only=True):
    """The current or last term; `latch` is the name of its latch znode, empty if a store adopted the token."""

    epoch: Epoch
    session: str
    latch: str = ""

    @property
    def token(self) -> FencingToken:
        """The token of that term."""
        return FencingToken(self.epoch, self.session)


class GraphPointer(Struct, frozen=True, kw_only=True):
    """The file of a graph."""

    file: str


class QuarantinePointer(Struct, frozen=True, kw_only=True):
    """The file of a quarantined graph, and the reason."""

    file: str
    reason: str


class KeyRecord(Struct, frozen=True, kw_only=True):
    """The job of an idempotency key."""

    key: str
    job_id: JobId
    digest: str


class ResultPointer(Struct, frozen=True, kw_only=True):
    """The file of a result."""

    file: str
    end_ms: int


class RegionPointer(Struct, frozen=True, kw_only=True):
    """The file of a region's record, or of the job's history."""

    file: str


class EndedPointer(Struct, frozen=True, kw_only=True):
    """The files of an ended job: snapshot, and rows by name; its summary is here."""

    end_ms: int
    summary: bytes
    snapshot: str
    rows: dict[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the job."""
        return (self.snapshot, *self.rows.values())


class BlobPointer(Struct, frozen=True, kw_only=True):
    """The file of a blob's copy, its size, and when it was stored."""

    file: str
    size: int
    stored_ms: int


#: The znode of a job's history, among those of its regions, whose names are numbers.
HISTORY_NAME: Final = "history"

JOB_END: Final = ".job"
"""How the mark of an ended job's end ends."""

SHARDS: Final = frozenset(f"{n:02x}" for n in range(256))

EPOCH: Final = Payload(EpochRecord)
GRAPH: Final = Payload(GraphPointer)
QUARANTINE: Final = Payload(QuarantinePointer)
KEY: Final = Payload(KeyRecord)
RESULT: Final = Payload(ResultPointer)
REGION: Final = Payload(RegionPointer)
ENDED: Final = Payload(EndedPointer)
BLOB: Final = Payload(BlobPointer)


class Tree:
    """Paths of one cluster."""

    def __init__(self, root: str, cluster_id: str) -> None:
        self.base: Final = f"/{root.strip('/')}/{cluster_id}".replace("//", "/")
        self.epoch: Final = f"{self.base}/epoch"
        self.storage: Final = f"{self.base}/storage"
        self.latches: Final = f"{self.base}/leader/latch"
        self.leader: Final = f"{self.base}/leader/connection_info"
        self.graphs: Final = f"{self.base}/job-graphs"
        self.quarantine: Final = f"{self.base}/quarantined"
        self.keys: Final = f"{self.base}/idempotency-keys"
        self.job_keys: Final = f"{self.base}/job-keys"
        self.results: Final = f"{self.base}/job-results"
        self.dirty: Final = f"{self.base}/dirty-results"
        self.progress: Final = f"{self.base}/progress"
        self.ended: Final = f"{self.base}/ended-jobs"
        self.operations: Final = f"{self.base}/operations"
        self.blobs: Final = f"{self.base}/blobs"
        self.ends: Final = f"{self.base}/ends"
        self.retention_clock: Final = f"{self.base}/retention-clock"
        self.access_tokens: Final = f"{self.base}/access-tokens"
        self.blocking_jobs: Final = f"{self.base}/blocking-jobs"
        self.disposals: Final = f"{self.base}/savepoint-disposals"

    def graph(self, job_id: JobId) -> str:
        """The job's graph."""
        return sharded(self.graphs, job_id)

    def quarantined_graph(self, job_id: JobId) -> str:
        """The job's graph, once it was quarantined."""
        return sharded(self.quarantine, job_id)

    def key(self, digest: str) -> str:
        """A key, by its hash."""
        return sharded(self.keys, digest)

    def job_key(self, job_id: JobId) -> str:
        """The hash of the job's key."""
        return sharded(self.job_keys, job_id)

    def result(self, job_id: JobId) -> str:
        """The job's result."""
        return sharded(self.results, job_id)

    def dirty_mark(self, job_id: JobId) -> str:
        """Exists while the job's result is dirty."""
        return sharded(self.dirty, job_id)

    def regions(self, job_id: JobId) -> str:
        """The parent of the job's regions."""
        return sharded(self.progress, job_id)

    def region(self, job_id: JobId, region: RegionId) -> str:
        """One region."""
        return f"{self.regions(job_id)}/{region}"

    def history(self, job_id: JobId) -> str:
        """The job's history, beside its regions."""
        return f"{self.regions(job_id)}/{HISTORY_NAME}"

    def ended_job(self, job_id: JobId) -> str:
        """The job, ended."""
        return sharded(self.ended, job_id)

    def job_operations(self, job_id: JobId) -> str:
        """The job's operations."""
        return sharded(self.operations, job_id)

    def blob(self, digest: str) -> str:
        """The copy of a blob, by its hash."""
        return sharded(self.blobs, digest)

    def job_end(self, job_id: JobId, end_ms: int) -> str:
        """The mark of an ended job's end."""
        return sharded(self.ends, f"{job_id}.{end_ms}{JOB_END}")

    def result_end(self, job_id: JobId, end_ms: int) -> str:
        """The mark of a result's end."""
        return sharded(self.ends, f"{job_id}.{end_ms}.result")

    def tree_of(self, path: str) -> str:
        """The tree that a record's path belongs to."""
        return f"{self.base}/{path.removeprefix(f'{self.base}/').partition('/')[0]}"


def key_digest(key: str) -> str:
    """Return the name of a key in ZooKeeper: keys may contain any text."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def end_of(mark: str) -> tuple[JobId, int]:
    """Return the job and the time of a mark in `ends`."""
    job_id, end_ms, _ = mark.split(".")
    return JobId(job_id), int(end_ms)


def absent(path: str) -> tuple[Op, Op]:
    """Return operations that fail if the znode exists, and otherwise leave none."""
    return Create(path), Delete(path)


def sharded(tree: str, name: str) -> str:
    """Return the path of a record in a tree."""
    return f"{tree}/{name[:2]}/{name}"
