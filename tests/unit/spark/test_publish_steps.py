"""A success marker is there only beside the whole output of runs, at whichever step a publication is interrupted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest

from flintlock.model.errors import JobFailed
from flintlock.model.ids import StepName
from flintlock.model.tasks import FileMove, SinkFiles
from flintlock.spark.engine.handle import publication
from flintlock.spark.engine.publication.publish_steps import publish_steps, step_count
from flintlock.testing.fakes.fake_spark import FakeFiles


def run_of(number: int, *, removes: tuple[str, ...] = (), target: str = "/out") -> SinkFiles:
    """One run with two files."""
    staging = f"{target}/.staging-{number}"
    names = [f"part-{part}-{number}" for part in range(2)]
    return SinkFiles(
        step=StepName("out"),
        target=target,
        staging=staging,
        moves=tuple(FileMove(f"{staging}/{name}", f"{target}/{name}") for name in names),
        removes=removes,
        success_marker=f"{target}/_SUCCESS",
    )


def write(files: FakeFiles, *sinks: SinkFiles) -> None:
    for sink in sinks:
        files.content |= dict.fromkeys((move.source for move in sink.moves), sink.staging)


def publish(files: FakeFiles, *sinks: SinkFiles, steps: int | None = None) -> None:
    """Publish; after so many steps its process dies."""
    list(islice(publish_steps(publication(sinks), files), steps))


def published_before(*targets: str) -> FakeFiles:
    """What an earlier run has left."""
    files = FakeFiles()
    for target in targets or ("/out",):
        files.content |= {f"{target}/old-0": "old", f"{target}/old-1": "old", f"{target}/_SUCCESS": ""}
    return files


OVERWRITE = run_of(1, removes=("/out/old-0", "/out/old-1"))
APPEND = run_of(1)


@pytest.mark.parametrize("sink", [OVERWRITE, APPEND], ids=["overwrite", "append"])
def test_there_is_no_marker_beside_a_part_of_a_run_or_files_of_two(sink: SinkFiles) -> None:
    before = {"/out/old-0", "/out/old-1"}
    after = {move.target for move in sink.moves} | (before - set(sink.removes))
    total = step_count(publication((sink,)))
    for steps in range(total + 1):
        files = published_before()
        write(files, sink)
        publish(files, sink, steps=steps)
        if "/out/_SUCCESS" in files.content:
            assert set(files.visible("/out")) in (before, after), f"after {steps} steps"

        publish(files, sink)
        assert set(files.visible("/out")) == after
        assert "/out/_SUCCESS" in files.content


def test_no_target_is_marked_before_the_files_of_all_are_in_place() -> None:
    sinks = (run_of(1, target="/a"), run_of(1, target="/b"))
    for steps in range(step_count(publication(sinks)) - 2):
        files = published_before("/a", "/b")
        write(files, *sinks)
        publish(files, *sinks, steps=steps)
        if any(move.target in files.content for sink in sinks for move in sink.moves):
            assert not {"/a/_SUCCESS", "/b/_SUCCESS"} & set(files.content), f"after {steps} steps"


def test_a_late_repetition_does_not_remove_the_marker_of_a_later_run() -> None:
    """Its own files have been replaced meanwhile, so that it would never make the marker again."""
    files = published_before()
    write(files, OVERWRITE)
    publish(files, OVERWRITE)
    later = run_of(2, removes=tuple(move.target for move in OVERWRITE.moves))
    write(files, later)
    publish(files, later)

    with pytest.raises(JobFailed, match="does not exist"):
        publish(files, OVERWRITE)

    assert set(files.visible("/out")) == {move.target for move in later.moves}
    assert "/out/_SUCCESS" in files.content


def test_an_overwrite_without_rows_removes_the_marker_first_too() -> None:
    sink = SinkFiles(
        step=StepName("out"), target="/out", staging="", removes=OVERWRITE.removes, success_marker="/out/_SUCCESS"
    )
    files = published_before()
    publish(files, sink, steps=2)
    assert set(files.content) == {"/out/old-1"}


class RecordedFiles(FakeFiles):
    """Records in which order files change and become durable."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[str] = []

    def move(self, source: str, target: str) -> None:
        super().move(source, target)
        self.history.append(f"move {target}")

    def remove(self, path: str) -> None:
        super().remove(path)
        self.history.append(f"remove {path}")

    def mark(self, path: str) -> None:
        super().mark(path)
        self.history.append(f"mark {path}")

    def sync(self, directories: Iterable[str], files: Iterable[str] = ()) -> None:
        self.history.append(f"sync {' '.join([*directories, *files])}")


def test_every_change_is_durable_before_the_next_kind_of_change() -> None:
    """Else a loss of power could bring the old marker back beside new files, or lose files beside the new marker."""
    files = RecordedFiles()
    files.content |= published_before().content
    write(files, OVERWRITE)

    publish(files, OVERWRITE)

    assert files.history == [
        "remove /out/_SUCCESS",
        "sync /out",
        "move /out/part-0-1",
        "move /out/part-1-1",
        "remove /out/old-0",
        "remove /out/old-1",
        "sync /out",
        "mark /out/_SUCCESS",
        "sync /out /out/_SUCCESS",
    ]
