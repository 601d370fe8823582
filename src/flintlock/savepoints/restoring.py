"""Starts a job from a savepoint: its files become the checkpoints of the job's queries, before any of them runs.

    <checkpoints>/<job>/.<uid>.<random>/…   links to the files of one query, or copies, compared with the manifest
    <checkpoints>/<job>/<uid>/              the rename: the checkpoint of the query is complete
    <checkpoints>/<job>/.<uid>.compared     its steps are those that it was saved with: the two need not be compared
    <checkpoints>/<job>/_restored           last: nothing is restored any more, whatever becomes of the savepoint

A process that dies in between has started no query. The next one skips what is complete, and does the rest again.

The savepoint is only read. Where a query gets a new id, the file that has it is written again, never through the link.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from flintlock.model.errors import Corrupt, FlintlockError, Incompatible, Invalid, Unavailable
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Guarantee
from flintlock.model.streaming.savepoints import (
    MANIFEST,
    QUERIES,
    SavedQuery,
    SavepointFile,
    SavepointManifest,
    damage,
    decode_manifest,
    restore_problems,
    steps_hash,
)
from flintlock.savepoints.checkpoints import compared_marker, files_below, is_local, latest_sink_batch, local_path
from flintlock.savepoints.kept_checkpoints import kept_checkpoints, read_checkpoints
from flintlock.savepoints.rewinding import planned_rewind, rewind_sink
from flintlock.savepoints.writing import (
    hash_file,
    in_threads,
    link_or_copy,
    opened,
    sync_directories,
    sync_directory,
    write_durably,
)

RESTORED: Final = "_restored"
"""The file in the directory of a job's checkpoints that says that all of the savepoint is there."""


class RestorePoint(Struct, frozen=True, kw_only=True):
    """What a savepoint, or what is taken for one, consists of."""

    manifest: SavepointManifest
    queries: Path  # the directory that has one directory for each uid


class Restore(Struct, frozen=True, kw_only=True):
    """What a job is restored from, and how."""

    path: Path
    allow_unclaimed: bool = False  # state that no query of the job takes is dropped
    claim: bool = False  # the queries keep their ids
    rewind_sinks: bool = False  # what file sinks have got after the savepoint is moved out of them


def restore_point(path: Path) -> RestorePoint:
    """Return what a job can begin from: a savepoint, or the checkpoints that a job has left.

    Raises Invalid if it is neither, or not complete; Unavailable if its storage cannot be read now.
    """
    try:
        kept = None if (path / MANIFEST).exists() else kept_checkpoints(path)
        if kept is not None:
            return RestorePoint(manifest=read_checkpoints(kept), queries=kept)
    except PermissionError:
        pass  # of which reading a manifest says more
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    return RestorePoint(manifest=read_savepoint(path), queries=path / QUERIES)


def read_savepoint(path: Path) -> SavepointManifest:
    """Return the manifest of a savepoint whose files are there. Raises Invalid if it is none, or not complete.

    Raises Unavailable if the storage that it is on cannot be read now.
    """
    try:
        manifest = decode_manifest((path / MANIFEST).read_bytes())
        found = {name: (path / name).lstat().st_size for name in files_below(path) if name != MANIFEST}
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise Invalid(f"{path} is not a savepoint that the JobManager can read: {error.strerror}") from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    except (Corrupt, Incompatible) as error:
        raise Invalid(f"{path}: {error.public}") from error
    hashes = {file.path: file.sha256 for file in manifest.files}
    problems = damage(manifest, {name: (size, hashes.get(name, "")) for name, size in found.items()})
    if problems:
        raise Invalid(f"the savepoint {path} is damaged: {'; '.join(problems)}", problems=problems)
    return manifest


def check_restore(job: JobGraph, restore: Restore, spark: str, *, stopped: bool = False) -> None:
    """Raise Invalid, with every reason, if the job cannot be restored.

    `stopped`: it will be restored from where the saved job is stopped, of which this savepoint only has the shape: no
    sink is ahead of that, and no source has removed what comes after it.
    """
    manifest = restore_point(restore.path).manifest
    sinks = {} if stopped else sink_batches(job)
    if restore.rewind_sinks:
        sinks = {uid: _rewound(job, manifest, uid, at) for uid, at in sinks.items()}
    if stopped:
        queries = tuple(structs.replace(query, clean_source=False) for query in manifest.queries)
        manifest = structs.replace(manifest, queries=queries)
    problems = [*restore_problems(manifest, job, sinks, allow_unclaimed=restore.allow_unclaimed)]
    if _minor(manifest.spark) > _minor(spark):
        problems.append(f"it was made with Spark {manifest.spark}, and this cluster runs {spark}")
    for vertex in job.vertices:
        target = vertex.operation.target if vertex.guarantee is Guarantee.SINK_LOG else None
        if target is not None and manifest.query(vertex.uid) is not None and not is_local(target):
            problems.append(f"{vertex.uid}: whether {target} is ahead of the savepoint cannot be found out from here")
    if problems:
        text = "; ".join(problems)
        raise Invalid(f"the job cannot be restored from {restore.path}: {text}", problems=tuple(problems))


def is_restored(checkpoints: Path) -> bool:
    """Return whether nothing is left to do for a job with these checkpoints. Raises Unavailable if it cannot say."""
    try:
        return (checkpoints / RESTORED).exists()
    except OSError as error:
        raise Unavailable(f"{checkpoints} cannot be read: {error.strerror}") from error


def restore_job(job: JobGraph, restore: Restore, *, checkpoints: Path, new_id: str, spark: str = "") -> None:
    """Make the checkpoints of a job's queries from a savepoint.

    `new_id` is a UUID that nothing else has, `spark` the version that runs the job, if it is known.

    Raises Invalid if the savepoint is damaged, Unavailable if a file cannot be read or written.
    """
    if is_restored(checkpoints):
        return
    point = restore_point(restore.path)
    manifest = point.manifest
    try:
        if restore.rewind_sinks:
            for uid, place in _local_sinks(job).items():
                saved = manifest.query(uid)
                if saved is not None:
                    rewind_sink(place, saved.batch, job.job_id)
        checkpoints.mkdir(parents=True, exist_ok=True)
        for number, vertex in enumerate(job.vertices):
            saved = None if vertex.query is None else manifest.query(vertex.uid)
            if saved is not None and not (checkpoints / saved.uid).exists():
                query_id = None if restore.claim else f"{new_id[:-4]}{number:04x}"
                _restore_query(point, saved, checkpoints, query_id=query_id, unique=new_id[:8])
            if saved is not None and spark == manifest.spark and saved.steps == steps_hash(job, vertex):
                compared_marker(checkpoints / saved.uid).touch()
        owner = _other_owner(checkpoints.parent)
        if owner is not None:
            os.chown(checkpoints, *owner)
        write_durably(checkpoints / RESTORED, f"{restore.path}\n".encode())
        sync_directory(checkpoints)
    except OSError as error:
        raise Unavailable(
            f"{restore.path} could not be restored to {checkpoints}: {error.strerror}: {error.filename}"
        ) from error


def _restore_query(
    point: RestorePoint,
    saved: SavedQuery,
    checkpoints: Path,
    *,
    query_id: str | None,
    unique: str,
) -> None:
    hidden = checkpoints / f".{saved.uid}.{unique}"
    prefix = f"{QUERIES}/{saved.uid}/"
    # Where jobs run as another user, the files become that one's: never those of the savepoint, or what they link to.
    owner = _other_owner(checkpoints.parent)

    def restored(file: SavepointFile) -> None:
        target = hidden / file.path.removeprefix(prefix)
        link_or_copy(point.queries / file.path.removeprefix(f"{QUERIES}/"), target, link=owner is None)
        with opened(target) as descriptor:
            digest, _ = hash_file(descriptor)
            os.fsync(descriptor)
        if file.sha256 and digest != file.sha256:
            raise Invalid(
                f"the savepoint {point.queries.parent} is damaged: {file.path} has another content than was saved"
            )

    try:
        in_threads(restored, [file for file in point.manifest.files if file.path.startswith(prefix)])
        if query_id is not None:
            (hidden / "metadata").unlink()
            write_durably(hidden / "metadata", json.dumps({"id": query_id}).encode())
    except (OSError, FlintlockError):
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    if owner is not None:
        _give(hidden, *owner)
    sync_directories(hidden)
    hidden.rename(checkpoints / saved.uid)
    sync_directory(checkpoints)


def _other_owner(directory: Path) -> tuple[int, int] | None:
    """Return user and group of a directory, if they are others than this process's and it can give files to them."""
    found = directory.stat()
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 and found.st_uid != 0 else None


def _give(directory: Path, user: int, group: int) -> None:
    for parent, _, names in os.walk(directory):
        for path in (parent, *(f"{parent}/{name}" for name in names)):
            os.chown(path, user, group, follow_symlinks=False)


def _local_sinks(job: JobGraph) -> dict[str, Path]:
    """Return where each file sink is, by uid, if that is a directory of this machine."""
    targets = {vertex.uid: vertex.operation.target for vertex in job.vertices if vertex.guarantee is Guarantee.SINK_LOG}
    return {uid: local_path(target, uid) for uid, target in targets.items() if target is not None and is_local(target)}


def _rewound(job: JobGraph, manifest: SavepointManifest, uid: str, at: int | None) -> int | None:
    """Return where a sink ends when it has been taken back. Raises Invalid if its log does not say what to move."""
    saved, place = manifest.query(uid), _local_sinks(job).get(uid)
    if saved is None or place is None or at is None or at <= saved.batch:
        return at
    return planned_rewind(place, saved.batch).batch


def sink_batches(job: JobGraph) -> dict[str, int | None]:
    """Return the latest batch in the log of each file sink, by uid."""
    targets = {vertex.uid: vertex.operation.target for vertex in job.vertices if vertex.guarantee is Guarantee.SINK_LOG}
    return {uid: latest_sink_batch(target) for uid, target in targets.items() if target is not None}


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
