"""A savepoint is removed as a whole or not at all, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.savepoints.interruptions import Died, dying_at, observing
from tests.unit.savepoints.test_restoring import Saved

from flintlock.model.errors import Invalid
from flintlock.savepoints.removing import check_removal, remove_savepoint


def test_a_savepoint_is_removed_and_its_neighbours_stay(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (saved.path.parent / "other").mkdir()

    remove_savepoint(saved.path)

    assert [path.name for path in saved.path.parent.iterdir()] == ["other"]
    with pytest.raises(Invalid, match="is not a savepoint that the JobManager can read"):
        check_removal(saved.path)
    remove_savepoint(saved.path)  # it is gone: a removal may be repeated


def test_a_directory_that_is_no_savepoint_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    for call in (check_removal, remove_savepoint):
        with pytest.raises(Invalid, match="is not a savepoint"):
            call(tmp_path / "data")
    assert (tmp_path / "data" / "file").exists()


def test_a_path_that_no_file_system_has_is_no_savepoint() -> None:
    with pytest.raises(Invalid, match="is not a path"):
        check_removal(Path("/savepoints/\0"))


def test_files_that_are_not_of_the_savepoint_are_kept(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (saved.path / "notes.txt").write_text("mine")

    remove_savepoint(saved.path)

    (kept,) = saved.path.parent.iterdir()
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]


def test_whoever_dies_while_removing_leaves_the_whole_savepoint_or_none(tmp_path: Path) -> None:
    """A removal that is repeated removes the rest."""
    for number in range(1, 1000):
        saved = Saved(tmp_path / str(number), batches=1)
        died = False
        try:
            with dying_at(tmp_path / str(number), number):
                remove_savepoint(saved.path)
        except Died:
            died = True
        if saved.path.exists():
            saved.check()
        if died and [*saved.path.parent.iterdir()]:
            check_removal(saved.path)
            remove_savepoint(saved.path)
        assert [*saved.path.parent.iterdir()] == []
        if not died:
            assert number > 5, "it was interrupted at each of its operations"
            return
    raise AssertionError("it never came to its end")


def removed_twice(saved: Saved, step: int) -> bool:
    """Remove a savepoint; at this file operation another removal comes first. Return whether it did."""
    count, removing = 0, False

    def overtake(_event: str, _path: str) -> None:
        nonlocal count, removing
        if not removing:
            count += 1
            if count == step:
                removing = True
                remove_savepoint(saved.path)
                removing = False

    with observing(saved.path.parent, overtake):
        remove_savepoint(saved.path)
    return count >= step


def test_two_removals_at_once_both_succeed_wherever_one_overtakes_the_other(tmp_path: Path) -> None:
    """A leader that was replaced may go on while its successor removes the savepoint."""
    step, overtaken = 0, True
    while overtaken:
        step += 1
        saved = Saved(tmp_path / str(step))
        overtaken = removed_twice(saved, step)
        assert [*saved.path.parent.iterdir()] == []
    assert step > 5
