"""The short version of `python -m tests.chaos.kills`: each kind of kill under a streaming job, some of them twice."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.kills import kill_under_load


def test_no_row_is_lost_or_doubled_whatever_is_killed_or_frozen_under_a_streaming_job(tmp_path: Path) -> None:
    """A file sink, and a function that ignores lower batch ids; in the end the job is stopped with a savepoint.

    A change of leader alone restarts nothing: the same attempts go on with the next batch of each query.
    """
    reported: list[str] = []

    problems = kill_under_load(tmp_path / "kills", seed=1, kills=10, report=reported.append)

    assert not problems, "\n".join([*problems, *reported])
    assert len(reported) == 10 + 2, "each kill, the start of the cluster and the end"
