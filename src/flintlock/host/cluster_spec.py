"""What `flintlock cluster start` runs in a state directory: which processes, and with which settings.

The file is written before the first process is started and removed first by `flintlock cluster stop`. While it exists,
these processes are expected: what of them does not run is missing, and is started by the next `flintlock cluster
start`. The processes read their settings from it rather than from their command lines, which every user of a machine
can read; only its owner can read the file.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.host.files.whole_files import write_whole
from flintlock.model.errors import Invalid

SPEC_FILE: Final = "cluster-spec.json"
SUPERVISOR: Final = "supervisor"
_GIVEN_UP: Final = "given-up.json"  # in the supervisor's run directory


class ClusterSpec(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The processes that belong to a state directory. `settings` are those of `-D` and of the environment."""

    jobmanagers: int = 1
    taskmanagers: int = 1
    supervise: bool = False  # a supervisor starts the others again when they fail
    conf: str | None = None  # the configuration file, read by each process when it starts
    settings: dict[str, str] = {}  # may contain secrets

    def names(self) -> tuple[str, ...]:
        """Return the names of the processes, in the order in which they are started."""
        return (
            *(process_name("jobmanager", n) for n in range(self.jobmanagers)),
            *(process_name("taskmanager", n) for n in range(self.taskmanagers)),
            *((SUPERVISOR,) if self.supervise else ()),
        )


def process_name(kind: str, index: int) -> str:
    """Return the name of a process in its state directory: `jobmanager`, `jobmanager-1`, `taskmanager-0`."""
    return kind if kind != "taskmanager" and index == 0 else f"{kind}-{index}"


def read_cluster_spec(state_dir: Path) -> ClusterSpec | None:
    """Return what is expected to run in a state directory; None if nothing is."""
    try:
        return msgspec.json.decode((state_dir / SPEC_FILE).read_bytes(), type=ClusterSpec)
    except (OSError, msgspec.MsgspecError):
        return None


def write_cluster_spec(state_dir: Path, spec: ClusterSpec) -> None:
    """Write the file, readable by its owner only; readers see all of it or none. Raises OSError."""
    write_whole(state_dir / SPEC_FILE, msgspec.json.format(msgspec.json.encode(spec), indent=2), mode=0o600)


def remove_cluster_spec(state_dir: Path) -> None:
    """Expect nothing in the state directory any more. Idempotent. Raises OSError."""
    (state_dir / SPEC_FILE).unlink(missing_ok=True)


@contextmanager
def expected_cluster(state_dir: Path, spec: ClusterSpec) -> Generator[None]:
    """Write the file; if the block fails, put back what was expected before."""
    before = read_cluster_spec(state_dir)
    write_cluster_spec(state_dir, spec)
    try:
        yield
    except BaseException:
        if before is None:
            remove_cluster_spec(state_dir)
        else:
            write_cluster_spec(state_dir, before)
        raise


def read_settings_file(path: Path) -> dict[str, str]:
    """Return the settings in such a file. Raises Invalid if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterSpec).settings
    except (OSError, msgspec.MsgspecError) as error:
        raise Invalid(f"the settings in {path} cannot be read: {error}") from error


def read_given_up(state_dir: Path) -> dict[str, str]:
    """Return the processes that the supervisor has given up, with the reason of each one's last end."""
    try:
        return msgspec.json.decode((state_dir / "run" / SUPERVISOR / _GIVEN_UP).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def write_given_up(state_dir: Path, processes: Mapping[str, str]) -> None:
    """Record the processes that the supervisor has given up; readers see all of it or none. Raises OSError."""
    write_whole(state_dir / "run" / SUPERVISOR / _GIVEN_UP, msgspec.json.encode(dict(processes)))
