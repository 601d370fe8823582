"""What is made durable: contents, names, and the directories that lead to them, in this order."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flintlock.spark.engine.local_files import sync_directories, sync_files, sync_tree


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was synchronised, in order."""
    paths: list[Path] = []

    def record(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", record)
    return paths


def test_a_tree_is_synchronised_files_first_then_its_directories_and_their_parents(
    tmp_path: Path, synced: list[Path]
) -> None:
    root = tmp_path / "new" / "staging"
    files = {
        root / f"day={day}" / f"{name}{part}" for day in range(3) for name in ("part-", ".crc-") for part in range(4)
    }
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    sync_tree(root)

    assert set(synced[: len(files)]) == files
    own = {root, *(file.parent for file in files)}
    assert set(synced[len(files) : len(files) + len(own)]) == own
    assert set(synced[len(files) + len(own) :]) == set(root.parents)


def test_what_vanishes_is_left_out(tmp_path: Path, synced: list[Path]) -> None:
    sync_files([tmp_path / "gone"])
    sync_tree(tmp_path / "none")
    assert synced == []


def test_an_error_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with pytest.raises(OSError, match="Input/output error"):
        sync_tree(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        sync_directories([tmp_path])
