"""The processes of a cluster on this machine: how each is started, and which of those that are expected do not run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from flintlock.config.options import JM_RPC_PORT, REST_PORT
from flintlock.host.cluster_spec import SPEC_FILE, SUPERVISOR, ClusterSpec, read_cluster_spec, read_given_up
from flintlock.host.processes import pid_files
from flintlock.host.processes.pid_files import ExitFile

JOB_MANAGER: Final = "flintlock.entrypoints.jobmanager"
TASK_MANAGER: Final = "flintlock.entrypoints.taskmanager"
SUPERVISOR_MODULE: Final = "flintlock.entrypoints.supervisor"
_REASONS: Final = {
    0: "it was stopped",
    2: "its configuration is invalid",
    4: "a port is in use or the state directory cannot be used",
}


class MissingProcess(Struct, frozen=True, kw_only=True):
    """A process that is expected and does not run. `exit` is None if it was killed, or never ran."""

    name: str
    exit: ExitFile | None = None
    given_up: bool = False  # by the supervisor, after too many failures

    @property
    def reason(self) -> str:
        """Why it does not run, as a clause."""
        return f"{self._ended}; the supervisor has given it up" if self.given_up else self._ended

    @property
    def _ended(self) -> str:
        return "it was killed, or never started" if self.exit is None else exit_text(self.exit.code, self.exit.reason)


def missing_processes(state_dir: Path, spec: ClusterSpec | None = None) -> tuple[MissingProcess, ...]:
    """Return what is expected in a state directory and does not run, in the order in which it would be started."""
    expected = spec or read_cluster_spec(state_dir)
    if expected is None:
        return ()
    running = pid_files.cluster_processes(state_dir)
    given_up = read_given_up(state_dir)
    return tuple(
        MissingProcess(name=name, exit=pid_files.read_exit(state_dir, name), given_up=name in given_up)
        for name in expected.names()
        if name not in running
    )


def exit_text(code: int, reason: str = "") -> str:
    """Return how a process ended, as a clause."""
    if reason:
        return reason
    return _REASONS.get(code, f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")


def command_of(state_dir: Path, name: str) -> list[str]:
    """Return the module and the arguments of a process, whose settings are in the state directory."""
    kind, _, index = name.partition("-")
    arguments = ["--state-dir", str(state_dir), "--settings-file", str(state_dir / SPEC_FILE)]
    if kind == "taskmanager":
        return [TASK_MANAGER, *arguments, "--index", index]
    if kind == SUPERVISOR:
        return [SUPERVISOR_MODULE, *arguments]
    if not index:
        return [JOB_MANAGER, *arguments]
    # The first JobManager has the configured ports, the others free ones.
    ports = ["-D", f"{REST_PORT.key}=0", "-D", f"{JM_RPC_PORT.key}=0"]
    return [JOB_MANAGER, *arguments, *ports, "--index", index]


def environment_of(spec: ClusterSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: what is inherited, with the configuration file of the cluster."""
    environ = dict(inherited)
    if spec.conf is not None:
        environ["FLINTLOCK_CONF"] = spec.conf
    return environ
