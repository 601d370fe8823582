"""What is made durable: contents, names, and the directories that lead to them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from flintlock.spark.engine.publication.local_files import LocalFiles


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was synchronised, in order."""
    paths: list[Path] = []

    def record(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", record)
    return paths


def test_a_tree_is_synchronised_with_its_directories_and_their_parents(tmp_path: Path, synced: list[Path]) -> None:
    root = tmp_path / "new" / "staging"
    files = {
        root / f"day={day}" / f"{name}{part}" for day in range(3) for name in ("part-", ".crc-") for part in range(4)
    }
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    LocalFiles().sync_tree(root)

    assert sorted(synced) == sorted({*files, root, *(file.parent for file in files), *root.parents})


def test_tree_of_many_files_is_synchronised_part_by_part_and_as_a_whole(tmp_path: Path, synced: list[Path]) -> None:
    root = tmp_path / "out"
    root.mkdir()
    files = {root / f"part-{number}" for number in range(5000)}
    for file in files:
        file.touch()

    LocalFiles().sync_tree(root)

    assert {*files, root} <= set(synced)
    assert len(synced) == len({*files, root, *root.parents})


def test_a_parent_is_synchronised_again_only_when_something_was_made_in_it(tmp_path: Path, synced: list[Path]) -> None:
    local, made = LocalFiles(), tmp_path / "parent" / "made"
    made.mkdir(parents=True)
    os.utime(made.parent, (1.0, 1.0))
    local.sync([made])
    assert made.parent in synced

    synced.clear()
    local.sync([made])
    assert synced.count(made) == 1
    assert made.parent not in synced

    (made.parent / "another").mkdir()
    local.sync([made])
    assert made.parent in synced


def test_a_parent_that_has_just_changed_is_not_trusted(tmp_path: Path, synced: list[Path]) -> None:
    """A later change may have the same modification time."""
    local, made = LocalFiles(), tmp_path / "made"
    made.mkdir()
    os.utime(tmp_path, (time.time() + 60, time.time() + 60))
    local.sync([made])
    local.sync([made])
    assert synced.count(tmp_path) == 2


def test_what_vanishes_is_left_out(tmp_path: Path, synced: list[Path]) -> None:
    LocalFiles().sync([], [tmp_path / "gone"])
    LocalFiles().sync_tree(tmp_path / "none")
    assert synced == []


def test_an_error_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with pytest.raises(OSError, match="Input/output error"):
        LocalFiles().sync_tree(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        LocalFiles().sync([tmp_path])
