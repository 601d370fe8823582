"""TaskManagers of one cluster have different ids."""

from __future__ import annotations

from pathlib import Path

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.taskmanager import task_manager_id
from flintlock.security.cluster_secret import ClusterSecret


def made_id(state_dir: Path, index: int = 0, configured: dict[str, str] | None = None) -> str:
    """Return the id of a TaskManager that is started on this host."""
    run_dir = state_dir / "run" / f"taskmanager-{index}"
    run_dir.mkdir(parents=True, exist_ok=True)
    settings = ProcessSettings(
        state_dir=state_dir, configuration=Configuration(configured or {}), secret=ClusterSecret(b"s" * 32), index=index
    )
    return task_manager_id(settings, run_dir)


def test_two_hosts_of_one_name_are_two_taskmanagers_and_each_keeps_its_id(tmp_path: Path) -> None:
    first, second = made_id(tmp_path / "a"), made_id(tmp_path / "b")

    assert first != second
    assert (made_id(tmp_path / "a"), made_id(tmp_path / "b")) == (first, second)


def test_taskmanagers_of_one_state_directory_have_ids_of_their_own(tmp_path: Path) -> None:
    ids = [made_id(tmp_path, index) for index in range(3)]

    assert len(set(ids)) == 3
    assert [name.rpartition("-")[2] for name in ids] == ["0", "1", "2"]


def test_a_configured_id_is_taken_as_it_is(tmp_path: Path) -> None:
    assert made_id(tmp_path, configured={"taskmanager.resource-id": "worker-7"}) == "worker-7"
