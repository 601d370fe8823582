"""Options of spark-submit that `flintlock run` does not have, and what there is in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CORES: Final = "use -p N, the number of slots of the job, each of which is a core"
_CLUSTER: Final = (
    "leave it out: the cluster decides where a job runs. -m URL names a cluster, --local starts one for the job"
)
_USER: Final = "leave it out: Flintlock does not use Kerberos, and jobs run as the user of the TaskManagers"
_JVM: Final = "it runs no applications in Java or Scala, only Python, SQL and YAML"

#: By option, what Flintlock has in its place.
REMEDIES: Final[Mapping[str, str]] = {
    "--archives": "use --pyenv ARCHIVE for a packed Python environment, or --requirements FILE to have one built",
    "--class": _JVM,
    "--deploy-mode": "leave it out: a job runs in the cluster. -d returns at once, --attached cancels the job with the"
    " command",
    "--driver-class-path": "use --jars FILES, which sends jars with the job for a Spark driver of its own",
    "--driver-cores": _CORES,
    "--driver-java-options": "use -D spark.driver.extraJavaOptions=OPTIONS with --engine dedicated",
    "--driver-library-path": "use -D spark.driver.extraLibraryPath=PATH with --engine dedicated",
    "--driver-memory": "use -D spark.driver.memory=SIZE with --engine dedicated; the heap of the shared engine is"
    " that of the cluster (taskmanager.engine.memory)",
    "--exclude-packages": "use -D spark.jars.excludes=COORDINATES",
    "--executor-cores": _CORES,
    "--executor-memory": "leave it out: executors, where there are any, are configured for the cluster. Without them,"
    " tasks run in the heap of the engine (taskmanager.engine.memory)",
    "--keytab": _USER,
    "--kill": "use flintlock cancel JOB",
    "--load-spark-defaults": "leave it out: spark.* settings of Flintlock's configuration file apply to all jobs",
    "--master": _CLUSTER,
    "--num-executors": _CORES,
    "--principal": _USER,
    "--properties-file": "use -D KEY=VALUE for each setting of the job; those in Flintlock's configuration file (--conf"
    " FILE) apply to all jobs",
    "--proxy-user": _USER,
    "--queue": "use -D yarn.application.queue=NAME, for a cluster on YARN (-t yarn-per-job)",
    "--remote": _CLUSTER,
    "--repositories": "use -D spark.jars.repositories=URLS",
    "--status": "use flintlock status JOB",
    "--supervise": "leave it out: a job survives the crash of any process. -D restart-strategy.type=fixed-delay also"
    " runs it again when its own code fails",
    "--total-executor-cores": _CORES,
    "-c": "use -D KEY=VALUE",
}


def unknown_option(option: str) -> str | None:
    """Return the message for an option of spark-submit; None for any other one."""
    remedy = REMEDIES.get(option)
    return None if remedy is None else f"{option} is an option of spark-submit, not of flintlock run: {remedy}"


def setting_as_file(conf: str) -> str | None:
    """Return the message for a value of `--conf` that is a setting, as spark-submit has it; None if it is a file."""
    key, assigned, _ = conf.partition("=")
    if not assigned or not key.startswith("spark."):
        return None
    return f"--conf names a configuration file of Flintlock. Settings of Spark are given with -D {conf}"
