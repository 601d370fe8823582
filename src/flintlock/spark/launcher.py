"""Launches the Spark side of one TaskManager: an engine, and the pool of runners whose sessions it serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    HEARTBEAT_TIMEOUT,
    PASSED_VARIABLES,
    PYTHON_REQUIREMENTS,
    RUNNER_MEMORY,
    SECRETS_PREFIX,
    SYNC_FILES,
    TASK_OUTPUT,
    TM_ENGINE_MEMORY,
    TM_ENGINE_START,
    TM_WARM_RUNNERS,
    WORKER_MEMORY,
    YARN_PYTHON,
)
from flintlock.gateways.engine import Engine, RunnerPool
from flintlock.host.cgroups import Cgroups, Group, claim
from flintlock.host.runner_user import RunnerUser
from flintlock.host.user_environment import user_environment
from flintlock.model import log_events
from flintlock.model.errors import Invalid, Unavailable
from flintlock.security.job_secrets import SecretFiles, SecretVariables
from flintlock.spark.cluster_environment import cluster_environment
from flintlock.spark.engine.class_path import missing_jar, missing_jar_text, with_class_path
from flintlock.spark.engine.conf import is_protected
from flintlock.spark.engine.executors.demand import has_executors, is_shipped, unusable_settings
from flintlock.spark.engine.handle import SparkEngine
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.messages import EngineSettings
from flintlock.spark.environments import EnvironmentFailed, environment_places
from flintlock.spark.runner.pool import PoolSettings, runner_pool
from flintlock.spark.runner_messages import DedicatedEngine

log = structlog.get_logger()

#: Set by YARN in each container.
_CONTAINER_VARIABLE: Final = "CONTAINER_ID"


class LocalEngineLauncher:
    """Opens engines on this machine. Satisfies `gateways.engine.EngineLauncher`."""

    def __init__(
        self,
        *,
        slots: int,
        configuration: Configuration,
        run_dir: Path,
        files_dir: Path,
        user: RunnerUser | None,
        log_file: Path,
        work_dir: str,
        checkpoints_dir: str,
        archive_dir: Path,
        secrets_dir: Path,
    ) -> None:
        self._slots: Final = slots
        self._configuration: Final = configuration
        self._run_dir: Final = run_dir  # where processes are recorded
        self._files_dir: Final = files_dir  # where engine and runners have their directories
        self._user: Final = user  # whom they run as; None: the user of this process
        self._log_file: Final = log_file
        self._work_dir: Final = work_dir
        self._checkpoints_dir: Final = checkpoints_dir
        self._archive_dir: Final = archive_dir
        self._secrets_dir: Final = secrets_dir
        self._cgroups: Cgroups | None = None  # written by the first open
        self._claimed = False  # whether it was tried

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Engine, RunnerPool]]:
        """Start a template and an engine; yield when the engine is warm.

        Raises:
            Invalid: With these settings none would work.
            Unavailable: With the cause.
        """
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._claim()
        cgroup = self._engine_group()
        engine_settings, pool_settings = self.engine_settings(cgroup), self._pool_settings()
        requirements = self._configuration.get(PYTHON_REQUIREMENTS)
        self._warn_unprotected(engine_settings.conf)
        problem = unusable_settings(
            engine_settings.conf, engine_settings.lease_s, python_is_shipped=self._python_is_shipped
        )
        if problem is not None:
            raise Invalid(f"the Spark engine cannot be started: {problem}")
        environments = self._environments(requirements, pool_settings)
        if (missing := missing_jar(engine_settings.conf)) is not None:
            raise Unavailable(f"the Spark engine cannot be started: {missing_jar_text(missing)}")
        log.info(log_events.ENGINE_STARTING, java=engine_settings.java.home, origin=engine_settings.java.origin)
        try:
            async with (
                cluster_environment(
                    requirements,
                    cache=environments,
                    run_dir=self._run_dir,
                    log_file=self._log_file,
                    environment=self._user_environment(),
                    user=self._user,
                ) as python,
                runner_pool(structs.replace(pool_settings, python=python)) as pool,
                SparkEngine.start(structs.replace(engine_settings, python=python)) as engine,
            ):
                pool.use_engine(engine)
                log.info(log_events.ENGINE_READY, spark=engine.ready.spark_version)
                try:
                    yield engine, pool
                finally:
                    pool.use_engine(None)
        except BaseExceptionGroup as group:
            # The pool's scope wraps what happens in it; an engine that cannot start is reported as such.
            match group.exceptions:
                case (Unavailable() as cause,):
                    raise cause from group
                case _:
                    raise
        finally:
            if cgroup is not None:
                await asyncio.to_thread(cgroup.remove)

    def _warn_unprotected(self, conf: Mapping[str, str]) -> None:
        master = conf.get("spark.master", "local")
        if not is_protected(master, conf) and "spark.authenticate" not in conf:
            log.warning(log_events.ENGINE_NOT_PROTECTED, master=master)

    def _claim(self) -> None:
        """Find out, once, whether limits can be enforced by control groups, and log the result."""
        if self._claimed:
            return
        self._claimed = True
        try:
            self._cgroups = claim()
        except Unavailable as error:
            log.info(
                log_events.CGROUPS_NOT_USED, reason=error.public, instead="limits on the memory of single processes"
            )
        else:
            log.info(
                log_events.CGROUPS_USED, root=str(self._cgroups.root), controllers=sorted(self._cgroups.controllers)
            )

    def _engine_group(self) -> Group | None:
        """Return a group for the engine: separate from runners, without limits, since heap and workers have theirs."""
        try:
            return self._cgroups.group("engine") if self._cgroups is not None else None
        except OSError as error:
            log.warning(log_events.CGROUP_NOT_MADE, of="engine", reason=str(error))
            return None

    def _environments(self, requirements: str, pool: PoolSettings) -> Path:
        """Return where the environment of the cluster's own requirements is built."""
        try:
            return pool.environments.of(has_executors=bool(requirements) and has_executors(self._master))
        except EnvironmentFailed as error:
            raise Invalid(f"{PYTHON_REQUIREMENTS.key}: {error}") from error

    def engine_settings(self, group: Group | None) -> EngineSettings:
        """Return what defines the engines of this TaskManager."""
        return EngineSettings(
            java=find_java(os.environ),
            scratch_dir=str(self._files_dir / "engine"),
            log_file=str(self._log_file),
            run_dir=str(self._run_dir),
            cores=self._slots,
            lease_s=self._configuration.get(HEARTBEAT_TIMEOUT),
            heap_bytes=self._configuration.get(TM_ENGINE_MEMORY),
            worker_memory=self._configuration.get(WORKER_MEMORY),
            worker_output=self._worker_output,
            cgroup=str(group.path) if group is not None else "",
            conf=with_class_path(self._configuration.spark(), cache=str(self._files_dir / "engine" / "packages")),
            sync_files=self._configuration.get(SYNC_FILES),
            work_root=self._work_dir,
            checkpoint_root=self._checkpoints_dir,
            start_timeout_s=self._configuration.get(TM_ENGINE_START),
            archive_dir=str(self._archive_dir),
            environment=self._user_environment(),
            user=self._user,
            in_container=_CONTAINER_VARIABLE in os.environ,
        )

    def _pool_settings(self) -> PoolSettings:
        caches = self._archive_dir if self._user is None else self._files_dir / "engine"
        warm = self._configuration.get(TM_WARM_RUNNERS)
        return PoolSettings(
            scratch_dir=str(self._files_dir / "tasks"),
            run_dir=str(self._run_dir),
            worker_output=self._worker_output,
            slots=self._slots,
            warm=self._slots if warm < 0 else warm,
            memory=self._configuration.get(RUNNER_MEMORY),
            worker_memory=self._configuration.get(WORKER_MEMORY),
            output_limit=self._configuration.get(TASK_OUTPUT),
            cgroups=self._cgroups,
            environment=self._user_environment(),
            user=self._user,
            secrets=(
                SecretFiles(self._secrets_dir),
                SecretVariables(os.environ, self._configuration.get(SECRETS_PREFIX)),
            ),
            dedicated=DedicatedEngine(
                lease_s=self._configuration.get(HEARTBEAT_TIMEOUT),
                start_timeout_s=self._configuration.get(TM_ENGINE_START),
                run_dir=str(self._run_dir) if self._user is None else "",
                heap_bytes=self._configuration.get(TM_ENGINE_MEMORY),
                conf=self._configuration.spark(),
                archive_dir=str(self._archive_dir),
                packages_dir=str(caches / "packages"),
                python_is_shipped=self._python_is_shipped,
            ),
            environments=environment_places(caches, self._work_dir, python_is_shipped=self._python_is_shipped),
        )

    @property
    def _master(self) -> str:
        return self._configuration.spark().get("spark.master", "local")

    @property
    def _python_is_shipped(self) -> bool:
        return _CONTAINER_VARIABLE in os.environ and is_shipped(self._configuration.get(YARN_PYTHON))

    @property
    def _worker_output(self) -> str:
        return str(self._files_dir / "tasks" / "output")

    def _user_environment(self) -> dict[str, str]:
        passed = user_environment(os.environ, self._configuration.get(PASSED_VARIABLES))
        return passed if self._user is None else {**passed, **self._user.environment()}
