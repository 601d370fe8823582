"""How a connection to the ensemble is protected: digest credentials, ACLs of the znodes, TLS.

With credentials every znode that Flintlock creates may be read and written only by processes with these
credentials: a process that can write there can depose a leader, or send clients and TaskManagers to another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from flintlock.config.configuration import Configuration
from flintlock.config.options import HA_ACL, HA_CREDENTIALS_FILE, HA_TLS, TLS_AUTHORITIES, TLS_MEMBER
from flintlock.host.files.private_files import read_private_file
from flintlock.model.errors import Invalid, Refused

_MOST_BYTES: Final = 4096


class ZooKeeperSecurity(Struct, frozen=True, kw_only=True):
    """What a client of the ensemble uses. Its text shows no password."""

    credential: str = ""  # user:password, for the scheme digest
    closes_znodes: bool = False  # to all others than that user
    member: str = ""  # the files for TLS; empty: none
    authorities: str = ""

    def __repr__(self) -> str:
        return f"ZooKeeperSecurity(closes_znodes={self.closes_znodes}, tls={bool(self.authorities)})"

    def client_arguments(self) -> dict[str, Any]:
        """Return the arguments of kazoo's client."""
        from kazoo.security import make_digest_acl  # pyright: ignore[reportUnknownVariableType]

        arguments: dict[str, Any] = {}
        if self.credential:
            arguments["auth_data"] = [("digest", self.credential)]
        if self.closes_znodes:
            # Not `auth`, kazoo's CREATOR_ALL_ACL: with TLS, that would also name the certificate of the machine.
            user, _, password = self.credential.partition(":")
            arguments["default_acl"] = [make_digest_acl(user, password, all=True)]
        if self.authorities:
            arguments |= {"use_ssl": True, "ca": self.authorities, "verify_certs": True, "check_hostname": True}
            if self.member:
                arguments |= {"certfile": self.member, "keyfile": self.member}
        return arguments


#: For an ensemble that every process that reaches it may use.
UNPROTECTED: Final = ZooKeeperSecurity()


def zookeeper_security(configuration: Configuration) -> ZooKeeperSecurity:
    """Return what the configuration asks for. Raises Invalid for options that clash, Refused for an unusable file."""
    credential = _credential(configuration.get(HA_CREDENTIALS_FILE))
    tls, authorities = configuration.get(HA_TLS), configuration.get(TLS_AUTHORITIES)
    if tls and not authorities:
        raise Invalid(f"{HA_TLS.key} is true: {TLS_AUTHORITIES.key} has to be set ({TLS_AUTHORITIES.kind})")
    return ZooKeeperSecurity(
        credential=credential,
        closes_znodes=bool(credential) and configuration.get(HA_ACL) == "creator",
        member=configuration.get(TLS_MEMBER) if tls else "",
        authorities=authorities if tls else "",
    )


def _credential(file: str) -> str:
    """Read `user:password` from a file that only its owner can read; nothing if none is configured."""
    if not file:
        return ""
    path = Path(file).expanduser()
    try:
        content = read_private_file(path, _MOST_BYTES).decode().strip()
    except Refused as error:
        raise Refused(f"{HA_CREDENTIALS_FILE.key}: {error.public}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} ({HA_CREDENTIALS_FILE.key}) cannot be read: {error}") from error
    user, _, password = content.partition(":")
    if not user or not password or "\n" in content:
        raise Refused(f"{path} ({HA_CREDENTIALS_FILE.key}) has to contain one line: user:password")
    return content
