"""Which files publishing a staged sink moves and removes: decided from what is in its staging directory and its target.

Pure, and without PySpark: the TaskManager's side of a runner uses it, after the runner has finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from flintlock.model.files.staging import is_data, success_marker
from flintlock.model.ids import StepName
from flintlock.model.operations import SaveMode, Sink
from flintlock.model.tasks import FileMove, SinkFiles

DYNAMIC: Final = "partitionoverwritemode"


class StagedSink(Struct, frozen=True, kw_only=True, tag="staged-sink"):
    """Runner to TaskManager: a staged sink has been written, and its files can be listed."""

    step: StepName
    target: str
    staging: str
    mode: SaveMode
    dynamic: bool = False  # overwrite only the partitions that were written


class MaterialisedStep(Struct, frozen=True, kw_only=True, tag="materialised-step"):
    """Runner to TaskManager: a blocking result has been written, and its files can be listed."""

    step: StepName
    path: str


class UnsharedPath(Struct, frozen=True, kw_only=True):
    """A path that executors on other machines do not see as this one does."""

    path: str
    reason: str


class FileListing(Struct, frozen=True, kw_only=True):
    """The files below a path; a path that does not exist has none."""

    exists: bool = True
    files: tuple[str, ...] = ()  # relative to the path, in order
    sizes: tuple[int, ...] = ()  # of each file in bytes, where `with_sizes` was requested

    def data(self) -> dict[str, int]:
        """Return the files that are data, with their sizes."""
        return {name: size for name, size in zip(self.files, self.sizes, strict=True) if is_data(name)}


def needs_target_check(sink: Sink) -> bool:
    """Return whether a staged sink depends on the files that its target has when it starts."""
    return sink.mode.requires_empty_target


def is_dynamic(sink: Sink, config: Mapping[str, str]) -> bool:
    """Return whether an overwrite replaces only the partitions that it writes."""
    if sink.mode is not SaveMode.OVERWRITE or not sink.partition_by:
        return False
    options = {key.lower(): value for key, value in sink.options.items()}
    mode = options.get(DYNAMIC, config.get("spark.sql.sources.partitionOverwriteMode", "static"))
    return mode.lower() == "dynamic"


def has_data(files: Iterable[str]) -> bool:
    """Return whether a target counts as existing: hidden files, such as those of attempts, do not count."""
    return any(is_data(path) for path in files)


def sink_files(sink: StagedSink, staged: Iterable[str], present: Iterable[str]) -> SinkFiles:
    """Return what is moved into the target and what is removed from it, by the names of the files in both.

    `present` matters for an overwrite only.
    """
    written = sorted(path for path in staged if is_data(path))
    removes: list[str] = []
    if sink.mode is SaveMode.OVERWRITE:
        partitions = {_directory(path) for path in written}
        arriving = set(written)
        removes = sorted(
            path
            for path in present
            if is_data(path) and path not in arriving and (not sink.dynamic or _directory(path) in partitions)
        )
    return SinkFiles(
        step=sink.step,
        target=sink.target,
        staging=sink.staging,
        moves=tuple(FileMove(_below(sink.staging, path), _below(sink.target, path)) for path in written),
        removes=tuple(_below(sink.target, path) for path in removes),
        success_marker=success_marker(sink.target),
    )


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _below(directory: str, path: str) -> str:
    return f"{directory.rstrip('/')}/{path}"
