"""Savepoints: what one consists of, whether a directory is a complete one, and whether a job can be restored from it.

A savepoint is a directory with a manifest (`MANIFEST`) and, for each query, the files of its checkpoint that a restart
after one committed batch needs. Paths are relative to the directory, so it can be moved. The manifest lists every file
with its size and hash: what is not as listed is damage, never a smaller savepoint.

Queries of a job are saved one after another. Each is consistent in itself; there is no common cut.

Pure: listing, reading and copying is done by the caller.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, structs

from flintlock.model.errors import Conflict, Corrupt, FlintlockError, Incompatible
from flintlock.model.ids import TriggerId, VertexId
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Source

MANIFEST: Final = "_metadata.json"
"""The file that makes a directory a savepoint; written last."""

FORMAT_VERSION: Final = 1
QUERIES: Final = "queries"
"""The directory in a savepoint that has one directory for each uid."""

#: How many disposals a cluster remembers, and how long a path and a message may be: all of them are one stored record.
MAX_DISPOSALS: Final = 100
MAX_PATH_BYTES: Final = 4096  # as in Linux
MAX_DISPOSAL_MESSAGE: Final = 1000

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_PROBLEMS: Final = 10
_STATE_VERSION: Final = re.compile(
    r"(?P<at>state/\d+/\d+(?:/[^/]+)?)/(?P<version>\d+)(?:_(?P<id>[0-9a-f-]+))?\.(?P<kind>zip|snapshot|changelog|delta)"
)
_SNAPSHOTS: Final = frozenset({"zip", "snapshot"})
_STATE_ID: Final = re.compile(r'"([0-9a-f]+(?:-[0-9a-f]+)+)"')


class SavepointFile(Struct, frozen=True, kw_only=True):
    """One file, by its path in the savepoint."""

    path: str
    size: int
    sha256: str  # empty for the files of a kept checkpoint: Spark records no hashes


class SavedQuery(Struct, frozen=True, kw_only=True):
    """One query, saved after a committed batch."""

    uid: str
    step: str
    batch: int  # the last one that is committed in the savepoint
    query_id: str  # as in `metadata`; a fork gets another one
    sink_batch: int | None = None  # the latest one in the log of a file sink, when it was saved
    sink: str = ""  # the path of that sink
    offsets: tuple[str, ...] = ()  # of each source after the batch, as Spark writes them
    partitions: int = 0  # of its state; 0: it has none
    sources: tuple[str, ...] = ()  # the streaming steps that it reads
    begun: int | None = None  # the batch after it, if it was begun, and is to be repeated as it was planned
    clean_source: bool = False  # a source removes or moves what it has read: no earlier point can be restored
    steps: str = ""  # the hash of the steps that it was saved with; "" if it is not known


class SavepointManifest(Struct, frozen=True, kw_only=True):
    """All that is known about a savepoint without Spark."""

    format_version: int = FORMAT_VERSION
    job_id: str
    job_name: str
    created_ms: int
    spark: str  # its version
    cuts: int = 0  # how many points in time it has: as many as queries, each of which is consistent in itself
    queries: tuple[SavedQuery, ...]
    files: tuple[SavepointFile, ...]

    def query(self, uid: str) -> SavedQuery | None:
        """Return the query of this uid, if it was saved."""
        return next((query for query in self.queries if query.uid == uid), None)


class DisposeSavepoint(Struct, frozen=True, kw_only=True):
    """Client to Dispatcher: remove a savepoint; ask for the outcome by the trigger id."""

    trigger_id: TriggerId
    path: str


class DisposalQuery(Struct, frozen=True, kw_only=True):
    """Names one disposal."""

    trigger_id: TriggerId


class SavepointDisposal(Struct, frozen=True, kw_only=True):
    """The removal of a savepoint, and what came of it."""

    trigger_id: TriggerId
    path: str
    identity: str = ""  # of the savepoint that was there; "": whichever is (records of 0.1)
    completed: bool = False
    error: str = ""  # the name of the error's class; "": the savepoint is removed, or is being removed
    message: str = ""

    def succeeded(self) -> SavepointDisposal:
        """Return it with its outcome: the savepoint is removed."""
        return structs.replace(self, completed=True)

    def failed(self, error: FlintlockError) -> SavepointDisposal:
        """Return it with its outcome: the savepoint could not be removed."""
        message = error.public[:MAX_DISPOSAL_MESSAGE]
        return structs.replace(self, completed=True, error=type(error).__name__, message=message)


class SavepointDisposals(Struct, frozen=True, kw_only=True):
    """The latest disposals of a cluster, the earliest first."""

    disposals: tuple[SavepointDisposal, ...] = ()

    def get(self, trigger_id: TriggerId) -> SavepointDisposal | None:
        """Return the disposal with this id."""
        return next((each for each in self.disposals if each.trigger_id == trigger_id), None)

    @property
    def in_progress(self) -> tuple[SavepointDisposal, ...]:
        """Those whose outcome is not recorded."""
        return tuple(each for each in self.disposals if not each.completed)

    def with_new(self, disposal: SavepointDisposal) -> SavepointDisposals:
        """Return these with another one, in the place of the earliest that is completed. Raises Conflict if none is."""
        kept = list(self.disposals)
        if len(kept) >= MAX_DISPOSALS:
            earliest = next((each for each in kept if each.completed), None)
            if earliest is None:
                raise Conflict(f"{MAX_DISPOSALS} savepoints are being removed already: try again when one is")
            kept.remove(earliest)
        return SavepointDisposals(disposals=(*kept, disposal))

    def with_outcome(self, outcome: SavepointDisposal) -> SavepointDisposals:
        """Return these with the outcome of one of them."""
        changed = (outcome if each.trigger_id == outcome.trigger_id else each for each in self.disposals)
        return SavepointDisposals(disposals=tuple(changed))


class FileGone(Exception):
    """A file that the batch needs is not there: Spark has purged it, and a later batch has to be saved."""


class FileDamaged(FileGone):
    """A file that the batch needs is not as Spark has written it: as good as gone."""


def encode_manifest(manifest: SavepointManifest) -> bytes:
    """Return the text of the manifest's file: for people, too, and the same for the same savepoint."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"


def decode_manifest(data: bytes) -> SavepointManifest:
    """Read a manifest. Raises Corrupt if it is none, Incompatible if a newer version of Flintlock has written it."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise Incompatible(
                f"the savepoint has the format version {version}, and this version of Flintlock reads up to"
                f" {FORMAT_VERSION}: use the version that has made it, or a later one"
            )
        manifest = msgspec.json.decode(data, type=SavepointManifest)
    except msgspec.DecodeError as error:  # of which a ValidationError is one
        raise Corrupt(f"{MANIFEST} is not the manifest of a savepoint: {error}") from error
    problem = next(_inconsistencies(manifest), None)
    if problem is not None:
        raise Corrupt(f"{MANIFEST} is not the manifest of a savepoint: {problem}")
    return manifest


def damage(manifest: SavepointManifest, found: Mapping[str, tuple[int, str]]) -> tuple[str, ...]:
    """Return how the files of a directory (size and hash by path, the manifest left out) differ from its manifest.

    Files that the manifest does not list are damage, too: Spark would read a state that was not saved.
    """
    listed = {file.path: file for file in manifest.files}
    problems: list[str] = []
    for path, file in listed.items():
        size, digest = found.get(path, (None, ""))
        if size is None:
            problems.append(f"{path} is missing")
        elif size != file.size:
            problems.append(f"{path} has {size} of {file.size} bytes")
        elif digest != file.sha256:
            problems.append(f"{path} has another content than was saved")
    problems += [f"{path} does not belong to it" for path in found if path not in listed]
    more = len(problems) - _MAX_PROBLEMS
    return (*problems[:_MAX_PROBLEMS], f"and {more} more") if more > 0 else tuple(problems)


def restore_problems(
    manifest: SavepointManifest, graph: JobGraph, sinks: Mapping[str, int | None], *, allow_unclaimed: bool = False
) -> tuple[str, ...]:
    """Return why a job cannot be restored from a savepoint.

    `sinks`: the latest batch in the log of each query's file sink as it is now, by uid. `allow_unclaimed`: state that
    no query of the job takes is dropped. A query whose uid was not saved starts from the beginning.
    """
    problems: list[str] = []
    steps = {vertex.uid: vertex for vertex in graph.vertices if vertex.query is not None}
    unclaimed = [query for query in manifest.queries if query.uid not in steps]
    if unclaimed and not allow_unclaimed:
        names = ", ".join(repr(query.uid) for query in unclaimed)
        problems.append(
            f"no query of the job takes the state of {names}: give a sink that uid, or allow it to be dropped (-n)"
        )
    for uid, vertex in steps.items():
        saved = manifest.query(uid)
        if saved is None:
            continue
        if saved.clean_source:
            problems.append(
                f"{uid}: a source removes or moves what it has read (cleanSource), so what came after batch"
                f" {saved.batch} cannot be read again"
            )
        sources = streaming_sources(graph, vertex)
        if saved.sources and len(saved.sources) != len(sources):
            problems.append(
                f"{uid}: reads {', '.join(sources)}, and was saved with {', '.join(saved.sources)}: the number of"
                " streaming sources of a query cannot change. Give it another uid to start it from the beginning"
            )
        at = sinks.get(uid)
        if at is not None and at > (saved.batch if saved.begun is None else saved.begun):
            problems.append(
                f"{uid}: the files of step {str(vertex.name)!r} have batch {at}, and the savepoint ends at batch"
                f" {saved.batch}: Spark would skip the batches in between silently. Choose another path, or have"
                " what is later moved out of it (--rewind-sinks)"
            )
        elif at is not None and at < saved.batch:
            problems.append(
                f"{uid}: the files of step {str(vertex.name)!r} end at batch {at}, and the savepoint at batch"
                f" {saved.batch}: they were written by another query. Choose another path"
            )
    return tuple(problems)


def streaming_sources(graph: JobGraph, vertex: JobVertex) -> tuple[str, ...]:
    """Return the names of the streaming steps that a query reads, sorted."""
    steps = _steps_of(graph, vertex)
    return tuple(step.name for step in steps if isinstance(step.operation, Source) and step.operation.stream)


def steps_hash(graph: JobGraph, vertex: JobVertex) -> str:
    """Return a hash of all in a job that the plan of a query is made of.

    A state fits the steps whose hash was saved with it, as far as they alone decide: the version of Spark does, too.
    """
    steps = [structs.replace(step, id=VertexId("")) for step in _steps_of(graph, vertex)]
    settings = {key: value for key, value in graph.config.items() if key.startswith("spark.")}
    files = sorted((each.name, each.kind, each.blob) for each in graph.artifacts)
    code = (files, graph.packages, graph.engine, graph.client, graph.directory)
    parts = (steps, graph.parallelism, graph.params, settings, code)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _steps_of(graph: JobGraph, vertex: JobVertex) -> tuple[JobVertex, ...]:
    """Return a step and all that it reads, directly or not, in the order of their names."""
    seen: set[str] = set()
    following: list[str] = [vertex.name]
    while following:
        name = following.pop()
        if name not in seen:
            seen.add(name)
            following += graph.vertex(name).inputs
    return tuple(graph.vertex(name) for name in sorted(seen))


def files_of_batch(names: Collection[str], batch: int, commit: Callable[[int], str] = lambda _: "") -> tuple[str, ...]:
    """Return the files of a checkpoint directory that a restart after a committed batch needs, of all that are there.

    `names` are relative to it; `commit` returns the entry of a batch in `commits`, "" if there is none. Raises FileGone
    if a file is missing. Of RocksDB's SST files, which only a snapshot names, all are taken: those that are too many
    cost space, not correctness.
    """
    there = frozenset(names)
    needed = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
    # The batch before it: Spark reads it when it starts, if it has not been purged.
    needed += [name for name in (f"offsets/{batch - 1}", f"commits/{batch - 1}") if name in there]
    needed += sorted(name for name in there if name.startswith("sources/") and not _is_temporary(name))
    stores: dict[str, dict[int, list[re.Match[str]]]] = {}
    for name in sorted(there):
        match = _STATE_VERSION.fullmatch(name)
        if match is not None:
            stores.setdefault(match["at"], {}).setdefault(int(match["version"]), []).append(match)
        elif name.startswith("state/") and not _is_temporary(name):
            needed.append(name)  # schemas, `_metadata`, SST files: they have no version, or are named by a snapshot
    for versions in stores.values():
        needed += _state_files(versions, batch + 1, lambda number: frozenset(_STATE_ID.findall(commit(number))))
    gone = [name for name in needed if name not in there]
    if gone:
        raise FileGone(gone[0])
    return tuple(dict.fromkeys(needed))


def _state_files(
    versions: Mapping[int, Sequence[re.Match[str]]], wanted: int, ids: Callable[[int], Collection[str]]
) -> Iterator[str]:
    """Yield a snapshot, at or before a version, and the changes up to it. Raises FileGone if there is no such chain.

    In checkpoint format 2 a version has several files if its batch was repeated, each with an id; `ids` returns those
    that the commit of a batch names. The others are of states that were given up, and what they refer to may be gone.
    Where the commit is gone, all are taken.
    """
    for version in range(wanted, -1, -1):
        found = versions.get(version, ())
        if not found:
            raise FileGone(f"state of version {version}")
        named = ids(version - 1)
        files = [file for file in found if file["id"] in named] or found
        snapshots = [file for file in files if file["kind"] in _SNAPSHOTS]
        if snapshots:
            yield from (file[0] for file in snapshots)
            return
        yield from (file[0] for file in files)
        if version == 1:
            return  # the first version has nothing before it
    raise FileGone(f"state of version {wanted}")


def _is_temporary(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith(".") or last.endswith(".tmp")


class _Versioned(Struct, frozen=True, kw_only=True):
    format_version: int


def _inconsistencies(manifest: SavepointManifest) -> Iterator[str]:
    paths = [file.path for file in manifest.files]
    uids = [query.uid for query in manifest.queries]
    if len(set(paths)) != len(paths) or len(set(uids)) != len(uids):
        yield "a file or a uid is listed twice"
    for file in manifest.files:
        parts = file.path.split("/")
        if parts[0] != QUERIES or len(parts) < 3 or parts[1] not in uids or {"", ".", ".."} & set(parts):
            yield f"{file.path!r} is not the path of a file of one of its queries"
        if _CONTROL.search(file.path):
            yield f"{file.path!r} has control characters"
        if file.size < 0 or not _SHA256.fullmatch(file.sha256):
            yield f"size or hash of {file.path!r} cannot be right"
    for query in manifest.queries:
        if query.batch < 0:
            yield f"{query.uid!r} was saved after batch {query.batch}"
        if not any(path == f"{QUERIES}/{query.uid}/metadata" for path in paths):
            yield f"it has no file 'metadata' of {query.uid!r}"
