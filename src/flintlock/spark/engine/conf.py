"""The Spark configuration of an engine.

Three layers, each overriding the one before: defaults, the cluster's configuration, and what the engine requires.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flintlock.spark.engine.executors.demand import YARN_JARS, executor_defaults, has_executors, is_local
from flintlock.spark.engine.jvm import spark_home
from flintlock.spark.engine.messages import EngineSettings
from flintlock.spark.engine.python.python_daemon import IDLE_VARIABLE, MEMORY_VARIABLE, MODULE
from flintlock.spark.engine.python.worker_output import PIPES_VARIABLE

CONNECT_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def engine_conf(settings: EngineSettings, ui_key: str = "") -> dict[str, str]:
    """Return the Spark settings of this engine. `ui_key`: what tokens for its UI are signed with, unless configured."""
    master = settings.conf.get("spark.master", f"local[{settings.cores}]")
    plugins = [name for name in settings.conf.get("spark.plugins", "").split(",") if name and name != CONNECT_PLUGIN]
    return {
        **_defaults(settings),
        **_driver_defaults(master, settings.conf, cores=settings.cores, lease_s=settings.lease_s),
        **_yarn_defaults(master, settings.conf),
        **_python_workers(settings, master),
        **_ui_defaults(master, ui_key),
        **{key: value for key, value in settings.conf.items() if key.startswith("spark.")},
        **ui_protection(master, {**_ui_defaults(master, ui_key), **settings.conf}),
        "spark.master": master,
        "spark.plugins": ",".join([*plugins, CONNECT_PLUGIN]),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }


def dedicated_conf(
    name: str, given: Mapping[str, str], *, cores: int, lease_s: float, cluster_master: str = ""
) -> dict[str, str]:
    """Return the Spark settings of a task's dedicated driver: those that were given, over the defaults.

    `cluster_master`: the master that the cluster's own configuration names; where that is not YARN, nothing is known of
    the nodes of a YARN that a job names.
    """
    master = given.get("spark.master", f"local[{cores}]")
    return {
        "spark.master": master,
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_driver_defaults(master, given, cores=cores, lease_s=lease_s),
        **(_yarn_defaults(master, given) if cluster_master == master else {}),
        **given,
        **ui_protection(master, given),
    }


def _driver_defaults(master: str, given: Mapping[str, str], *, cores: int, lease_s: float) -> dict[str, str]:
    """Return what every driver needs for where its executors are, shared or dedicated."""
    return {
        **port_defaults(master, given),
        **executor_defaults(master, given, cores=cores, lease_s=lease_s),
    }


def _defaults(settings: EngineSettings) -> dict[str, str]:
    return {
        "spark.app.name": "flintlock",
        # A tiny query must not wait behind a long one of another job.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.cores),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # With Spark's default, a query ends without an exception when another one starts on a copy of its checkpoint.
        "spark.sql.streaming.stopActiveRunOnRestart": "false",
        "spark.sql.warehouse.dir": (Path(settings.scratch_dir).absolute() / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.killEnabled": "false",  # jobs are cancelled through the JobManager
        "spark.ui.showConsoleProgress": "false",
        # For the UI and for metrics; ended jobs have their own records.
        "spark.ui.retainedJobs": "500",
        "spark.ui.retainedStages": "1000",
        "spark.ui.retainedTasks": "10000",
        "spark.sql.ui.retainedExecutions": "50",
        # Sessions end when the TaskManager releases them: one that is idle between two batches must not expire.
        "spark.connect.session.manager.defaultSessionTimeout": "-1",
        # An operation whose runner is gone: the TaskManager releases the session long before this.
        "spark.connect.execute.manager.detachedTimeout": "5m",
    }


def _yarn_defaults(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Have executors on YARN use Spark's jars at the path of this machine's, as they use its Python.

    By default Spark would copy all of them to YARN's file system at each start of a driver.
    """
    if master != "yarn" or YARN_JARS & conf.keys():
        return {}
    return {"spark.yarn.jars": f"local:{spark_home()}/jars/*"}


def loopback_environment(settings: EngineSettings) -> dict[str, str]:
    """Return the variable that has Spark's UI of a local engine, where it is enabled, listen on loopback only."""
    master = settings.conf.get("spark.master", "local")
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if is_local(master) else {}


def worker_environment(settings: EngineSettings) -> dict[str, str]:
    """Return the variables of a local engine's Python workers: where their output goes, and their memory limit."""
    output = {PIPES_VARIABLE: settings.worker_output} if settings.worker_output else {}
    return {**output, MEMORY_VARIABLE: str(settings.worker_memory)} if settings.worker_memory > 0 else output


def _python_workers(settings: EngineSettings, master: str) -> dict[str, str]:
    """Return the settings of Python workers: our daemon where they are children of this JVM, Spark's limit elsewhere.

    Another Python than this process's may not have our daemon, nor may the image of a pod: it is used there only if
    there is a limit. Nodes of YARN have it if TaskManagers run in containers there; else just Python at the same path.
    """
    same_python = settings.python == sys.executable and not _OTHER_PYTHON & settings.conf.keys()
    if not has_executors(master):
        own = settings.worker_memory > 0 or (bool(settings.worker_output) and same_python)
        return {"spark.python.daemon.module": MODULE} if own else {}
    daemon = {"spark.python.daemon.module": MODULE, f"spark.executorEnv.{IDLE_VARIABLE}": _IDLE_S}
    there = master.startswith("spark://") or (master == "yarn" and settings.in_container)
    ending = daemon if same_python and there else {}
    if settings.worker_memory <= 0:
        return ending
    cores = int(settings.conf.get("spark.executor.cores", "1"))
    return {**ending, "spark.executor.pyspark.memory": f"{max(settings.worker_memory * cores >> 20, 1)}m"}


def port_defaults(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults that close the ports of a driver, shared or dedicated, to processes without its secret.

    Also those of a local one, which serve no other process: every user of the machine reaches them. They are not
    encrypted, as they cross no network, and encrypted streams of Spark were seen to stop until their timeout of two
    minutes.
    """
    if not has_executors(master):
        return _LOCAL
    return _PROTECTED if is_protected(master, conf) else {}


def is_protected(master: str, conf: Mapping[str, str]) -> bool:
    """Return whether Spark's own connections of a driver are authenticated by default, and encrypted beyond loopback.

    Not where Spark cannot make a secret and none is configured.
    """
    return is_local(master) or master == "yarn" or master.startswith("k8s://") or _SECRET in conf


def _ui_defaults(master: str, ui_key: str) -> dict[str, str]:
    """Return the defaults of an engine's UI, which the JobManager shows to its callers; YARN has a proxy of its own."""
    return {_UI_ENABLED: "true", "spark.ui.port": "0", UI_KEY: ui_key} if ui_key and master != "yarn" else {}


def ui_protection(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which the UI of a driver serves no stranger: behind a filter, or not at all.

    Spark's own filter requires a token that is signed with a configured key. On YARN its proxy has a filter.
    """
    if not is_ui_enabled(conf) or conf.get(UI_FILTERS) or master == "yarn":
        return {}
    return {UI_FILTERS: JWS_FILTER} if conf.get(UI_KEY) else {_UI_ENABLED: "false"}


def is_ui_enabled(conf: Mapping[str, str]) -> bool:
    """Return whether these settings switch the UI on."""
    return conf.get(_UI_ENABLED, "").strip().lower() == "true"


#: How long an executor keeps the Python daemon of a session without workers. Spark ends idle workers after a minute.
_IDLE_S: Final = "30"
_OTHER_PYTHON: Final = frozenset({"spark.pyspark.python", "spark.pyspark.driver.python"})
_SECRET: Final = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
_PROTECTED: Final = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
_UI_ENABLED: Final = "spark.ui.enabled"
UI_FILTERS: Final = "spark.ui.filters"
JWS_FILTER: Final = "org.apache.spark.ui.JWSFilter"
#: The setting with the key that tokens for the UI are signed with: at least 32 bytes, in base64url.
UI_KEY: Final = f"spark.{JWS_FILTER}.param.secretKey"
#: A local engine is used from this machine only.
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}
