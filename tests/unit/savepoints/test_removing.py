"""A savepoint is removed as a whole or not at all, and nothing else is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.savepoints.interruptions import Died, dying_at, observing
from tests.unit.savepoints.test_restoring import Saved
from tests.unit.savepoints.test_writing import content

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


def test_files_that_were_kept_are_not_in_the_way_of_the_next_removal_at_that_path(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    for number in range(2):
        saved = Saved(tmp_path) if number else saved
        (saved.path / "notes.txt").write_text("mine")
        remove_savepoint(saved.path, check_removal(saved.path))
    assert not saved.path.exists()
    kept = [path.name for hidden in saved.path.parent.iterdir() for path in hidden.iterdir()]
    assert kept == ["notes.txt", "notes.txt"]


def test_a_removal_that_is_repeated_leaves_another_savepoint_in_that_place_alone(tmp_path: Path) -> None:
    """It completes its own, also if it had come to the first step only."""
    saved = Saved(tmp_path, batches=1)
    identity = check_removal(saved.path)
    with dying_at(saved.path.parent, 12), suppress(Died):
        remove_savepoint(saved.path, identity)
    assert not saved.path.exists()
    assert check_removal(saved.path) == identity, "of what is left"

    other = Saved(tmp_path)
    before = content(other.path)
    remove_savepoint(saved.path, identity)

    assert [path.name for path in saved.path.parent.iterdir()] == [saved.path.name]
    assert content(other.path) == before
    other.check()


def test_a_savepoint_that_gets_the_path_while_it_is_renamed_is_put_back(tmp_path: Path) -> None:
    """A leader that was frozen, and goes on after its successor has removed what it had found."""
    saved = Saved(tmp_path, batches=1)
    identity, exchanged = check_removal(saved.path), list[Path]()

    def exchange(event: str, path: str) -> None:
        if event == "os.rename" and path == str(saved.path) and not exchanged:
            exchanged.append(saved.path)
            remove_savepoint(saved.path, identity)
            Saved(tmp_path)

    with observing(saved.path.parent, exchange):
        remove_savepoint(saved.path, identity)

    assert exchanged
    assert check_removal(saved.path) != identity
    assert [path.name for path in saved.path.parent.iterdir()] == [saved.path.name]


def test_what_an_earlier_version_has_left_of_a_savepoint_is_removed(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    saved.path.rename(saved.path.parent / f".{saved.path.name}.disposed")
    remove_savepoint(saved.path, check_removal(saved.path))
    assert [*saved.path.parent.iterdir()] == []


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
