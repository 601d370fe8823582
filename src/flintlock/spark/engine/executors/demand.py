"""Executors on other machines: how many a driver asks for, and how one is noticed that has none.

With a local master there are none: the engine's own threads do the work. With a Spark standalone master, YARN or
Kubernetes, slots are the cores that the engine's application may have. Where a setting is configured, it counts.

Executors end by themselves once their driver is gone: at once if their connections break, and after some unanswered
heartbeats if its machine is silent (`leases`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flintlock.spark.engine.executors.leases import lease_defaults, outlived_lease

_DYNAMIC: Final = "spark.dynamicAllocation.enabled"

_REGISTERED_RATIO: Final = "spark.scheduler.minRegisteredResourcesRatio"
_REGISTRATION_TIME: Final = "spark.scheduler.maxRegisteredResourcesWaitingTime"
_DEPLOY_MODE: Final = "spark.submit.deployMode"
#: Where executors on YARN find Spark.
YARN_JARS: Final = frozenset({"spark.yarn.jars", "spark.yarn.archive"})
_IMAGES: Final = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")

#: What Spark raises for every call once its application has ended.
STOPPED: Final = "Cannot call methods on a stopped SparkContext"

#: In the lines of a log that have the reason of a standalone master, and that of YARN.
_GIVEN: Final = ("Reason: ", "Diagnostics message: ")

#: Of the time that an engine may take to start, for its first executor.
_FIRST_EXECUTOR: Final = 0.5


def is_local(master: str) -> bool:
    """Return whether an engine has no executors outside of its own process."""
    return master == "local" or master.startswith("local[")


def has_executors(master: str) -> bool:
    """Return whether an engine has executors that a cluster manager starts."""
    return not master.startswith("local")


def executor_defaults(master: str, conf: Mapping[str, str], *, cores: int, lease_s: float) -> dict[str, str]:
    """Return the defaults of a driver whose executors are elsewhere; nothing for a local one."""
    if not has_executors(master):
        return {}
    return {**_size(master, conf, cores), **_registration(master, conf, cores), **lease_defaults(lease_s)}


def unusable_settings(conf: Mapping[str, str], lease_s: float, *, python_is_shipped: bool = False) -> str | None:
    """Return why no driver may be started with these settings; None if one may."""
    if (problem := unusable_master(conf)) is not None or not has_executors(conf.get("spark.master", "local")):
        return problem
    if python_is_shipped and (problem := unusable_with_shipped_python(conf)) is not None:
        return problem
    return outlived_lease(conf, lease_s)


def is_shipped(yarn_python: str) -> bool:
    """Return whether this Python (`yarn.python`) is only in the directories of its application's own containers."""
    return bool(yarn_python) and not yarn_python.startswith("/")


def unusable_with_shipped_python(conf: Mapping[str, str]) -> str | None:
    """Return why executors would find neither Python nor Spark; None if these settings say where both are.

    Executors on YARN are containers of another application, which do not have what is shipped with that of the driver.
    """
    if conf.get("spark.master") != "yarn" or ("spark.pyspark.python" in conf and YARN_JARS & conf.keys()):
        return None
    return (
        "spark.master=yarn: its executors have neither the Python that is shipped with this application (yarn.python),"
        " nor the Spark in it. Set spark.pyspark.python to a Python with PySpark of all nodes, and spark.yarn.jars"
        " or spark.yarn.archive to where they find Spark. Or leave spark.master out: an engine works in its container"
    )


def unusable_master(conf: Mapping[str, str]) -> str | None:
    """Return why an engine with these settings would never have an executor; None if it may have some.

    Spark itself starts with them, and waits.
    """
    master = conf.get("spark.master", "local")
    if conf.get(_DEPLOY_MODE, "client") != "client":
        return f"{_DEPLOY_MODE}={conf[_DEPLOY_MODE]}: the driver runs here, in client mode; leave that setting out"
    if not master.startswith("k8s://"):
        return None
    if not any(key in conf for key in _IMAGES):
        return f"{master} needs an image for its executors: set {_IMAGES[0]}"
    host = conf.get("spark.driver.host", "")
    if host == "localhost" or host.startswith("127."):
        return f"spark.driver.host={host}: executors in pods do not reach a loopback address of this machine"
    return None


def is_dynamic(conf: Mapping[str, str]) -> bool:
    """Return whether an idle engine may have no executors."""
    return conf.get(_DYNAMIC, "false").strip().lower() == "true"


def first_executor_s(start_timeout_s: float) -> float:
    """Return how long an executor may take to come where there is none: a cluster may be busy, or copy files first."""
    return start_timeout_s * _FIRST_EXECUTOR


def watch_patience_s(
    conf: Mapping[str, str], *, lease_s: float, start_timeout_s: float, on_demand: bool = False
) -> float:
    """Return how long a driver that needs executors may have none before it is given up.

    With dynamic allocation the first executors of a job take as long as those of an engine that starts, and so do those
    of a dedicated driver (`on_demand`).
    """
    return max(lease_s, first_executor_s(start_timeout_s)) if on_demand or is_dynamic(conf) else lease_s


def no_executor(conf: Mapping[str, str], waited_s: float) -> str:
    """Return the text for a driver to which no executor came."""
    wanted = ", ".join(
        f"{key}={conf[key]}"
        for key in ("spark.cores.max", "spark.executor.instances", "spark.executor.cores", "spark.executor.memory")
        if key in conf
    )
    return (
        f"it has no executor after {waited_s:g} s: {conf['spark.master']} has no free cores or memory for it, or its"
        f" machines do not reach this one. It asks for {wanted or 'what Spark asks for by default'}"
    )


def not_shared(master: str, work_root: str) -> str:
    """Return the text for executors that write where this machine does not read."""
    return (
        f"the executors of {master} write into another directory {work_root} than the one that this machine sees: set"
        " execution.work-dir to a directory that all machines share, at the same path"
    )


def stopped_application(master: str, log: str) -> str:
    """Return why Spark or its cluster has ended the application of a running engine: only its log has the reason.

    A cluster has ended it, or Spark itself, after an error of its scheduler.
    """
    reasons = [line for line in log.splitlines() if " ERROR " in line]
    given = [line for line in reasons if any(mark in line for mark in _GIVEN)]
    reason = (given or reasons or [" ERROR the log does not say why"])[-1].partition(" ERROR ")[2]
    if not has_executors(master):
        return f"Spark has stopped its application: {reason}"
    return f"{master} has ended its application: {reason}; the logs of its executors, at the workers, say more"


class ExecutorWatch:
    """Notices a driver without executors that gets none: its jobs would wait for ever.

    A standalone master that was restarted without recovery knows the driver's application no more.
    """

    def __init__(self, conf: Mapping[str, str], patience_s: float, *, on_demand: bool = False) -> None:
        """`on_demand`: while the driver has no work it needs no executor, as with dynamic allocation."""
        self._conf: Final = conf
        self._patience_s: Final = patience_s
        self._on_demand: Final = on_demand or is_dynamic(conf)
        self._since_s: float | None = None  # when it was first seen without executors, and needs some

    def problem(self, *, executors: int, has_work: bool, now_s: float) -> str | None:
        """Return what is wrong, if it is so for long; None if it is not. To be called periodically."""
        if executors or (self._on_demand and not has_work):
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
        missing_s = now_s - self._since_s
        return no_executor(self._conf, round(missing_s)) if missing_s >= self._patience_s else None


def _registration(master: str, conf: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the settings with which a driver begins once all its executors are there, or have not come for a while.

    What is tested before its first work (`shared_paths`) is then tested on each of them. A standalone master would let
    it begin with the first one; YARN and Kubernetes wait for most of them, and longer: they start containers.
    """
    if is_dynamic(conf):
        return {}
    if not master.startswith("spark://"):
        return {_REGISTERED_RATIO: "1.0"}
    wanted, each = _number(conf.get("spark.cores.max"), cores), _number(conf.get("spark.executor.cores"), 1)
    # A standalone master starts whole executors: of 4 cores, 3 are used where each has 3. Rounded down: a little more
    # than what comes would be waited for in vain.
    thousandths = wanted // each * each * 1000 // wanted
    return {_REGISTERED_RATIO: f"{thousandths / 1000:g}", _REGISTRATION_TIME: "10s"}


def _size(master: str, conf: Mapping[str, str], cores: int) -> dict[str, str]:
    if master.startswith("spark://"):
        return {"spark.cores.max": str(cores)}
    count = -(-cores // _number(conf.get("spark.executor.cores"), 1))
    key = "spark.dynamicAllocation.maxExecutors" if is_dynamic(conf) else "spark.executor.instances"
    return {key: str(count)}


def _number(text: str | None, default: int) -> int:
    """Return a number of cores, or the default if the setting has none: Spark refuses it."""
    number = (text or "").strip()
    return int(number) if number.isdecimal() and int(number) else default
