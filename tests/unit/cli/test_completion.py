"""Completion in a shell."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import ShellComplete
from tests.unit.client.answering import job_entry, serving

from flintlock.cli.main import app, run_app

JOB = "0123456789abcdef" * 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["completion", shell]) == 0
    assert "_FLINTLOCK_COMPLETE" in capsys.readouterr().out
    assert run_app(["completion", "tcsh"]) == 2


def completions(arguments: list[str], incomplete: str) -> list[str]:
    found = ShellComplete(app, {}, "flintlock", "_FLINTLOCK_COMPLETE").get_completions(arguments, incomplete)
    return [item.value for item in found]


def test_commands_options_and_jobs_are_completed() -> None:
    assert completions([], "sta") == ["status"]
    assert "--follow" in completions(["logs"], "--f")
    jobs = [job_entry(JOB, "daily", "RUNNING"), job_entry("f" * 32, "daily", "FAILED")]
    with serving({"GET /jobs/overview": [(200, {"jobs": jobs})]}) as server:
        assert completions(["status", "-m", server.url], "da") == ["daily"]
        assert completions(["wait", "-m", server.url, "daily"], "0") == [JOB]
        gone = server.url
    assert completions(["status", "-m", gone], "") == []
    assert isinstance(app, click.Group)
