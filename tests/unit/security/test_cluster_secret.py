"""The cluster's secret: made once, read by its owner only, and never used as it is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings, start
from flintlock.ha.embedded.sqlite_file import open_writer
from flintlock.model.errors import Refused, Unavailable
from flintlock.security.cluster_secret import (
    FILE_NAME,
    ClusterSecret,
    Purpose,
    find_cluster_secret,
    open_cluster_secret,
    same,
)

REST_KEY = "17ee259b7fcb12f2ab57c6b9fdf3080d90be05681bbdee0ce15483ad230f1541"
RPC_KEY = "f5c8c8f0496df295fced7737f4c2311e8afb3e3cfaefe6bfbced056d650c257e"
PLAIN = Configuration({})
_OPEN_IT = """
import sys
from pathlib import Path
from flintlock.config.configuration import Configuration
from flintlock.security.cluster_secret import Purpose, open_cluster_secret
sys.stdin.readline()
print(open_cluster_secret(Configuration({}), Path(sys.argv[1])).key(Purpose.RPC).hex())
"""

_AS_NOBODY = """
import os, sys
from pathlib import Path
from flintlock.config.configuration import Configuration
from flintlock.host.files.private_files import make_private_directory
from flintlock.model.errors import FlintlockError
from flintlock.security.cluster_secret import find_cluster_secret
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in sys.argv[1:]:
    try:
        print(CALL)
    except FlintlockError as error:
        print(error.public)
"""
_FIND_AS_NOBODY = _AS_NOBODY.replace("CALL", "find_cluster_secret(Configuration({}), Path(name))")
_MAKE_AS_NOBODY = _AS_NOBODY.replace("CALL", "make_private_directory(Path(name))")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _keys(secret: ClusterSecret | None) -> list[bytes]:
    assert secret is not None
    return [secret.key(purpose) for purpose in Purpose]


def test_a_cluster_makes_its_secret_once_for_its_owner_only(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    assert find_cluster_secret(PLAIN, state_dir) is None
    made = open_cluster_secret(PLAIN, state_dir)
    assert (_mode(state_dir), _mode(state_dir / FILE_NAME)) == (0o700, 0o600)
    assert _keys(open_cluster_secret(PLAIN, state_dir)) == _keys(made) == _keys(find_cluster_secret(PLAIN, state_dir))
    assert [path.name for path in state_dir.iterdir()] == [FILE_NAME]


def test_threads_that_start_together_get_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = [pending.result() for pending in [pool.submit(open_cluster_secret, PLAIN, tmp_path) for _ in range(64)]]
    assert all(_keys(secret) == _keys(found[0]) for secret in found)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_processes_that_start_together_get_the_same_secret(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _OPEN_IT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = {process.communicate()[0] for process in processes}
    assert len(found) == 1
    assert found != {""}


def test_each_purpose_has_a_key_of_its_own_and_none_is_the_secret(tmp_path: Path) -> None:
    secret = open_cluster_secret(PLAIN, tmp_path)
    keys = _keys(secret)
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)
    stored = (tmp_path / FILE_NAME).read_text().strip()
    assert stored not in (key.hex() for key in keys)
    assert stored not in repr(secret)


def test_the_keys_of_a_secret_never_change_between_versions() -> None:
    secret = ClusterSecret(bytes(range(32)))
    assert secret.key(Purpose.REST).hex() == REST_KEY
    assert secret.key(Purpose.RPC).hex() == RPC_KEY


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty"), ("\n", "is empty"), ("not hex", "hexadecimal digits"), ("ab" * 31, "hexadecimal digits")],
)
def test_a_damaged_secret_is_refused_and_never_replaced(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    for read in (open_cluster_secret, find_cluster_secret):
        with pytest.raises(Refused, match=says) as error:
            read(PLAIN, tmp_path)
        assert str(path) in error.value.public
        assert "start the cluster again" in error.value.public
    assert path.read_text() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o666])
def test_a_secret_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    open_cluster_secret(PLAIN, tmp_path)
    (tmp_path / FILE_NAME).chmod(mode)
    with pytest.raises(Refused, match=f"mode {mode:04o}.*chmod 600"):
        open_cluster_secret(PLAIN, tmp_path)


def test_a_secret_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir(mode=0o700)
    with pytest.raises(Refused, match="not a regular file"):
        open_cluster_secret(PLAIN, tmp_path)


@pytest.fixture
def open_directory() -> Generator[Path]:
    """A directory that every user can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_another_user_can_neither_read_the_secret_nor_provide_one(open_directory: Path) -> None:
    for name in ("closed", "unreadable", "foreign"):
        open_cluster_secret(PLAIN, open_directory / name)
        if name != "closed":
            (open_directory / name).chmod(0o755)
    (open_directory / "foreign" / FILE_NAME).chmod(0o644)
    os.chown(open_directory / "foreign" / FILE_NAME, 65533, 65533)
    names = [str(open_directory / name) for name in ("closed", "unreadable", "foreign")]
    done = subprocess.run([sys.executable, "-c", _FIND_AS_NOBODY, *names], capture_output=True, text=True, check=True)
    closed, unreadable, foreign = done.stdout.splitlines()
    assert "cannot be read by user 65534" in closed
    assert "cannot be read by user 65534" in unreadable
    assert "flintlock token create" in unreadable
    assert "belongs to user 65533, not to user 65534" in foreign


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_a_state_directory_that_another_user_leaves_open_is_refused(open_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MAKE_AS_NOBODY, str(open_directory)], capture_output=True, text=True, check=True
    )
    assert "is open to other users and belongs to user 0, not to user 65534" in done.stdout


def test_a_configured_secret_is_read_and_never_made(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    configured = Configuration({"security.secret-file": str(path)})
    with pytest.raises(Refused, match="copy it to every host"):
        open_cluster_secret(configured, tmp_path / "state")
    path.write_text("ab" * 32)
    path.chmod(0o600)
    first = open_cluster_secret(configured, tmp_path / "one")
    assert _keys(first) == _keys(open_cluster_secret(configured, tmp_path / "two"))
    assert not (tmp_path / "one").exists()


def test_a_secret_that_cannot_be_made_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be"):
        open_cluster_secret(PLAIN, tmp_path / "file" / "state")


def test_secrets_are_compared_whatever_their_length() -> None:
    assert same("abc", b"abc")
    assert not same("abc", "abd")
    assert not same("abc", "abcd")
    assert not same("ü", "u")


@pytest.mark.usefixtures("restored_process")
def test_every_process_closes_its_state_directory_and_gives_an_older_one_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o755)
    monkeypatch.setattr(sys, "argv", ["test", "--state-dir", str(state_dir)])
    found: list[ProcessSettings] = []

    async def main(settings: ProcessSettings) -> None:
        found.append(settings)

    assert start("test", main) == 0
    assert (_mode(state_dir), _mode(state_dir / FILE_NAME)) == (0o700, 0o600)
    assert _keys(found[0].secret) == _keys(find_cluster_secret(PLAIN, state_dir))


def test_the_store_is_closed_to_other_users_an_older_one_too(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_writer(path).close()
    assert _mode(path) == 0o600
    path.chmod(0o644)
    (tmp_path / "store.db-wal").write_bytes(b"")
    (tmp_path / "store.db-wal").chmod(0o644)
    connection = open_writer(path)
    try:
        connection.execute("CREATE TABLE another (id INTEGER)")
        assert {_mode(file) for file in tmp_path.iterdir()} == {0o600}
    finally:
        connection.close()
