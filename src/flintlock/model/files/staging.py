"""Where an attempt's files are before they are published, and which files of a directory are data.

The JobMaster must be able to name an attempt's staging directories without the attempt, which may have ended. So the
name consists of nothing but the target and the attempt's id. It begins with a dot: Spark, Hive and Hadoop treat such
names as hidden, and readers of the target never see what is inside.

Rejected: a staging area elsewhere. Moving a file within one directory is a rename on every file system that has one;
between two places it may be a copy, and may need credentials that the target does not.
"""

from __future__ import annotations

from typing import Final

from flintlock.model.ids import AttemptId
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Guarantee, Sink
from flintlock.model.regions import Region, region_outputs

PREFIX: Final = ".flintlock-"
SUCCESS_MARKER: Final = "_SUCCESS"

#: The end of a pattern for the staging directories of all attempts at a region.
ANY_ATTEMPT: Final = "-*"


def staging_directory(target: str, attempt: AttemptId) -> str:
    """Return the directory inside `target` that this attempt, and no other, writes its files to."""
    return f"{_inside(target)}{PREFIX}{attempt.job_id}-{attempt.region}-{attempt.attempt}"


def success_marker(target: str) -> str:
    """Return the file that marks a directory as complete."""
    return f"{_inside(target)}{SUCCESS_MARKER}"


def is_data(relative_path: str) -> bool:
    """Return whether a file below a target is data: no part of its path is hidden (`.` or `_` in front).

    As in Spark, a directory `_part=1` is a partition by a column `_part`, not hidden.
    """
    return all(
        not part.startswith(".") and (not part.startswith("_") or "=" in part) for part in relative_path.split("/")
    )


def staged_sinks(graph: JobGraph, region: Region) -> tuple[JobVertex, ...]:
    """Return those of the region's outputs that are staged sinks, in their order."""
    return tuple(vertex for vertex in region_outputs(graph, region) if vertex.guarantee is Guarantee.STAGED)


def staging_directories(graph: JobGraph, region: Region, attempt: AttemptId) -> tuple[str, ...]:
    """Return every staging directory that this attempt at this region may write to."""
    return tuple(
        staging_directory(sink.operation.path, attempt)
        for sink in staged_sinks(graph, region)
        if isinstance(sink.operation, Sink) and sink.operation.path is not None
    )


def staging_of_attempts(graph: JobGraph, region: Region, attempt: AttemptId) -> tuple[str, ...]:
    """Return what names the staging directories of this attempt and of all before it, in one entry for each sink.

    For the first attempt these are its directories. From the second on an entry is a pattern: `ANY_ATTEMPT` in place of
    the number.
    """
    directories = staging_directories(graph, region, attempt)
    if attempt.attempt == 0:
        return directories
    return tuple(f"{directory.rpartition('-')[0]}{ANY_ATTEMPT}" for directory in directories)


def _inside(target: str) -> str:
    return target if target.endswith("/") else f"{target}/"
