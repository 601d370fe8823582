"""Which credential a client sends to an address.

    security.token, security.token-file    that token, to every address
    security.secret-file, or ZooKeeper     a credential made with that secret, or the one of the state directory
    neither                                a credential made with the secret of the cluster that listens there, if it is
                                           one of this user: a state directory names the address, or a process of this
                                           user listens there

To an address that no cluster of this user has, nothing is sent: the process there could use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from flintlock.config.configuration import Configuration
from flintlock.config.options import SECRET_FILE, TLS_AUTHORITIES, TOKEN, TOKEN_FILE
from flintlock.ha.backends import ha_backend
from flintlock.host.addresses import is_loopback_host
from flintlock.host.listening import listening_jobmanager
from flintlock.host.processes.pid_files import job_managers
from flintlock.model.errors import Refused
from flintlock.security.cluster_secret import ClusterSecret, find_cluster_secret
from flintlock.security.local_credentials import LIFETIME_MS, local_credential, local_user


class Credentials(Protocol):
    """Where a client gets its credentials from, and whom it trusts."""

    @property
    def authorities(self) -> str:
        """The file with the authorities whose certificates count for a cluster; empty: those of the machine only."""
        ...

    def find(self, url: str, now_ms: int) -> str | None:
        """Return the credential for an address at a time of the cluster's clock; None if there is none.

        Raises Refused if a file with one cannot be used.
        """
        ...

    def forget(self, url: str) -> bool:
        """Look for a new credential next time: this one was refused. Returns False if that cannot help."""
        ...


class ClientCredentials:
    """The credentials of a client with this configuration and state directory."""

    def __init__(self, configuration: Configuration, state_dir: Path) -> None:
        self._configuration: Final = configuration
        self._state_dir: Final = state_dir
        self._made: Final[dict[str, tuple[str, int]]] = {}  # by address, with the time at which it is replaced

    @property
    def authorities(self) -> str:
        """The file that `security.tls.ca-file` names."""
        return self._configuration.get(TLS_AUTHORITIES)

    def find(self, url: str, now_ms: int) -> str | None:
        """Return the credential for an address."""
        token = self._token()
        if token:
            return token
        made = self._made.get(url)
        if made is not None and made[1] - LIFETIME_MS < now_ms < made[1]:
            return made[0]
        secret = self._secret(url)
        if secret is None:
            return None
        credential = local_credential(secret, local_user(), now_ms)
        self._made[url] = (credential, now_ms + LIFETIME_MS // 2)
        return credential

    def forget(self, url: str) -> bool:
        """Forget what was made for this address: another cluster may listen there now."""
        return self._made.pop(url, None) is not None

    def _token(self) -> str:
        file = self._configuration.get(TOKEN_FILE)
        if not file:
            return self._configuration.get(TOKEN).strip()
        try:
            return Path(file).expanduser().read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"the token in {file} ({TOKEN_FILE.key}) cannot be read: {error}") from error

    def _secret(self, url: str) -> ClusterSecret | None:
        if self._configuration.get(SECRET_FILE) or ha_backend(self._configuration).spans_hosts:
            return find_cluster_secret(self._configuration, self._state_dir)
        if any(file.rest == url for file in job_managers(self._state_dir)):
            return find_cluster_secret(self._configuration, self._state_dir)
        parts = urlsplit(url)
        if not parts.port or not is_loopback_host(parts.hostname or ""):
            return None
        found = listening_jobmanager(parts.port)
        return None if found is None else find_cluster_secret(Configuration(found.settings), found.state_dir)
