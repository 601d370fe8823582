"""Control groups on a tree of plain files: which group is ours, what is written where, and what is undone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flintlock.host import cgroups
from flintlock.host.cgroups import Cgroups, claim, own_group
from flintlock.model.errors import Unavailable

MOUNT = "30 23 0:26 {root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FILES = ("cgroup.procs", "cgroup.kill", "memory.max", "memory.oom.group", "memory.events", "cpu.max")


class Kernel:
    """A group's directory with the kernel's files in it, and a /proc that names it."""

    def __init__(self, home: Path, controllers: str = "cpu memory pids", enabled: str = "cpu memory") -> None:
        self.own, self.proc = home / "cgroup/service", home / "proc"
        for directory in (self.own, self.proc / "self"):
            directory.mkdir(parents=True)
        (self.proc / "self/cgroup").write_text("4:memory:/elsewhere\n0::/service\n")
        (self.proc / "self/mountinfo").write_text(MOUNT.format(root="/", place=self.own.parent))
        (self.own / "cgroup.controllers").write_text(controllers)
        (self.own / "cgroup.subtree_control").write_text(enabled)
        (self.own / "cgroup.procs").write_text(f"{os.getpid()}\n")


@pytest.mark.parametrize(
    ("member", "root", "expected"),
    [
        ("0::/system.slice/flintlock.service", "/", "/sys/fs/cgroup/system.slice/flintlock.service"),
        ("0::/", "/", "/sys/fs/cgroup"),
        ("0::/docker/abc/tm", "/docker/abc", "/sys/fs/cgroup/tm"),
        ("1:cpu:/x\n0::/a", "/", "/sys/fs/cgroup/a"),
    ],
)
def test_the_own_group_is_found(member: str, root: str, expected: str) -> None:
    assert own_group(member, MOUNT.format(root=root, place="/sys/fs/cgroup")) == Path(expected)


def test_without_version_2_there_is_none() -> None:
    assert own_group("4:memory:/x", MOUNT.format(root="/", place="/sys/fs/cgroup")) is None
    assert own_group("0::/x", "24 19 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n") is None


def test_a_group_without_a_memory_controller_is_refused(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, controllers="hugetlb")
    with pytest.raises(Unavailable, match="no memory controller"):
        claim(kernel.proc)
    assert {path.name for path in kernel.own.iterdir()} == {
        "cgroup.controllers",
        "cgroup.subtree_control",
        "cgroup.procs",
    }


def test_a_group_that_is_not_delegated_is_left_unchanged(tmp_path: Path) -> None:
    """The leaf has no cgroup.procs here, as if the kernel refused the move."""
    kernel = Kernel(tmp_path, enabled="")
    with pytest.raises(Unavailable, match="not delegated"):
        claim(kernel.proc)
    assert not [path for path in kernel.own.iterdir() if path.is_dir()]


def test_groups_of_a_killed_task_manager_are_removed(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    (kernel.own / "flintlock-1-runner-1").mkdir()
    assert claim(kernel.proc).controllers == {"cpu", "memory"}
    assert not list(kernel.own.glob("flintlock-*"))


def made(root: Path, name: str) -> Path:
    """Make the directory that a group will find, with the kernel's files."""
    path = root / f"flintlock-{os.getpid()}-{name}"
    path.mkdir()
    for file in FILES:
        (path / file).touch()
    return path


def test_limits_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    path = made(tmp_path, "runner-7")
    group = Cgroups(tmp_path, frozenset({"cpu", "memory"})).group("runner-7", memory=256 << 20, cpu=1.5)
    group.add(4711)
    assert (path / "memory.max").read_text() == str(256 << 20)
    assert (path / "memory.oom.group").read_text() == "1"
    assert (path / "cpu.max").read_text() == "150000 100000"
    assert (path / "cgroup.procs").read_text() == "4711"


def test_cores_are_not_limited_where_the_kernel_cannot(tmp_path: Path) -> None:
    path = made(tmp_path, "runner-7")
    Cgroups(tmp_path, frozenset({"memory"})).group("runner-7", cpu=1.5)
    assert (path / "cpu.max").read_text() == ""
    assert (path / "memory.max").read_text() == ""


@pytest.mark.parametrize(("events", "killed"), [("low 0\noom 3\noom_kill 1\n", True), ("oom 3\noom_kill 0\n", False)])
def test_kills_for_lack_of_memory_are_detected(tmp_path: Path, events: str, killed: bool) -> None:
    path = made(tmp_path, "x")
    (path / "memory.events").write_text(events)
    assert Cgroups(tmp_path, frozenset()).group("x").killed_for_memory() is killed


def test_a_group_that_does_not_become_empty_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "EMPTY_S", 0.05)
    path = made(tmp_path, "x")
    (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    Cgroups(tmp_path, frozenset()).group("x").remove()

    assert (path / "cgroup.kill").read_text() == "1"
    assert path.is_dir()


def test_a_removed_group_may_be_removed_again(tmp_path: Path) -> None:
    group = Cgroups(tmp_path, frozenset()).group("x")
    group.remove()
    group.remove()
    assert list(tmp_path.iterdir()) == []
