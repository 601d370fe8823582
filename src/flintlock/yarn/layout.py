"""What client, JobManager and TaskManagers on YARN agree on: names of files, sizes and command lines.

A container sees the files of the staging directory in its working directory, which is also its Hadoop configuration
directory. Settings are in a file there, not on command lines: every user of a node can read those, and YARN's launch
script. The log directory of the state directory is that of the container, so that YARN aggregates all logs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    JM_PROCESS_MEMORY,
    SECRET_FILE,
    TM_ENGINE_MEMORY,
    TM_PROCESS_MEMORY,
    TM_SLOTS,
    YARN_CONTAINER_VCORES,
    YARN_MASTER_VCORES,
    YARN_PROVIDED,
    YARN_PYTHON,
    YARN_SHIP_ARCHIVES,
)
from flintlock.model.errors import NotFound, Refused
from flintlock.security.cluster_secret import FILE_NAME as SECRET_NAME
from flintlock.yarn.gateways import StagingGateway
from flintlock.yarn.messages import ContainerSize, Launch, StagedFile

CONFIGURATION_NAME: Final = "flintlock.yaml"
#: Of the client's Hadoop configuration: containers use the same YARN and file system.
HADOOP_FILES: Final = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
#: Of a cluster for one job: the directory of the job (`host.job_directory`), and how the job has ended.
JOB_NAME: Final = "job.tar"
END_NAME: Final = "end.json"
NOT_FOR_WORKERS: Final = frozenset({JOB_NAME, END_NAME})
#: Names in the staging directory that are not free for files of the user.
RESERVED_NAMES: Final = frozenset({CONFIGURATION_NAME, SECRET_NAME, *HADOOP_FILES, *NOT_FOR_WORKERS})

_MIB: Final = 1 << 20
_TASK_MANAGER_BASE: Final = 640 * _MIB  # TaskManager, watchdog, template, and the JVM beyond its heap
_RUNNER: Final = 192 * _MIB
#: Where things are on a machine; all nodes have them at the same paths, as they have Python.
_PASSED_VARIABLES: Final = ("FLINTLOCK_JAVA_HOME", "JAVA_HOME", "XDG_CACHE_HOME")


def slots_of(configuration: Configuration) -> int:
    """Return the slots of a TaskManager: one unless configured, as the cores of a node say nothing of a container."""
    return configuration.get(TM_SLOTS) or 1


def master_size(configuration: Configuration) -> ContainerSize:
    """Return the size of the JobManager's container."""
    return ContainerSize(
        memory_mb=configuration.get(JM_PROCESS_MEMORY) // _MIB, vcores=configuration.get(YARN_MASTER_VCORES)
    )


def worker_size(configuration: Configuration) -> ContainerSize:
    """Return the size of a TaskManager's container."""
    slots = slots_of(configuration)
    usual = configuration.get(TM_ENGINE_MEMORY) + _TASK_MANAGER_BASE + slots * _RUNNER
    return ContainerSize(
        memory_mb=(configuration.get(TM_PROCESS_MEMORY) or usual) // _MIB,
        vcores=configuration.get(YARN_CONTAINER_VCORES) or slots,
    )


def container_files(configuration: Configuration, staging: StagingGateway) -> tuple[StagedFile, ...]:
    """Return all files of containers: those in the staging directory, and the provided ones.

    Raises Refused if a directory does not exist, or two files have one name.
    """
    archives = {Path(text).name for text in configuration.get(YARN_SHIP_ARCHIVES)}
    staged = staging.files()
    found = {file.name: structs.replace(file, is_archive=file.name in archives) for file in staged}
    for directory in configuration.get(YARN_PROVIDED):
        try:
            provided = staging.provided(directory)
        except NotFound:
            raise Refused(f"{YARN_PROVIDED.key}: there is no directory {directory} on YARN's file system") from None
        for file in provided:
            if file.name in found:
                raise Refused(f"{YARN_PROVIDED.key}: the name {file.name!r} of {file.url} is taken")
            found[file.name] = file
    return tuple(found.values())


def launch_of(
    module: str,
    arguments: Iterable[str],
    configuration: Configuration,
    files: Iterable[StagedFile],
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """Return how a process of Flintlock is started in a container. `arguments` must not contain quotes or secrets."""
    variables = os.environ if environ is None else environ
    configured = configuration.get(YARN_PYTHON)
    python = f"$PWD/{configured}" if configured and not configured.startswith("/") else configured or sys.executable
    command = (
        "mkdir -p $PWD/state && ln -sfn <LOG_DIR> $PWD/state/log &&"
        f" exec {python} -m {module} --state-dir $PWD/state -D {SECRET_FILE.key}=$PWD/{SECRET_NAME}"
        f" {' '.join(arguments)} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"
    )
    passed = {name: variables[name] for name in _PASSED_VARIABLES if variables.get(name)}
    own = {"HADOOP_CONF_DIR": "$PWD", "FLINTLOCK_CONF": f"$PWD/{CONFIGURATION_NAME}"}
    return Launch(command=command, environment={**passed, **own}, files=tuple(files))
