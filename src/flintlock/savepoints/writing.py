"""Makes one savepoint: a hidden directory is filled, verified and made durable, and then renamed.

    .savepoint-<job>-<trigger>.<random>/queries/<uid>/…   hard links to the files of one committed batch, or copies
    .savepoint-<job>-<trigger>.<random>/_metadata.json    last, when every file that it lists is durable
    savepoint-<job>-<trigger>/                            the rename: from here on there is a savepoint

A process that dies before the rename leaves a hidden directory, and nothing that looks like a savepoint; the next one
starts with a directory of its own, so a process that continues after it was replaced disturbs no other. Of two that
rename, the second finds the savepoint of the first. Only then what others have left is removed.

Spark never changes a file of a checkpoint, it only adds and removes them: a hard link stays what it was when the batch
was committed. Where a file disappears before it is linked, a later batch is committed by then, and is taken.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from msgspec import structs

from flintlock.model.errors import Conflict, Corrupt, FlintlockError, Incompatible, Unavailable
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Guarantee, Source
from flintlock.model.streaming.savepoints import (
    MANIFEST,
    QUERIES,
    FileDamaged,
    FileGone,
    SavedQuery,
    SavepointFile,
    SavepointManifest,
    decode_manifest,
    encode_manifest,
    files_of_batch,
    steps_hash,
    streaming_sources,
)
from flintlock.savepoints.checkpoints import (
    commit_entry,
    committed_batch,
    files_below,
    latest_sink_batch,
    offsets_of,
    query_id,
    state_partitions,
)
from flintlock.savepoints.verifying import check_file, check_snapshots

#: How often a later batch is taken because a file of the batch has disappeared meanwhile.
_TRIES: Final = 20
_COPIED_INSTEAD: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
_CHUNK: Final = 1 << 20
_THREADS: Final = 2
T = TypeVar("T")
R = TypeVar("R")


def savepoint_name(job_id: JobId, trigger_id: TriggerId) -> str:
    """Return the name of a savepoint's directory."""
    return f"savepoint-{job_id[:6]}-{trigger_id}"


def prepare_directory(parent: Path) -> None:
    """Make a directory for savepoints, and check that it can be written to. Raises Unavailable."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=".flintlock-", dir=parent).cleanup()
    except OSError as error:
        raise Unavailable(f"no savepoint can be made in {parent}: {error.strerror}") from error


def write_savepoint(
    job: JobGraph, *, checkpoints: Path, parent: Path, name: str, spark: str, now_ms: int, unique: str
) -> Path:
    """Make the savepoint of a job in `parent`, from its checkpoints; return its directory.

    `unique` tells this try from all others. Raises Conflict if something else has its place, Unavailable if a file
    cannot be read or written.
    """
    place = parent / name
    hidden = parent / f".{name}.{unique}"
    try:
        if not is_there(place, job.job_id):
            hidden.mkdir(parents=True)
            copied: dict[str, SavepointFile] = {}
            queries = tuple(_saved_queries(job, checkpoints, hidden, copied))
            manifest = SavepointManifest(
                job_id=job.job_id,
                job_name=job.name,
                created_ms=now_ms,
                spark=spark,
                cuts=len(queries),
                queries=queries,
                files=tuple(durable_files(hidden, copied)),
            )
            write_durably(hidden / MANIFEST, encode_manifest(manifest))
            sync_directories(hidden)
            rename_savepoint(hidden, place, job.job_id)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise Unavailable(f"the savepoint {place} could not be made: {error.strerror}: {error.filename}") from error
    except (FlintlockError, ValueError):  # also a file that has not the form that Spark writes
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    sync_directory(parent)
    for left in parent.glob(f".{name}.*"):  # by those who died, or came second
        if not left.name.endswith(".disposed"):  # by removals, with files that are none of a savepoint
            shutil.rmtree(left, ignore_errors=True)
    return place


def is_there(place: Path, job_id: str) -> bool:
    """Return whether this savepoint is complete already. Raises Conflict if something else is there, OSError."""
    if not place.exists():
        return False
    try:
        manifest = decode_manifest((place / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, Corrupt, Incompatible) as error:
        raise Conflict(f"{place} is there, and is no savepoint of this job") from error
    if manifest.job_id != job_id:
        raise Conflict(f"{place} is a savepoint of job {manifest.job_id}")
    return True


def rename_savepoint(hidden: Path, place: Path, job_id: str) -> None:
    """Give a savepoint its name, unless the same one has it. Raises OSError, Conflict if something else has it."""
    try:
        hidden.rename(place)
    except OSError:  # another one was first, and may have removed what this one has made
        if not is_there(place, job_id):
            raise


def _saved_queries(
    job: JobGraph, checkpoints: Path, hidden: Path, copied: dict[str, SavepointFile]
) -> Iterator[SavedQuery]:
    """Yield each query that has committed a batch; one that has not is at its beginning, and has nothing to save.

    Files that are copies are added to `copied`, by their paths.
    """
    for vertex in job.vertices:
        if vertex.query is None:
            continue
        into = hidden / QUERIES / vertex.uid
        saved = _link_last_batch(checkpoints / vertex.uid, into)
        if saved is not None:
            batch, copies = saved
            at = into.relative_to(hidden)
            copied |= {f"{at}/{file.path}": structs.replace(file, path=f"{at}/{file.path}") for file in copies}
            yield _described(job, vertex, into, batch)


def _cleans(vertex: JobVertex) -> bool:
    """Return whether a source removes or moves what it has read."""
    options = vertex.operation.options if isinstance(vertex.operation, Source) else {}
    return any(key.lower() == "cleansource" and value.lower() != "off" for key, value in options.items())


def _link_last_batch(checkpoint: Path, into: Path) -> tuple[int, list[SavepointFile]] | None:
    """Link or copy the files of the last committed batch; return that batch and the copies, or None without a batch."""
    problem: Exception | None = None
    for _ in range(_TRIES):
        shutil.rmtree(into, ignore_errors=True)
        batch = committed_batch(checkpoint)
        if batch is None:
            return None
        try:
            # Listed after the commit was seen: what the batch needs is there, or was purged since.
            there = frozenset(files_below(checkpoint))
            names = files_of_batch(there, batch, partial(commit_entry, checkpoint))
            saved = in_threads(partial(_save_file, checkpoint, into, there), names)
            check_snapshots(into, names)
        except (FileGone, FileNotFoundError) as error:
            problem = error
        else:
            return batch, [file for file in saved if file is not None]
    if isinstance(problem, FileDamaged):
        raise Unavailable(f"{checkpoint} is damaged, nothing can be restored from it: {problem}") from problem
    raise Unavailable(
        f"the files of {checkpoint} disappear faster than they can be saved, {_TRIES} times in a row: {problem}"
    ) from problem


def _save_file(checkpoint: Path, into: Path, there: Collection[str], name: str) -> SavepointFile | None:
    """Link or copy one file, and compare it with its checksums; return a copy. Raises FileDamaged, OSError."""
    copied = link_or_copy(checkpoint / name, into / name)
    at, slash, last = name.rpartition("/")
    checksums = f"{at}{slash}.{last}.crc"
    if checksums in there:
        check_file(into / name, checkpoint / checksums, name)
    return None if copied is None else SavepointFile(path=name, sha256=copied[0], size=copied[1])


def _described(job: JobGraph, vertex: JobVertex, saved: Path, batch: int) -> SavedQuery:
    sources = streaming_sources(job, vertex)
    target = vertex.operation.target if vertex.guarantee is Guarantee.SINK_LOG else None
    planned = (saved / "offsets" / str(batch)).read_text()
    return SavedQuery(
        uid=vertex.uid,
        step=vertex.name,
        batch=batch,
        query_id=query_id((saved / "metadata").read_bytes()),
        sink_batch=None if target is None else latest_sink_batch(target),
        sink=target or "",
        offsets=offsets_of(planned),
        partitions=state_partitions(planned) if (saved / "state").exists() else 0,
        sources=sources,
        clean_source=any(_cleans(job.vertex(name)) for name in sources),
        steps=steps_hash(job, vertex),
    )


def link_or_copy(source: Path, target: Path, *, link: bool = True) -> tuple[str, int] | None:
    """Make `target` a hard link, or a copy where the file system has none. A symbolic link is refused.

    Returns the SHA-256 and the size of a copy, which the disk begins to write: it is not durable before it is synced.

    Raises FileNotFoundError if the source is gone, OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    copied = None
    try:
        if not link:
            raise OSError(errno.ENOTSUP, "no link is wanted")
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _COPIED_INSTEAD:
            raise
        with opened(source) as descriptor, target.open("xb", buffering=0) as copy:
            os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(descriptor).st_mode))  # not for more eyes than the source
            copied = hash_file(descriptor, copy)
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # Linux begins to write it
    if not stat.S_ISREG(target.lstat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(source))
    return copied


def durable_files(directory: Path, known: Mapping[str, SavepointFile] | None = None) -> list[SavepointFile]:
    """Make every file below a directory durable; return each with its size and hash, in the order of their paths.

    Those that are `known`, by their paths, need no hash.
    """

    def made_durable(name: str) -> SavepointFile:
        found = None if known is None else known.get(name)
        with opened(directory / name) as descriptor:
            if found is None:
                digest, size = hash_file(descriptor)
                found = SavepointFile(path=name, size=size, sha256=digest)
            os.fsync(descriptor)
        return found

    return in_threads(made_durable, sorted(files_below(directory)))


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what a function returns for each item: while one file is hashed, another one is copied or synced.

    Raises what it raises for the first item for which it does, when no call of it runs any more.
    """
    with ThreadPoolExecutor(_THREADS, "savepoint") as threads:
        return list(threads.map(function, items))


def hash_file(descriptor: int, copy: IO[bytes] | None = None) -> tuple[str, int]:
    """Return the SHA-256 and the size of an open file, which is copied meanwhile if there is a `copy` to write to."""
    digest, size = hashlib.sha256(), 0
    read: Callable[[], bytes] = lambda: os.read(descriptor, _CHUNK)  # noqa: E731
    for chunk in iter(read, b""):
        digest.update(chunk)
        size += len(chunk)
        if copy is not None:
            _write_whole(copy, chunk)
    return digest.hexdigest(), size


def _write_whole(file: IO[bytes], content: bytes) -> None:
    left = memoryview(content)
    while left:  # an unbuffered file may take less
        left = left[file.write(left) :]


@contextlib.contextmanager
def opened(path: Path) -> Generator[int]:
    """Open a file to read it. A symbolic link is refused: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directories(root: Path) -> None:
    """Make the entries of a directory, and of all below it, durable."""
    for parent, _, _ in os.walk(root):
        sync_directory(Path(parent))


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, and return when it is durable but for its name."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
