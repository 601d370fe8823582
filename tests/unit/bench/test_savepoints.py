"""The made-up checkpoint of the benchmark is one of which a savepoint can be made."""

from __future__ import annotations

from pathlib import Path

from bench.savepoints import PARTITIONS, make_checkpoint, save

_FILE = 1000
_SIZE = 3 * PARTITIONS * _FILE


def test_a_savepoint_is_made_of_the_state_that_is_measured(tmp_path: Path) -> None:
    checkpoints = make_checkpoint(tmp_path, _SIZE, _FILE)

    assert make_checkpoint(tmp_path, _SIZE, _FILE) == checkpoints, "it is made once"
    assert save(checkpoints, tmp_path, 0, _SIZE) > 0
    assert not (tmp_path / "savepoints").exists()
