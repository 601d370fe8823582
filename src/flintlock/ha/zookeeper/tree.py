"""What lies where in ZooKeeper, below `<path.root>/<cluster-id>`.

    epoch                           who leads: EpochRecord. Its version is what every write checks
    storage                         the name of the file that marks the storage directory as this cluster's
    leader/latch/<candidate>-<n>    ephemeral, one for each process that contends; the lowest number leads
    leader/connection_info          ephemeral: where the leader listens (LeaderInfo)
    job-graphs/xx/<job>             GraphPointer
    quarantined/xx/<job>            QuarantinePointer
    idempotency-keys/xx/<sha256>    KeyRecord
    job-keys/xx/<job>               the sha256 of the key that stands for the job
    job-results/xx/<job>            ResultPointer
    dirty-results/xx/<job>          nothing: cleanup is not done
    progress/xx/<job>/<region>      RegionPointer
    ended-jobs/xx/<job>             EndedPointer, with the job's line in the listing
    blobs/xx/<sha256>               BlobPointer: where the copy of a blob is
    ends/xx/<job>.<ms>.<kind>       nothing: when a result or an ended job was; retention reads names only

xx is the first two hex digits: ZooKeeper answers a list of some 25,000 names, no more. Pointers carry format version
and checksum as payloads do.

Rejected: Flink's lock nodes below each graph. They keep a former leader from deleting what a new one works with; here
the epoch in each transaction does that. Rejected: one znode for each job that holds all of this; finding the few that
run among the many that have ended would mean to read them all.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

from flintlock.ha.payloads import Payload
from flintlock.ha.zookeeper.operations import Create, Delete, Op
from flintlock.model.ids import Epoch, FencingToken, JobId, RegionId


class EpochRecord(Struct, frozen=True, kw_only=True):
    """Who leads, or led last; `latch` is the name of its latch node, empty if a store adopted the token."""

    epoch: Epoch
    session: str
    latch: str = ""

    @property
    def token(self) -> FencingToken:
        """The token of that term."""
        return FencingToken(self.epoch, self.session)


class GraphPointer(Struct, frozen=True, kw_only=True):
    """Where a graph is."""

    file: str


class QuarantinePointer(Struct, frozen=True, kw_only=True):
    """Where a graph is that was set aside, and why."""

    file: str
    reason: str


class KeyRecord(Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for."""

    key: str
    job_id: JobId
    digest: str


class ResultPointer(Struct, frozen=True, kw_only=True):
    """Where a result is."""

    file: str
    end_ms: int


class RegionPointer(Struct, frozen=True, kw_only=True):
    """Where the record of a region is."""

    file: str


class EndedPointer(Struct, frozen=True, kw_only=True):
    """Where an ended job is: snapshot and rows by name; its line in the listing is here."""

    end_ms: int
    summary: bytes
    snapshot: str
    rows: dict[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the job."""
        return (self.snapshot, *self.rows.values())


class BlobPointer(Struct, frozen=True, kw_only=True):
    """Where the copy of a blob is, how long it is, and since when it is there."""

    file: str
    size: int
    stored_ms: int


SHARDS: Final = frozenset(f"{n:02x}" for n in range(256))

EPOCH: Final = Payload(EpochRecord)
GRAPH: Final = Payload(GraphPointer)
ASIDE: Final = Payload(QuarantinePointer)
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
        self.aside: Final = f"{self.base}/quarantined"
        self.keys: Final = f"{self.base}/idempotency-keys"
        self.job_keys: Final = f"{self.base}/job-keys"
        self.results: Final = f"{self.base}/job-results"
        self.dirty: Final = f"{self.base}/dirty-results"
        self.progress: Final = f"{self.base}/progress"
        self.ended: Final = f"{self.base}/ended-jobs"
        self.blobs: Final = f"{self.base}/blobs"
        self.ends: Final = f"{self.base}/ends"

    def graph(self, job_id: JobId) -> str:
        """The job's graph."""
        return sharded(self.graphs, job_id)

    def set_aside(self, job_id: JobId) -> str:
        """The job's graph, once it was set aside."""
        return sharded(self.aside, job_id)

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
        """There while the job's result is dirty."""
        return sharded(self.dirty, job_id)

    def regions(self, job_id: JobId) -> str:
        """The parent of the job's regions."""
        return sharded(self.progress, job_id)

    def region(self, job_id: JobId, region: RegionId) -> str:
        """One region."""
        return f"{self.regions(job_id)}/{region}"

    def ended_job(self, job_id: JobId) -> str:
        """The job, ended."""
        return sharded(self.ended, job_id)

    def blob(self, digest: str) -> str:
        """The copy of a blob, by its hash."""
        return sharded(self.blobs, digest)

    def job_end(self, job_id: JobId, end_ms: int) -> str:
        """The mark of an ended job's end."""
        return sharded(self.ends, f"{job_id}.{end_ms}.job")

    def result_end(self, job_id: JobId, end_ms: int) -> str:
        """The mark of a result's end."""
        return sharded(self.ends, f"{job_id}.{end_ms}.result")

    def tree_of(self, path: str) -> str:
        """The tree that a record's path lies in."""
        return f"{self.base}/{path.removeprefix(f'{self.base}/').partition('/')[0]}"


def key_digest(key: str) -> str:
    """Return a key as it is named in ZooKeeper: keys may hold any text."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def end_of(mark: str) -> tuple[JobId, int]:
    """Return the job and the moment that a mark in `ends` stands for."""
    job_id, end_ms, _ = mark.split(".")
    return JobId(job_id), int(end_ms)


def absent(path: str) -> tuple[Op, Op]:
    """Return operations that fail unless nothing is there, and leave nothing there."""
    return Create(path), Delete(path)


def sharded(tree: str, name: str) -> str:
    """Return the path of a record in a tree."""
    return f"{tree}/{name[:2]}/{name}"
