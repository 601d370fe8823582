"""Whom user code may run as, and which files of root that user gets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flintlock.host.processes.process import user_of
from flintlock.host.runner_user import RunnerUser, find_runner_user, process_user, runner_files
from flintlock.model.errors import Refused

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
NOBODY = RunnerUser(name="nobody", uid=65534, gid=65534, home="/nonexistent")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("name", "reason"), [("root", "who is root"), ("no-such-user", "there is no such user")])
def test_a_user_whom_user_code_must_not_run_as_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(Refused, match=rf"taskmanager\.runner\.user is '{name}'.*{reason}"):
        find_runner_user(name)


def test_only_root_can_have_user_code_run_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match="runs as user 1000: only root can start processes as another user"):
        find_runner_user("nobody")


@pytest.mark.usefixtures("root")
def test_processes_of_the_user_have_its_ids_and_no_groups_of_root() -> None:
    user = find_runner_user("daemon")
    assert process_user(user) == {"user": user.uid, "group": user.gid, "extra_groups": ()}
    assert user.environment()["USER"] == "daemon"


@only_root
def test_a_directory_that_the_user_cannot_reach_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    files = runner_files(str(tmp_path / "closed" / "runners"), tmp_path / "state", "nobody")
    with pytest.raises(Refused, match=r"cannot run as 'nobody'.*Permission denied.*taskmanager\.runner\.directory"):
        files.prepare("taskmanager-0", NOBODY)
    assert stat.S_IMODE(files.of("taskmanager-0").stat().st_mode) == 0o711, "passable, but not listed"
    for own in (files.work, files.of("taskmanager-0") / "engine"):
        assert (own.stat().st_uid, stat.S_IMODE(own.stat().st_mode)) == (NOBODY.uid, 0o700)


@only_root
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Refused, match="where other users than root can write"):
        runner_files(str(tmp_path), tmp_path / "state", "nobody").prepare("taskmanager-0", NOBODY)


@only_root
def test_root_gives_no_directory_away_through_a_link_or_to_a_second_user(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(Refused):
        NOBODY.make_directory(tmp_path / "link")
    assert victim.stat().st_uid == 0
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 1, 1)
    with pytest.raises(Refused, match="belongs to user 1"):
        NOBODY.make_directory(other)


@only_root
def test_a_shared_file_is_readable_for_the_user_and_listed_for_none(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.write_bytes(b"x")
    blob.chmod(0o600)
    NOBODY.share(blob)
    found = blob.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, NOBODY.gid, 0o640)
    assert stat.S_IMODE(blob.parent.stat().st_mode) == 0o711


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show it")
def test_a_process_of_another_user_is_not_taken_for_one_of_the_user() -> None:
    assert user_of(os.getpid()) == os.getuid()
    assert user_of(1 << 30) is None
    own = RunnerUser(name="own", uid=os.getuid(), gid=os.getgid(), home="/")
    other = RunnerUser(name="other", uid=os.getuid() + 1, gid=os.getgid(), home="/")
    assert own.runs(os.getpid())
    assert not other.runs(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_confined_process_gains_no_rights_and_shows_no_environment() -> None:
    text = (
        "from flintlock.host.runner_user import confine; confine(); "
        "import os; print(open('/proc/self/status').read()); print(os.stat('/proc/self/environ').st_uid)"
    )
    ids = {"user": 65534, "group": 65534, "extra_groups": ()} if os.geteuid() == 0 and _readable() else {}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, **ids)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType] - of mixed types
    assert "NoNewPrivs:\t1" in done.stdout
    assert done.stdout.split()[-1] == "0", "root's, whoever runs it"


def _readable() -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in Path(sys.executable).resolve().parents)
