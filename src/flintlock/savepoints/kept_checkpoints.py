"""The checkpoints that a job has left, as what another one begins from: without a manifest, as Spark has written them.

    <checkpoints>/<job>/<uid>/…    the checkpoint of one query

What a manifest would say is read from the files. Of steps and sinks they say nothing, and there are no hashes to
compare them with. A batch that was planned and not committed is taken, too: it may be complete in its sink, and is
repeated as it was planned, as a restart of the job would have done.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from flintlock.model.errors import Invalid
from flintlock.model.streaming.savepoints import (
    QUERIES,
    FileDamaged,
    FileGone,
    SavedQuery,
    SavepointFile,
    SavepointManifest,
    files_of_batch,
)
from flintlock.savepoints.checkpoints import (
    commit_entry,
    committed_batch,
    files_below,
    offsets_of,
    planned_batch,
    query_id,
    state_partitions,
)
from flintlock.savepoints.verifying import check_snapshots

#: The suffixes of what a rescale has beside a checkpoint while it exchanges it.
_EXCHANGED: Final = (".rescaled", ".replaced")


def kept_checkpoints(path: Path) -> Path | None:
    """Return the directory of a job's checkpoints, which a path names, or the checkpoint of one query in it.

    None if there is no checkpoint. Raises OSError.
    """
    if _is_checkpoint(path):
        return path.parent
    return path if path.is_dir() and any(_is_checkpoint(each) for each in path.iterdir()) else None


def read_checkpoints(job: Path) -> SavepointManifest:
    """Return what a savepoint of these checkpoints would say. Raises Invalid if one is not complete, OSError."""
    lost = [left.name for left in job.iterdir() if left.suffix in _EXCHANGED and not (job / left.stem[1:]).exists()]
    if lost:
        raise Invalid(f"{job} cannot be used: a rescale has not put {', '.join(sorted(lost))} into its place")
    queries: list[SavedQuery] = []
    files: list[SavepointFile] = []
    for checkpoint in sorted(each for each in job.iterdir() if _is_checkpoint(each)):
        try:
            found = _query(checkpoint)
            if found is not None:
                queries.append(found)
                files += _files(checkpoint, found)
        except FileDamaged as error:
            raise Invalid(f"{checkpoint} is damaged: {error}") from error
        except (FileGone, FileNotFoundError) as error:
            raise Invalid(f"{checkpoint} is not complete: {error} is missing") from error
    return SavepointManifest(
        job_id=job.name,
        job_name="",
        created_ms=max((_changed_ms(job / query.uid, query.batch) for query in queries), default=0),
        spark="",
        cuts=len(queries),
        queries=tuple(queries),
        files=tuple(files),
    )


def _is_checkpoint(path: Path) -> bool:
    return not path.name.startswith(".") and (path / "metadata").is_file() and (path / "offsets").is_dir()


def _query(checkpoint: Path) -> SavedQuery | None:
    """Return what is known of a query; None if it has committed no batch, and would begin from the beginning."""
    batch, planned = committed_batch(checkpoint), planned_batch(checkpoint)
    if batch is None:
        return None
    entry = (checkpoint / "offsets" / str(batch)).read_text()
    return SavedQuery(
        uid=checkpoint.name,
        step=checkpoint.name,
        batch=batch,
        query_id=query_id((checkpoint / "metadata").read_bytes()),
        offsets=offsets_of(entry),
        partitions=state_partitions(entry) if (checkpoint / "state").exists() else 0,
        begun=planned if planned is not None and planned > batch else None,
    )


def _files(checkpoint: Path, query: SavedQuery) -> list[SavepointFile]:
    names = list(files_of_batch(files_below(checkpoint), query.batch, partial(commit_entry, checkpoint)))
    check_snapshots(checkpoint, names)
    if query.begun is not None:
        names.append(f"offsets/{query.begun}")
    return [
        SavepointFile(path=f"{QUERIES}/{query.uid}/{name}", size=(checkpoint / name).lstat().st_size, sha256="")
        for name in names
    ]


def _changed_ms(checkpoint: Path, batch: int) -> int:
    return int((checkpoint / "commits" / str(batch)).stat().st_mtime * 1000)
