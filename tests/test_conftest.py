"""The check for leftover processes finds what it is there to find: it has to fail when it should."""

from pathlib import Path

import psutil
import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
LEAN = ("-p", "no:cacheprovider", "-p", "no:schemathesis")  # which alone takes seconds to load

#: The shell ends at once, and `sleep` is adopted by init: no longer a descendant of the run that started it.
ORPHAN = """
    import pathlib, subprocess

    def test_that_leaves_an_orphan():
        started = subprocess.check_output("sleep 600 >/dev/null 2>&1 & echo $!", shell=True, text=True)
        pathlib.Path("pid").write_text(started)
"""

TIDY = """
    import subprocess

    def test_that_waits_for_its_child():
        subprocess.run(["true"], check=True)
"""


def test_an_orphan_fails_the_run_and_is_killed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(ORPHAN)

    result = pytester.runpytest_subprocess(*LEAN)

    pid = int((pytester.path / "pid").read_text())
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["processes left behind by the tests*", f"  {pid}  sleep 600"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_tidy_run_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TIDY)

    result = pytester.runpytest_subprocess(*LEAN)

    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
