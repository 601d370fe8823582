"""The copies of a session's files on the engine's disk: removed with the session, and no others."""

from __future__ import annotations

from pathlib import Path

from flintlock.spark.engine.session_files import has_session_files, remove_session_files


def test_the_files_of_released_sessions_are_removed_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "userFiles"
    for session in ("one", "two"):
        (root / session).mkdir(parents=True)
        (root / session / "lib.zip").write_bytes(b"x")
    (tmp_path / "beside").mkdir()
    assert has_session_files(root)

    remove_session_files(root, ["one", "never-had-files", "../beside", "..", ".", ""])

    assert [path.name for path in root.iterdir()] == ["two"]
    assert (tmp_path / "beside").is_dir()
    remove_session_files(root, ["two"])
    assert not has_session_files(root)


def test_files_of_the_whole_cluster_are_no_session(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("")
    assert not has_session_files(tmp_path)
    assert not has_session_files(tmp_path / "gone")
