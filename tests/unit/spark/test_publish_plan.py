"""The files that publishing a staged sink moves and removes."""

from __future__ import annotations

import pytest

from flintlock.model.ids import StepName
from flintlock.model.operations import SaveMode, Sink
from flintlock.spark.engine.publication.publish_plan import (
    StagedSink,
    has_data,
    is_dynamic,
    needs_target_check,
    sink_files,
)


def staged(mode: SaveMode, *, dynamic: bool = False) -> StagedSink:
    return StagedSink(step=StepName("out"), target="/t", staging="/t/.flintlock-x", mode=mode, dynamic=dynamic)


def test_data_files_move_to_the_same_place_below_the_target() -> None:
    files = sink_files(staged(SaveMode.APPEND), ("day=1/b", "a", "_SUCCESS", ".a.crc"), ("old",))
    assert [(move.source, move.target) for move in files.moves] == [
        ("/t/.flintlock-x/a", "/t/a"),
        ("/t/.flintlock-x/day=1/b", "/t/day=1/b"),
    ]
    assert files.removes == ()
    assert files.success_marker == "/t/_SUCCESS"


def test_an_overwrite_removes_what_can_be_seen() -> None:
    present = ("old", "day=1/old", "_SUCCESS", ".flintlock-x/a", ".flintlock-other/b")
    files = sink_files(staged(SaveMode.OVERWRITE), ("a",), present)
    assert files.removes == ("/t/day=1/old", "/t/old")


def test_an_overwrite_with_nothing_still_removes() -> None:
    files = sink_files(staged(SaveMode.OVERWRITE), (), ("old",))
    assert (files.moves, files.removes) == ((), ("/t/old",))


def test_a_dynamic_overwrite_leaves_other_partitions_alone() -> None:
    present = ("day=1/old", "day=2/old", "day=1/hour=1/old", "old")
    files = sink_files(staged(SaveMode.OVERWRITE, dynamic=True), ("day=1/new",), present)
    assert files.removes == ("/t/day=1/old",)


def test_a_file_that_arrives_is_never_removed() -> None:
    files = sink_files(staged(SaveMode.OVERWRITE), ("a",), ("a", "b"))
    assert files.removes == ("/t/b",)


@pytest.mark.parametrize(
    ("sink", "config", "dynamic"),
    [
        (Sink(mode=SaveMode.OVERWRITE, partition_by=("d",), options={"partitionOverwriteMode": "DYNAMIC"}), {}, True),
        (
            Sink(mode=SaveMode.OVERWRITE, partition_by=("d",)),
            {"spark.sql.sources.partitionOverwriteMode": "dynamic"},
            True,
        ),
        (
            Sink(mode=SaveMode.OVERWRITE, partition_by=("d",), options={"partitionoverwritemode": "static"}),
            {"spark.sql.sources.partitionOverwriteMode": "dynamic"},
            False,
        ),
        (Sink(mode=SaveMode.OVERWRITE, options={"partitionOverwriteMode": "dynamic"}), {}, False),
        (Sink(mode=SaveMode.APPEND, partition_by=("d",), options={"partitionOverwriteMode": "dynamic"}), {}, False),
    ],
)
def test_dynamic_needs_partitions_and_an_overwrite(sink: Sink, config: dict[str, str], dynamic: bool) -> None:
    assert is_dynamic(sink, config) is dynamic


def test_only_two_modes_check_their_target() -> None:
    asking = {mode for mode in SaveMode if needs_target_check(Sink(mode=mode))}
    assert asking == {SaveMode.ERROR_IF_EXISTS, SaveMode.IGNORE}


def test_hidden_files_do_not_make_a_target_exist() -> None:
    assert not has_data(("_SUCCESS", ".flintlock-x/a"))
    assert has_data(("_SUCCESS", "a"))
