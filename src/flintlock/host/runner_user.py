"""Another user of the operating system, whom user code runs as: it owns nothing of the cluster, and cannot signal it.

Root starts the processes of this user: an engine's, the template's, and so all that they start. They are born with the
user's ids and without supplementary groups, and give up what is left by `confine`, before any user code runs. Their
files are below one directory (`RunnerFiles`), because the state directory is closed to every other user.

Root works in directories there that the user cannot write to, and so meets no link that the user has put in the place
of a file. What the user owns is whole directories: root makes them, never opens a file in them, and removes them with
`shutil.rmtree`, which follows no links. Log files are in the state directory: processes of the user get descriptors.

Rejected: opening the state directory to this user (each file in it would have to be closed by itself); a user for each
runner (Python functions run in the workers of the one engine, which is shared anyway).
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypedDict

from msgspec import Struct

from flintlock.host.processes.parent_death import prctl
from flintlock.host.processes.process import user_of
from flintlock.host.user_environment import user_environment
from flintlock.model.errors import Refused

#: Passable for all, listed by root only.
PASSABLE: Final = 0o711
OWN: Final = 0o700
_READABLE: Final = 0o640

#: The argument that tells a process that it runs as a runner user.
CONFINED: Final = "confined"

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_OTHERS_WRITE: Final = 0o022
_CHECK_S: Final = 60.0

#: Run as the user: whether it can import the package, and write to each of the directories.
_CHECK: Final = """
import os, sys
import flintlock.host.runner_user
for directory in sys.argv[1:]:
    os.makedirs(directory, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        sys.exit(f"it cannot write to {directory}")
"""


class ProcessUser(TypedDict):
    """The arguments by which `subprocess` starts a process as a user. None: as the user of this process."""

    user: int | None
    group: int | None
    extra_groups: tuple[int, ...] | None


class RunnerUser(Struct, frozen=True, kw_only=True):
    """The user whom user code runs as."""

    name: str
    uid: int
    gid: int
    home: str

    def environment(self) -> dict[str, str]:
        """Return the variables that name the user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def make_directory(self, path: Path) -> None:
        """Make a directory that only this user can use, if it does not exist. Its parent must be root's own.

        Raises Refused if another user has it, OSError if it cannot be made.
        """
        try:
            path.mkdir(mode=OWN)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (self.uid, os.geteuid()):
                raise Refused(
                    f"{path} belongs to user {found.st_uid}, not to {self.name!r} (taskmanager.runner.user): remove it"
                ) from None
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def share(self, file: Path) -> None:
        """Let the user read a file of root's, which its directory does not list. Idempotent. Raises OSError."""
        file.parent.chmod(PASSABLE)
        os.chown(file, -1, self.gid, follow_symlinks=False)
        file.chmod(_READABLE)

    def runs(self, pid: int) -> bool:
        """Return whether a process is this user's: what such a process claims of its children is checked by it."""
        return user_of(pid) == self.uid


def process_user(user: RunnerUser | None) -> ProcessUser:
    """Return the arguments that start a process as this user, without supplementary groups."""
    if user is None:
        return ProcessUser(user=None, group=None, extra_groups=None)
    return ProcessUser(user=user.uid, group=user.gid, extra_groups=())


def find_runner_user(name: str) -> RunnerUser:
    """Return the user of this name. Raises Refused, naming the option, if user code cannot run as that user."""
    wanted = f"taskmanager.runner.user is {name!r}"
    if sys.platform != "linux":
        raise Refused(f"{wanted}, which needs Linux")
    if os.geteuid() != 0:
        raise Refused(
            f"{wanted}, but this TaskManager runs as user {os.geteuid()}: only root can start processes as another"
            " user. Run it as root, or remove the option"
        )
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"{wanted}, but there is no such user on this machine") from None
    if found.pw_uid == 0:
        raise Refused(f"{wanted}, who is root: user code would have all rights. Name a user without privileges")
    return RunnerUser(name=name, uid=found.pw_uid, gid=found.pw_gid, home=found.pw_dir)


class RunnerFiles(Struct, frozen=True, kw_only=True):
    """The directories of one cluster that its runner user can reach; nothing of them exists before `prepare`."""

    root: Path

    @property
    def work(self) -> Path:
        """Where blocking results are, unless another place is configured."""
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints of streaming jobs are, unless another place is configured."""
        return self.root / "checkpoints"

    def of(self, task_manager: str) -> Path:
        """Return the directory of one TaskManager: copies of blobs, and the directories of engine and runners."""
        return self.root / task_manager

    def prepare(self, task_manager: str, user: RunnerUser, writable: Iterable[str] = ()) -> None:
        """Make the directories, and check that the user can use them, and can write to `writable` directories as well.

        Raises Refused with the reason if not, OSError if they cannot be made.
        """
        own = self.of(task_manager)
        _make_base(self.root.parent)
        for directory in (self.root, own):
            _make_passable(directory)
        user.make_directory(self.work)
        user.make_directory(self.checkpoints)
        user.make_directory(own / "engine")
        _check_access(user, (str(own / "engine"), *writable))


def runner_files(directory: str, state_dir: Path, user: str) -> RunnerFiles:
    """Return where the files of the user are, for the cluster of this state directory."""
    cluster = hashlib.sha256(str(state_dir).encode()).hexdigest()[:12]
    return RunnerFiles(root=Path(directory) / f"{cluster}-{user}")


def confine() -> None:
    """Give up, for good, what this process could still gain or show. For processes that run as a runner user.

    Programs that it starts gain no rights (setuid), and no other process of the user can read its memory, its open
    files or its environment; programs that it starts are not protected like that.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 0)


def _make_passable(directory: Path) -> None:
    """Make a directory that all users can pass through, and only this one can list or write to."""
    directory.mkdir(exist_ok=True, mode=PASSABLE)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Refused(f"{directory} is not a directory of root: set taskmanager.runner.directory to another one")
    if stat.S_IMODE(found.st_mode) != PASSABLE:
        directory.chmod(PASSABLE)


def _make_base(directory: Path) -> None:
    """Make the configured directory if it does not exist; check that others cannot replace what is in it."""
    if not directory.is_absolute():
        raise Refused(f"taskmanager.runner.directory is {str(directory)!r}, which is not an absolute path")
    directory.mkdir(parents=True, exist_ok=True, mode=PASSABLE)
    found = directory.stat()
    if found.st_uid != os.geteuid() or (found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX):
        raise Refused(f"taskmanager.runner.directory is {str(directory)!r}, where other users than root can write")


def _check_access(user: RunnerUser, directories: Iterable[str]) -> None:
    def refuse(reason: str) -> Refused:
        return Refused(
            f"user code cannot run as {user.name!r} (taskmanager.runner.user): {reason}. That user must be able to run"
            f" {sys.executable}, to read its packages, and to pass through all directories above"
            " taskmanager.runner.directory and execution.work-dir"
        )

    command = [sys.executable, "-P", "-c", _CHECK, *directories]
    environment = {**user_environment(os.environ), **user.environment()}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHECK_S, cwd="/", env=environment, check=False,
            **process_user(user),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise refuse(str(error)) from error
    if done.returncode != 0:
        raise refuse(next(reversed(done.stderr.strip().splitlines()), f"exit code {done.returncode}"))
