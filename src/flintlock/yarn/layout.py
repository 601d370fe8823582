"""What client, JobManager and TaskManagers on YARN agree on: names of files, sizes and command lines.

A container sees the files of the staging directory in its working directory, which is also its Hadoop configuration
directory. Settings are in a file there, not on command lines: every user of a node can read those, and YARN's launch
script. The log directory of the state directory is that of the container, so that YARN aggregates all logs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
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
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.model.errors import NotFound, Refused
from flintlock.security.cluster_secret import FILE_NAME as SECRET_NAME
from flintlock.spark.engine.executors.demand import is_shipped
from flintlock.yarn.gateways import StagingGateway
from flintlock.yarn.messages import ContainerSize, Launch, StagedFile

CONFIGURATION_NAME: Final = "flintlock.yaml"
#: Of the client's Hadoop configuration: containers use the same YARN and file system.
HADOOP_FILES: Final = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
#: Of a cluster for one job: the directory of the job (`host.job_directory`), and how the job has ended.
JOB_NAME: Final = "job.tar"
END_NAME: Final = "end.json"
NOT_FOR_WORKERS: Final = frozenset({JOB_NAME, END_NAME})
#: A directory of the user is staged as one file of this name, and unpacked in containers.
DIRECTORY_SUFFIX: Final = ".directory.tar"
#: The state directory of a container, which must be its own: what is localized, containers of a node share.
STATE_NAME: Final = "state"
#: What YARN itself puts into the working directory of a container.
_OF_YARN: Final = frozenset({
    "launch_container.sh", "container_tokens", "default_container_executor.sh",
    "default_container_executor_session.sh", "sysfs", "tmp", "yarn_provided.keystore.jks",
    "yarn_provided.truststore.jks",
})  # fmt: skip
_OWN_NAMES: Final = frozenset({CONFIGURATION_NAME, SECRET_NAME, STATE_NAME, *NOT_FOR_WORKERS, *_OF_YARN})
#: How many files the provided directories may have together. A JobManager lists each of them before its heartbeats
#: begin, and each is a resource of all containers.
MOST_PROVIDED: Final = 1000
#: Names in the working directory of a container that are not free for files of the user.
RESERVED_NAMES: Final = _OWN_NAMES | frozenset(HADOOP_FILES)

_MIB: Final = 1 << 20
_CONTAINER_ID: Final = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+")
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

    Raises Refused if a directory does not exist, two files have one name, or one has that of a file of containers, or
    if the provided ones are too many.
    """
    archives = {Path(text).name for text in configuration.get(YARN_SHIP_ARCHIVES)}
    staged = [_unpacked(file, archives) for file in staging.files()]
    found = {file.name: file for file in staged}
    directories: set[str] = set()
    listed = 0
    for directory in configuration.get(YARN_PROVIDED):
        try:
            provided = staging.provided(directory, at_most=MOST_PROVIDED + 1 - listed)
        except NotFound:
            raise Refused(f"{YARN_PROVIDED.key}: there is no directory {directory} on YARN's file system") from None
        listed += len(provided)
        if listed > MOST_PROVIDED:
            raise Refused(
                f"{YARN_PROVIDED.key}: there are more than {MOST_PROVIDED} files in {directory} and its directories,"
                " and in those named before it; each container would have each of them. An archive is one file"
                f" ({YARN_SHIP_ARCHIVES.key})"
            )
        for file in provided:
            parents = {str(parent) for parent in PurePosixPath(file.name).parents} - {"."}
            is_reserved = PurePosixPath(file.name).parts[0] in _OWN_NAMES
            if is_reserved or file.name in found or file.name in directories or parents & found.keys():
                raise Refused(f"{YARN_PROVIDED.key}: the name {file.name!r} of {file.url} is taken")
            found[file.name] = file
            directories |= parents
    return tuple(found.values())


def _unpacked(file: StagedFile, archives: Collection[str]) -> StagedFile:
    """Return a staged file as containers see it."""
    if file.name.endswith(DIRECTORY_SUFFIX):
        return structs.replace(file, name=file.name.removesuffix(DIRECTORY_SUFFIX), is_archive=True)
    return structs.replace(file, is_archive=file.name in archives)


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
    python = f"$PWD/{configured}" if is_shipped(configured) else configured or sys.executable
    command = (
        f"mkdir -p $PWD/{STATE_NAME} && ln -sfn <LOG_DIR> $PWD/{STATE_NAME}/log &&"
        f" exec {python} -m {module} --state-dir $PWD/{STATE_NAME} -D {SECRET_FILE.key}=$PWD/{SECRET_NAME}"
        f" {' '.join(arguments)} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"
    )
    passed = {name: variables[name] for name in _PASSED_VARIABLES if variables.get(name)}
    own = {"HADOOP_CONF_DIR": "$PWD", "FLINTLOCK_CONF": f"$PWD/{CONFIGURATION_NAME}"}
    return Launch(command=command, environment={**passed, **own}, files=tuple(files))


def attempt_of(environ: Mapping[str, str]) -> ApplicationAttempt | None:
    """Return which attempt of its application a container of an ApplicationMaster is, by the name YARN gives it."""
    found = _CONTAINER_ID.fullmatch(environ.get("CONTAINER_ID", ""))
    return found and ApplicationAttempt(application=f"application_{found[1]}", number=int(found[2]))
