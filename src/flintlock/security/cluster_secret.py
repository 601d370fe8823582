"""The cluster's secret: made at the first start of a cluster, in its state directory, for its owner only.

A user who can read it is an administrator of the cluster, so it proves that a caller is the user who runs the
cluster, or another process of the cluster. The secret itself never leaves the process: each purpose has a key that
is derived from it (HKDF, RFC 5869), and none of them reveals another one or the secret.

Two processes that start together make one secret: each writes a file of its own, and the kernel lets one of them take
the name. A reader finds no secret, or a complete one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.config.options import SECRET_FILE
from flintlock.host.files.private_files import OTHERS, make_private_directory
from flintlock.model.errors import FlintlockError, Refused, Unavailable

FILE_NAME: Final = "cluster-secret"
_LENGTH: Final = 32
_GROUP_READS: Final = 0o040
_MOST_BYTES: Final = 4096
_NEW_ONE: Final = "stop the cluster, remove the file and start the cluster again, which makes a new one"


class Purpose(StrEnum):
    """What a derived key is used for."""

    REST = "rest"  # credentials of clients that can read the secret
    RPC = "rpc"  # credentials of the cluster's members
    CLUSTER_NAME = "cluster name"  # in fencing tokens: which cluster a leader belongs to
    SESSIONS = "sessions"  # cookies of browsers, and the codes that are exchanged for them
    SPARK_UI = "spark ui"  # links to Spark's UI of an engine


class ClusterSecret:
    """The secret, in memory. Its text is that of its class: it cannot be logged by accident."""

    def __init__(self, value: bytes) -> None:
        self._value: Final = value

    def __repr__(self) -> str:
        return "ClusterSecret(…)"

    def key(self, purpose: Purpose) -> bytes:
        """Return the key of 32 bytes for a purpose: equal secrets give equal keys, and no key reveals another one."""
        extracted = hmac.digest(b"flintlock", self._value, hashlib.sha256)
        return hmac.digest(extracted, f"flintlock {purpose}".encode() + b"\x01", hashlib.sha256)


def same(first: bytes | str, second: bytes | str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(_bytes(first), _bytes(second))


def secret_file(configuration: Configuration, state_dir: Path) -> Path:
    """Return where the secret of the cluster with this configuration and state directory is stored."""
    configured = configuration.get(SECRET_FILE)
    return Path(configured).expanduser() if configured else state_dir / FILE_NAME


def open_cluster_secret(configuration: Configuration, state_dir: Path) -> ClusterSecret:
    """Return the cluster's secret, made if there is none: for processes of the cluster. Idempotent.

    A file that is configured (`security.secret-file`) is never made: every host needs the same one. Raises Refused if
    the file must not be used as it is, Unavailable if it cannot be read or made.
    """
    path = secret_file(configuration, state_dir)
    found = _read(path)
    if found is not None:
        return found
    if configuration.get(SECRET_FILE):
        raise Refused(
            f"there is no {path} ({SECRET_FILE.key}): make it once with"
            f" `(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > {path})`"
            " and copy it to every host of the cluster"
        )
    make_private_directory(path.parent)
    _make(path)
    made = _read(path)
    if made is None:
        raise Unavailable(f"the cluster's secret {path} was removed while it was being made: start again")
    return made


def find_cluster_secret(configuration: Configuration, state_dir: Path) -> ClusterSecret | None:
    """Return the secret for a client of the cluster; None if there is none. Raises Refused, Unavailable."""
    return _read(secret_file(configuration, state_dir))


def _read(path: Path) -> ClusterSecret | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        _check_owner(path, os.fstat(descriptor))
        content = os.read(descriptor, _MOST_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    try:
        value = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        value = b""
    if len(value) < _LENGTH:
        state = "is empty" if not content.strip() else f"does not hold {_LENGTH} bytes in hexadecimal digits"
        raise Refused(f"the cluster's secret {path} {state}: {_NEW_ONE}")
    return ClusterSecret(value)


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Refuse a secret that another user could have written or read."""
    user = os.geteuid()
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"the cluster's secret {path} is not a regular file: {_NEW_ONE}")
    if found.st_uid not in (user, 0) and user != 0:
        raise Refused(f"the cluster's secret {path} belongs to user {found.st_uid}, not to user {user}: {_NEW_ONE}")
    # A secret that a service manager provides belongs to root, and to a group of which this process is the member.
    others = OTHERS & ~_GROUP_READS if found.st_uid == 0 and user != 0 else OTHERS
    if stat.S_IMODE(found.st_mode) & others:
        raise Refused(
            f"the cluster's secret {path} can be used by other users (mode {stat.S_IMODE(found.st_mode):04o}): if none"
            f" has read it, run `chmod 600 {path}`; else {_NEW_ONE}"
        )


def _make(path: Path) -> None:
    """Write a new secret, unless another process has written one meanwhile. Durable when it returns."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{secrets.token_hex(_LENGTH)}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            path.hardlink_to(unfinished)
        except FileExistsError:
            return  # another process was first: its secret is the cluster's
        finally:
            unfinished.unlink()
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise Unavailable(f"the cluster's secret {path} cannot be created: {error.strerror}") from error


def _unreadable(path: Path, error: OSError) -> FlintlockError:
    if isinstance(error, PermissionError):
        return Refused(
            f"the cluster's secret {path} cannot be read by user {os.geteuid()}: use the cluster as the user who runs"
            " it, or with a token (`flintlock token create`)"
        )
    return Unavailable(f"the cluster's secret {path} cannot be read: {error.strerror}")


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
