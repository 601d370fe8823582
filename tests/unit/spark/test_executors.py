"""Executors on other machines: how many there are, when they end, and when an engine without any is given up."""

from __future__ import annotations

import pytest

from flintlock.spark.engine.executors.demand import (
    ExecutorWatch,
    executor_defaults,
    no_executor,
    stopped_application,
    unusable_master,
    watch_patience_s,
)

STANDALONE = {"spark.master": "spark://there:7077", "spark.cores.max": "4"}


def defaults(master: str, *, cores: int = 4, lease_s: float = 50.0, **conf: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return executor_defaults(master, named, cores=cores, lease_s=lease_s)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local-cluster[2,1,1024]"])
def test_a_local_engine_has_no_defaults_for_executors(master: str) -> None:
    assert defaults(master) == {}


def test_slots_are_the_cores_of_an_application_on_a_standalone_master() -> None:
    assert defaults("spark://there:7077")["spark.cores.max"] == "4"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://there"])
def test_slots_are_the_cores_of_all_executors_elsewhere(master: str) -> None:
    assert defaults(master)["spark.executor.instances"] == "4"
    assert defaults(master, spark__executor__cores="3")["spark.executor.instances"] == "2"
    assert defaults(master, spark__executor__cores="8")["spark.executor.instances"] == "1"


RATIO = "spark.scheduler.minRegisteredResourcesRatio"


def test_a_driver_waits_for_all_executors_that_a_standalone_master_can_start() -> None:
    assert defaults("spark://there:7077")[RATIO] == "1"
    assert defaults("spark://there:7077", spark__executor__cores="2")[RATIO] == "1"
    assert defaults("spark://there:7077", spark__executor__cores="3")[RATIO] == "0.75"
    assert defaults("spark://there:7077", spark__executor__cores="3", spark__cores__max="9")[RATIO] == "1"
    two_of_three = defaults("spark://there:7077", spark__executor__cores="2", spark__cores__max="3")[RATIO]
    assert 3 * float(two_of_three) <= 2  # 0.666667 would be waited for in vain
    assert defaults("spark://there:7077")["spark.scheduler.maxRegisteredResourcesWaitingTime"] == "10s"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://there"])
def test_a_driver_waits_for_all_executors_as_long_as_spark_does_elsewhere(master: str) -> None:
    assert defaults(master)[RATIO] == "1.0"
    assert "spark.scheduler.maxRegisteredResourcesWaitingTime" not in defaults(master)


@pytest.mark.parametrize("master", ["spark://there:7077", "yarn"])
def test_a_driver_with_dynamic_allocation_waits_for_no_executors(master: str) -> None:
    assert RATIO not in defaults(master, spark__dynamicAllocation__enabled="true")


def test_dynamic_allocation_is_bounded_by_the_slots() -> None:
    made = defaults("yarn", spark__dynamicAllocation__enabled="true")

    assert made["spark.dynamicAllocation.maxExecutors"] == "4"
    assert "spark.executor.instances" not in made


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ({"spark.master": "k8s://https://there"}, "set spark.kubernetes.container.image"),
        (
            {"spark.master": "k8s://there", "spark.kubernetes.container.image": "i", "spark.driver.host": "127.0.0.1"},
            "spark.driver.host=127.0.0.1: executors in pods do not reach",
        ),
        ({"spark.master": "yarn", "spark.submit.deployMode": "cluster"}, "spark.submit.deployMode=cluster"),
    ],
)
def test_settings_with_which_no_executor_would_ever_come_are_refused(conf: dict[str, str], reason: str) -> None:
    assert reason in (unusable_master(conf) or "")


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"spark.master": "spark://127.0.0.1:7077", "spark.driver.host": "127.0.0.1"},
        {"spark.master": "yarn", "spark.submit.deployMode": "client"},
        {
            "spark.master": "k8s://there",
            "spark.kubernetes.executor.container.image": "i",
            "spark.driver.host": "10.0.0.1",
        },
    ],
)
def test_settings_with_which_executors_may_come_are_not_refused(conf: dict[str, str]) -> None:
    assert unusable_master(conf) is None


def test_an_engine_that_has_lost_its_executors_for_long_is_given_up() -> None:
    watch = ExecutorWatch(STANDALONE, 50.0)

    assert watch.problem(executors=2, has_work=True, now_s=0.0) is None
    assert watch.problem(executors=0, has_work=False, now_s=10.0) is None
    assert watch.problem(executors=0, has_work=False, now_s=59.0) is None
    assert watch.problem(executors=0, has_work=False, now_s=60.0) == no_executor(STANDALONE, 50.0)


def test_executors_that_come_back_in_time_are_enough() -> None:
    watch = ExecutorWatch(STANDALONE, 50.0)

    assert watch.problem(executors=0, has_work=True, now_s=0.0) is None
    assert watch.problem(executors=1, has_work=True, now_s=49.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=55.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=104.0) is None


def test_with_dynamic_allocation_an_idle_engine_needs_no_executor() -> None:
    watch = ExecutorWatch({**STANDALONE, "spark.dynamicAllocation.enabled": "true"}, 50.0)

    assert watch.problem(executors=0, has_work=False, now_s=0.0) is None
    assert watch.problem(executors=0, has_work=False, now_s=1000.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=1001.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=1051.0) is not None


def test_a_dedicated_driver_needs_an_executor_when_it_has_work_and_waits_for_the_first_one_as_an_engine_does() -> None:
    watch = ExecutorWatch(STANDALONE, 150.0, on_demand=True)

    assert watch_patience_s(STANDALONE, lease_s=50.0, start_timeout_s=300.0, on_demand=True) == 150.0
    assert watch.problem(executors=0, has_work=False, now_s=0.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=1000.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=1149.0) is None
    assert watch.problem(executors=0, has_work=True, now_s=1150.0) == no_executor(STANDALONE, 150.0)


def test_with_dynamic_allocation_the_executors_of_a_job_may_take_as_long_as_those_of_an_engine_that_starts() -> None:
    """A machine that is busy, or has to copy Spark's files first, may start an executor in more than a lease."""
    dynamic = {**STANDALONE, "spark.dynamicAllocation.enabled": "true"}

    assert watch_patience_s(STANDALONE, lease_s=50.0, start_timeout_s=300.0) == 50.0
    assert watch_patience_s(dynamic, lease_s=50.0, start_timeout_s=300.0) == 150.0
    assert watch_patience_s(dynamic, lease_s=50.0, start_timeout_s=30.0) == 50.0


def test_an_engine_without_executors_names_what_it_has_asked_for() -> None:
    assert "It asks for spark.cores.max=4" in no_executor(STANDALONE, 50.0)
    assert "has no executor after 50 s: spark://there:7077 has no free cores" in no_executor(STANDALONE, 50.0)


def test_the_reason_of_a_cluster_that_ends_the_application_is_found_in_the_log() -> None:
    log = (
        "2026-11-16T15:59:06.448Z ERROR Old: Reason: of an earlier engine\n"
        "2026-11-16T15:59:06.448Z ERROR Backend: Application has been killed. Reason: Master removed our application\n"
        "2026-11-16T15:59:06.466Z ERROR Inbox: Ignoring error\n\tat some.Class"
    )

    assert stopped_application("spark://there:7077", log).startswith(
        "spark://there:7077 has ended its application: Backend: Application has been killed. Reason: Master removed our"
    )
    of_yarn = (
        "2026-11-16T15:59:06.448Z ERROR Backend: YARN application has exited unexpectedly with state KILLED!\n"
        "2026-11-16T15:59:06.449Z ERROR Backend: Diagnostics message: Application was killed by user operator\n"
        "2026-11-16T15:59:07.101Z ERROR Transport: Failed to send RPC"
    )
    assert "Diagnostics message: Application was killed by user operator" in stopped_application("yarn", of_yarn)
    assert "the log does not say why" in stopped_application("yarn", "")
    assert stopped_application("local[2]", log).startswith(
        "Spark has stopped its application: Backend: Application has"
    )
