"""When executors of a silent machine end, and which settings are refused because they would end too late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.model.errors import Invalid
from flintlock.spark.engine.executors.demand import unusable_settings
from flintlock.spark.engine.executors.leases import lease_defaults, outlived_lease
from flintlock.spark.launcher import LocalEngineLauncher

INTERVAL, UNANSWERED = "spark.executor.heartbeatInterval", "spark.executor.heartbeat.maxFailures"


@pytest.mark.parametrize("lease_s", [13.0, 20.0, 50.0, 600.0])
def test_executors_of_a_silent_driver_end_within_the_lease(lease_s: float) -> None:
    """Each unanswered heartbeat takes an interval, and the end of the process up to ten seconds."""
    made = {key: value.removesuffix("ms") for key, value in lease_defaults(lease_s).items()}
    interval_s, unanswered = int(made[INTERVAL]) / 1000, int(made[UNANSWERED])
    network_s, check_s = (int(made[f"spark.network.{name}"]) / 1000 for name in ("timeout", "timeoutInterval"))

    assert interval_s * (unanswered + 1) + 10.0 < 0.95 * lease_s
    assert interval_s < check_s < network_s  # or Spark refuses to start
    assert outlived_lease({}, lease_s) is None


def test_an_interval_with_which_executors_would_outlive_the_lease_is_refused_with_the_longest_allowed() -> None:
    """Ten seconds are Spark's own default, and what a user is likely to write."""
    problem = outlived_lease({INTERVAL: "10s"}, 50.0) or ""

    assert f"{INTERVAL}=10s: executors of a machine that falls silent would run for 70.0 s more" in problem
    assert "heartbeat.timeout (50 s); at most 47.5 s are allowed" in problem
    assert problem.endswith(f": {INTERVAL}=6249ms at most")
    assert outlived_lease({INTERVAL: "6249ms"}, 50.0) is None
    assert outlived_lease({INTERVAL: "6250"}, 50.0) is not None  # a number without a unit is milliseconds


def test_too_many_unanswered_heartbeats_are_refused_with_the_most_allowed() -> None:
    problem = outlived_lease({UNANSWERED: "60"}, 50.0) or ""

    assert problem.startswith(f"{UNANSWERED}=60: executors of a machine that falls silent would run for 71.0 s more")
    assert problem.endswith(f": {UNANSWERED}=36 at most")
    assert outlived_lease({UNANSWERED: "37"}, 50.0) is not None
    assert outlived_lease({UNANSWERED: "36"}, 50.0) is None


def test_each_of_two_settings_has_the_value_with_which_the_other_may_stay() -> None:
    problem = outlived_lease({INTERVAL: "2s", UNANSWERED: "60"}, 50.0) or ""

    assert f"{INTERVAL}=2s and {UNANSWERED}=60: " in problem
    assert problem.endswith(f": {INTERVAL}=614ms at most or {UNANSWERED}=17 at most")
    assert outlived_lease({INTERVAL: "614ms", UNANSWERED: "60"}, 50.0) is None
    assert outlived_lease({INTERVAL: "2s", UNANSWERED: "17"}, 50.0) is None
    assert outlived_lease({INTERVAL: "2s", UNANSWERED: "18"}, 50.0) is not None


def test_a_lease_that_is_too_short_for_any_executor_is_refused_with_the_shortest_that_is_not() -> None:
    problem = outlived_lease({}, 6.0) or ""

    assert problem.startswith("heartbeat.timeout (6 s) is too short: executors of a machine that falls silent")
    assert problem.endswith(": heartbeat.timeout of more than 12.0 s, with the defaults")
    assert outlived_lease({}, 12.1) is None


@pytest.mark.parametrize("conf", [{INTERVAL: "soon"}, {UNANSWERED: "many"}, {"spark.network.timeout": "120s"}])
def test_what_spark_cannot_read_and_what_does_not_matter_is_not_refused(conf: dict[str, str]) -> None:
    assert outlived_lease(conf, 50.0) is None


def test_a_local_driver_has_no_executors_that_could_outlive_anything() -> None:
    slow = {INTERVAL: "10s"}

    assert unusable_settings(slow, 50.0) is None
    assert unusable_settings({**slow, "spark.master": "local[4]"}, 50.0) is None
    assert INTERVAL in (unusable_settings({**slow, "spark.master": "yarn"}, 50.0) or "")


def test_a_taskmanager_with_such_settings_starts_no_engine(tmp_path: Path) -> None:
    """Invalid ends its process with the exit code of a wrong configuration: it is not started again."""
    launcher = LocalEngineLauncher(
        slots=2,
        configuration=Configuration({"spark.master": "spark://there:7077", INTERVAL: "10s"}),
        run_dir=tmp_path,
        files_dir=tmp_path,
        user=None,
        log_file=tmp_path / "log" / "engine.log",
        work_dir=str(tmp_path / "work"),
        checkpoints_dir=str(tmp_path / "checkpoints"),
        archive_dir=tmp_path,
        secrets_dir=tmp_path,
    )

    async def open_engine() -> None:
        async with launcher.open():
            raise AssertionError("it was started")

    with pytest.raises(Invalid, match=f"the Spark engine cannot be started: {INTERVAL}=10s"):
        asyncio.run(open_engine())
