"""`flintlock cluster start` in a checkout: the dashboard is built beside it, or the reason is said."""

from __future__ import annotations

from pathlib import Path

from flintlock.client.clusters.dashboard_build import building_dashboard


def checkout(directory: Path, script: str) -> Path:
    """A checkout whose build is this script."""
    (directory / "dashboard").mkdir()
    (directory / "dashboard" / "build.py").write_text(script)
    return directory


def test_the_dashboard_of_a_checkout_is_built(tmp_path: Path) -> None:
    script = "import pathlib; pathlib.Path(__file__).with_name('done').touch()"
    with building_dashboard(checkout(tmp_path, script)) as build:
        assert build is not None
        assert build.result() == ""
    assert (tmp_path / "dashboard" / "done").exists()


def test_the_last_line_says_why_there_is_no_dashboard(tmp_path: Path) -> None:
    with building_dashboard(checkout(tmp_path, "import sys; print('npm'); sys.exit('there is no Node')")) as build:
        assert build is not None
        assert build.result() == "there is no Node"


def test_a_build_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with building_dashboard(checkout(tmp_path, "import time; time.sleep(600)")) as build:
        assert build is not None
        assert build.result(0.01) == "it was not built within 0.01 s"


def test_an_installation_without_the_source_builds_nothing(tmp_path: Path) -> None:
    with building_dashboard(tmp_path) as build:
        assert build is None
