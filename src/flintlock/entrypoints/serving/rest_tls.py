"""TLS of a JobManager's REST endpoint: whether it must have it, its certificate, and the renewal of that."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

import uvicorn

from flintlock.config.configuration import Configuration
from flintlock.config.options import REST_ADDRESS, REST_BIND_ADDRESS
from flintlock.entrypoints.serving.rpc_security import HOW_TO_TLS, tls_files
from flintlock.host.addresses import is_loopback_host
from flintlock.model.errors import Invalid
from flintlock.security.tls_files import TlsFiles

_RELOAD_PAUSE_S: Final = 1.0


def rest_tls(configuration: Configuration, bound: str) -> TlsFiles | None:
    """Return the certificate that REST uses; None: it has none, and only this machine reaches it.

    Raises Invalid if other machines reach the address that REST listens on and TLS is not configured.
    """
    tls = tls_files(configuration)
    if tls is None and not is_loopback_host(bound):
        option = REST_BIND_ADDRESS if configuration.get(REST_BIND_ADDRESS) else REST_ADDRESS
        raise Invalid(f"{option.key}: {bound} is reached by other machines, and TLS is not configured: {HOW_TO_TLS}")
    return tls


class ServerTls:
    """The TLS context of a server, which follows the files of its certificate."""

    def __init__(self, files: TlsFiles) -> None:
        self._files: Final = files
        self._used = files.material
        self.context: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(files.member)

    def use(self, config: uvicorn.Config) -> None:
        """Have a server with this configuration use the context."""
        config.load()
        config.ssl = self.context

    async def follow(self) -> None:
        """Use a renewed certificate for new connections, until cancelled."""
        while True:
            await asyncio.sleep(_RELOAD_PAUSE_S)
            material = self._files.material
            if material is not self._used:
                with suppress(OSError):  # ssl.SSLError is one: the file was replaced once more, and is read again later
                    self.context.load_cert_chain(self._files.member)
                    self._used = material


def client_context(files: TlsFiles | None) -> ssl.SSLContext | None:
    """Return a context for requests to other JobManagers, which trusts the cluster's authorities and no others."""
    if files is None:
        return None
    context = ssl.create_default_context(cafile=str(files.authorities))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
