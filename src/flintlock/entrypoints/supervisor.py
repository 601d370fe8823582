"""The supervisor process: starts the processes of `flintlock cluster start` again when they fail.

It decides nothing (`host.supervision` does): once a second it compares what is expected (`cluster-spec.json`) with what
runs and how the others have ended, and carries out what was decided. The processes are no part of it: they outlive it,
and the next supervisor finds them by their pid files. It ends when nothing is expected any more, so a `flintlock
cluster stop` that is killed half-way is not undone, and when all processes have ended by intent.

There is one for each state directory: its run directory is locked. While another process starts processes there, it
only waits.

Rejected: making the supervisor the parent of all processes. Its death would then be theirs, or they would lose their
supervisor for good.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import structlog

from flintlock.client.clusters.cluster_processes import command_of, environment_of, exit_text
from flintlock.config.options import SUPERVISE_INTERVAL, SUPERVISE_MAX_FAILURES
from flintlock.entrypoints.log_files import rotating_logs
from flintlock.entrypoints.process import ProcessSettings, start, write_json
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.cluster_spec import SUPERVISOR, ClusterSpec, read_cluster_spec, write_given_up
from flintlock.host.files.run_directory import locked_run_directory, start_lock
from flintlock.host.processes import pid_files
from flintlock.host.processes.supervision import (
    ObservedProcess,
    ProcessFailed,
    ProcessGivenUp,
    ProcessLeftEnded,
    StartProcess,
    Supervision,
    SupervisionEffect,
    SupervisionPolicy,
)
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Conflict
from flintlock.model.failures.repeated_failures import RepeatedFailure

_PERIOD_S: Final = 1.0
_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=60.0)
log = structlog.get_logger()


async def serve(settings: ProcessSettings) -> ApplicationStatus:
    """Supervise until cancelled, or until nothing is left to supervise. Raises Refused if there is another one."""
    state_dir = settings.state_dir
    policy = SupervisionPolicy(
        backoff=_BACKOFF,
        max_failures=settings.configuration.get(SUPERVISE_MAX_FAILURES),
        interval_s=settings.configuration.get(SUPERVISE_INTERVAL),
    )
    pid_file = state_dir / "run" / f"{SUPERVISOR}.json"
    with locked_run_directory(state_dir / "run" / SUPERVISOR):
        supervisor = Supervisor(state_dir, Supervision(policy))
        write_json(pid_file, pid_files.identity(os.getpid()))
        try:
            async with rotating_logs(settings.configuration, state_dir / "log"):
                while await asyncio.to_thread(supervisor.check):  # noqa: ASYNC110 (other processes end without an event)
                    await asyncio.sleep(_PERIOD_S)
        finally:
            pid_file.unlink(missing_ok=True)
    return ApplicationStatus.SUCCEEDED


class Supervisor:
    """Observes the processes of a state directory and carries out what follows."""

    def __init__(self, state_dir: Path, supervision: Supervision) -> None:
        self._state_dir: Final = state_dir
        self._supervision: Final = supervision
        self._children: list[pid_files.Started] = []  # started here, and not known to have ended
        self._failure: Final = RepeatedFailure()
        self._given_up: dict[str, str] | None = None  # as last written; None: not written yet

    def check(self) -> bool:
        """Observe all processes once and do what follows; return False if nothing is left to supervise."""
        self._children = [child for child in self._children if child.process.poll() is None]  # no zombies
        spec = read_cluster_spec(self._state_dir)
        if spec is None:
            log.info(log_events.SUPERVISION_ENDED, reason="the cluster was stopped")
            return False
        try:
            if all(observed.running for observed in self._observe(spec).values()):
                self._act(spec)
            else:
                with start_lock(self._state_dir, 0.0):
                    self._act(read_cluster_spec(self._state_dir) or ClusterSpec(jobmanagers=0, taskmanagers=0))
        except Conflict:
            return True  # another process starts processes: whether anything is missing is known after that
        except OSError as error:
            if self._failure.occurred(str(error), boot_time_s()):
                log.error(log_events.SUPERVISION_FAILED, reason=str(error))
            return True
        if self._supervision.all_ended():
            log.info(log_events.SUPERVISION_ENDED, reason="all processes have ended by intent")
            return False
        return True

    def _act(self, spec: ClusterSpec) -> None:
        for effect in self._supervision.observe(boot_time_s(), self._observe(spec)):
            self._perform(spec, effect)
        given_up = self._supervision.given_up()
        if given_up != self._given_up:
            write_given_up(self._state_dir, given_up)
            self._given_up = given_up

    def _observe(self, spec: ClusterSpec) -> dict[str, ObservedProcess]:
        running = pid_files.cluster_processes(self._state_dir)
        return {name: self._observe_one(name, name in running) for name in spec.names() if name != SUPERVISOR}

    def _observe_one(self, name: str, running: bool) -> ObservedProcess:
        ended = None if running else pid_files.read_exit(self._state_dir, name)
        if running or ended is None:
            return ObservedProcess(running=running, reason="" if running else "it was killed")
        return ObservedProcess(running=False, exit_code=ended.code, reason=exit_text(ended.code, ended.reason))

    def _perform(self, spec: ClusterSpec, effect: SupervisionEffect) -> None:
        match effect:
            case StartProcess(name):
                command = command_of(self._state_dir, name)
                self._children.append(
                    pid_files.start_recorded(self._state_dir, name, command, environment_of(spec, os.environ))
                )
                log.info(log_events.PROCESS_RESTARTED, member=name)
            case ProcessFailed():
                log.warning(
                    log_events.PROCESS_LOST,
                    member=effect.name,
                    reason=effect.reason,
                    failures=effect.failures,
                    restart_in_s=effect.delay_s,
                )
            case ProcessGivenUp():
                log.critical(
                    log_events.PROCESS_GIVEN_UP, member=effect.name, reason=effect.reason, failures=effect.failures
                )
            case ProcessLeftEnded():
                log.info(log_events.PROCESS_LEFT_ENDED, member=effect.name, exit_code=effect.exit_code)


if __name__ == "__main__":
    sys.exit(start(SUPERVISOR, serve))
