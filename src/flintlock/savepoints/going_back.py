"""The way back from an upgrade: whether the former graph may run again, and the savepoint that it begins from.

A batch that the failed job has begun and not committed may be complete in the place that a function writes to, which
knows it by its number. The former graph would plan another batch under that number, with the rows that have arrived
since, and the function would ignore it. So that batch is repeated as it was planned: the former graph begins from a
copy of the savepoint (of links to its files) that has its offsets, too.

    <savepoints>/savepoint-<job>-<trigger>                what the failed job began from; it is only read
    <savepoints>/savepoint-<job>-<trigger>-begun-batch    with the batches that were begun: complete or not there

Sources are distinguished in the offsets by their position alone. Where the two graphs do not read the same one source,
the batch cannot be repeated, and there is no way back. File sinks need none of this: what is in their log is known.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Guarantee
from flintlock.model.streaming.savepoints import (
    MANIFEST,
    QUERIES,
    SavepointManifest,
    encode_manifest,
    streaming_sources,
)
from flintlock.savepoints.checkpoints import committed_batch, files_below, planned_batch
from flintlock.savepoints.restoring import read_savepoint, sink_batches
from flintlock.savepoints.writing import (
    durable_files,
    is_there,
    link_or_copy,
    rename_savepoint,
    sync_directories,
    sync_directory,
    write_durably,
)

_BEGUN: Final = "-begun-batch"


def way_back(job: JobGraph, former: JobGraph, *, savepoint: Path, checkpoints: Path, unique: str) -> Path | None:
    """Return the savepoint from which the former graph of a job that has failed may run again; None if it must not.

    `checkpoints` are those of the failed job, `unique` tells this try from all others. Repeating it is harmless. Raises
    OSError.
    """
    try:
        manifest = read_savepoint(savepoint)
    except Invalid:
        return None
    if _has_gone_on(job, manifest, checkpoints):
        return None
    begun: dict[str, int] = {}
    for vertex in former.vertices:
        if vertex.query is None or vertex.guarantee is not Guarantee.BATCH_ID:
            continue
        planned, saved = planned_batch(checkpoints / vertex.uid), manifest.query(vertex.uid)
        if planned is None or (saved is not None and planned <= saved.batch):
            continue
        if saved is None or planned != saved.batch + 1 or not _same_source(job, former, vertex):
            return None
        begun[vertex.uid] = planned
    return savepoint if not begun else _with_begun(manifest, begun, savepoint, checkpoints, unique)


def has_gone_on(job: JobGraph, *, savepoint: Path, checkpoints: Path) -> bool:
    """Return whether a query of a job has gone on from its savepoint; of one that cannot be read, no. Raises OSError.

    `checkpoints` are those of the job.
    """
    try:
        manifest = read_savepoint(savepoint)
    except Invalid:
        return False
    return _has_gone_on(job, manifest, checkpoints)


def _has_gone_on(job: JobGraph, manifest: SavepointManifest, checkpoints: Path) -> bool:
    """Return whether a query of a job has committed a batch after its savepoint.

    A batch that a file sink has in its log counts, too: another query would skip it.
    """
    sinks = sink_batches(job)
    for vertex in job.vertices:
        if vertex.query is None:
            continue
        saved = manifest.query(vertex.uid)
        at = -1 if saved is None else saved.batch
        committed, written = committed_batch(checkpoints / vertex.uid), sinks.get(vertex.uid)
        if committed is not None and committed > at:
            return True
        if saved is not None and written is not None and written > at:
            return True
    return False


def _same_source(job: JobGraph, former: JobGraph, vertex: JobVertex) -> bool:
    """Return whether a query of the former graph reads one streaming source, and the job has that for it, too."""
    again = next((other for other in job.vertices if other.query is not None and other.uid == vertex.uid), None)
    if again is None:
        return False
    mine, theirs = streaming_sources(former, vertex), streaming_sources(job, again)
    return len(mine) == len(theirs) == 1 and former.vertex(mine[0]).operation == job.vertex(theirs[0]).operation


def _with_begun(
    manifest: SavepointManifest, begun: dict[str, int], savepoint: Path, checkpoints: Path, unique: str
) -> Path | None:
    """Make the savepoint that has the batches that were begun; return its directory, None if the other is damaged."""
    place = savepoint.with_name(f"{savepoint.name}{_BEGUN}")
    if is_there(place, manifest.job_id):
        return place
    hidden = place.with_name(f".{place.name}.{unique}")
    try:
        for file in manifest.files:
            if not any(file.path.startswith(f"{QUERIES}/{uid}/sources/") for uid in begun):
                link_or_copy(savepoint / file.path, hidden / file.path)
        for uid, batch in begun.items():
            checkpoint = checkpoints / uid
            # The log of a source grows with each batch that is planned, and has the files of this one.
            sources = [name for name in files_below(checkpoint) if name.startswith("sources/") and _is_whole(name)]
            for name in (f"offsets/{batch}", *sources):
                link_or_copy(checkpoint / name, hidden / QUERIES / uid / name)
        files = durable_files(hidden)
        saved = {file.path: file for file in manifest.files}
        if any(saved.get(file.path, file) != file and "/sources/" not in file.path for file in files):
            return None
        queries = tuple(structs.replace(query, begun=begun.get(query.uid)) for query in manifest.queries)
        made = structs.replace(manifest, queries=queries, files=tuple(files))
        write_durably(hidden / MANIFEST, encode_manifest(made))
        sync_directories(hidden)
        rename_savepoint(hidden, place, manifest.job_id)
        sync_directory(place.parent)
    finally:
        for left in place.parent.glob(f".{place.name}.*"):  # by this try, or by those who died or came second
            shutil.rmtree(left, ignore_errors=True)
    return place


def _is_whole(name: str) -> bool:
    last = os.path.basename(name)  # noqa: PTH119 - a name
    return not last.startswith(".") and not last.endswith(".tmp")
