"""The certificate of this machine, and the authorities that it trusts, as files that may be replaced while in use.

A process reads them again when they have changed, so a certificate is renewed by writing a new file. One that cannot be
used is logged and ignored: the former certificate stays in use until it is repaired, or has expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from flintlock.host.files.private_files import read_private_file
from flintlock.model import log_events
from flintlock.model.errors import Refused

_MOST_BYTES: Final = 1 << 20
#: How often the files are read again, at most.
_LEAST_PAUSE_S: Final = 1.0
log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class TlsMaterial:
    """What a TLS library needs, in PEM."""

    member: bytes  # the key and the certificate, with those between it and the authority
    authorities: bytes
    expires: datetime

    def __repr__(self) -> str:
        return f"TlsMaterial(expires={self.expires.isoformat()})"


class TlsFiles:
    """The files, and what was read from them last. Thread-safe: a reader sees the former or the new material."""

    def __init__(self, member: Path, authorities: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.member: Final = member
        self.authorities: Final = authorities
        self._clock_s: Final = clock_s
        self._seen: object = self._stamp()  # of the files as they were read, or found unusable, last
        self._looked_s = clock_s()
        self._material = self._read()

    @property
    def material(self) -> TlsMaterial:
        """The material; read again if the files have changed. The same object until then."""
        now_s = self._clock_s()
        if now_s - self._looked_s >= _LEAST_PAUSE_S:
            self._looked_s = now_s
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._reload()
        return self._material

    def _reload(self) -> None:
        try:
            self._material = self._read()
        except Refused as error:
            log.error(log_events.CERTIFICATE_NOT_RELOADED, reason=error.public)
        else:
            log.info(log_events.CERTIFICATE_RELOADED, expires=self._material.expires.isoformat())

    def _stamp(self) -> object:
        return tuple(_stamp_of(path) for path in (self.member, self.authorities))

    def _read(self) -> TlsMaterial:
        """Read and check both files. Raises Refused, naming the file."""
        member, authorities = _content(self.member, private=True), _content(self.authorities)
        try:
            key = serialization.load_pem_private_key(member, None)
            certificate = x509.load_pem_x509_certificates(member)[0]
        except (ValueError, TypeError) as error:
            raise Refused(f"{self.member} has no private key and certificate in PEM: {error}") from error
        if key.public_key() != certificate.public_key():
            raise Refused(f"the private key in {self.member} is not that of the first certificate there")
        try:
            x509.load_pem_x509_certificates(authorities)
        except ValueError as error:
            raise Refused(f"{self.authorities} has no certificate in PEM: {error}") from error
        if certificate.not_valid_after_utc < datetime.now(UTC):
            raise Refused(
                f"the certificate in {self.member} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}:"
                " run `flintlock certs issue` again"
            )
        return TlsMaterial(member=member, authorities=authorities, expires=certificate.not_valid_after_utc)


def _content(path: Path, *, private: bool = False) -> bytes:
    try:
        return read_private_file(path, _MOST_BYTES) if private else path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _stamp_of(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
