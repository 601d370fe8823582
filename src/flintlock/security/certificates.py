"""The certificates of a cluster on several machines: an authority of its own, and one certificate for each machine.

A member proves with its certificate that the cluster's authority knows it, to those who call it and to those
whom it calls. The authority's key is needed only to issue certificates, and is best kept on none of the cluster's
machines.

A machine's key and certificate are one file, `member.pem`: a certificate that is replaced while processes read it is
the former one or the new one, never a key without its certificate. Keys are on the curve P-256, which every TLS
library has and which makes handshakes cheap.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flintlock.host.files.private_files import make_private_directory
from flintlock.model.errors import Invalid, Refused

AUTHORITY: Final = "ca.pem"
AUTHORITY_KEY: Final = "ca-key.pem"
MEMBER: Final = "member.pem"
AUTHORITY_DAYS: Final = 3650
MEMBER_DAYS: Final = 90
#: Every member also has these names, for processes that share its machine.
_OWN_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_CLOCKS_DIFFER: Final = timedelta(minutes=10)
_PEM: Final = serialization.Encoding.PEM


def make_authority(directory: Path, *, name: str = "Flintlock cluster", days: int = AUTHORITY_DAYS) -> Path:
    """Make an authority in a directory, for its owner only; return the path of its certificate.

    Raises Refused if there is one: certificates that it has issued would not be recognised any more.
    """
    make_private_directory(directory)
    certificate, key_file = directory / AUTHORITY, directory / AUTHORITY_KEY
    for path in (certificate, key_file):
        if path.exists():
            raise Refused(f"{path} exists: remove it to make another authority, and issue all certificates again")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    made = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_file, _private(key))
    _write(certificate, made.public_bytes(_PEM), mode=0o644)
    return certificate


def issue(directory: Path, hosts: Iterable[str], target: Path, *, days: int = MEMBER_DAYS) -> Path:
    """Issue a certificate for a machine, by the names and addresses that others reach it at; return its path.

    `target` gets `member.pem`, with the key, and a copy of the authority's certificate. What was there is replaced,
    each file at once: processes that use it go on with the new one. Raises Refused without an authority, Invalid for
    a name that is none.
    """
    authority, authority_key = _read_authority(directory)
    names = tuple(dict.fromkeys((*hosts, *_OWN_NAMES)))
    general_names = [_general_name(name) for name in names]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    days = min(days, max(1, (authority.not_valid_after_utc - datetime.now(UTC)).days))
    certificate = (
        _builder(subject, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(general_names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    make_private_directory(target)
    _write(target / AUTHORITY, authority.public_bytes(_PEM), mode=0o644)
    _write(target / MEMBER, _private(key) + certificate.public_bytes(_PEM))
    return target / MEMBER


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    labels = name.split(".")
    if not name.isascii() or not all(label and label.replace("-", "").isalnum() for label in labels):
        raise Invalid(f"{name!r} is neither the name of a machine nor an IP address")
    return x509.DNSName(name)


def _read_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
        key = serialization.load_pem_private_key((directory / AUTHORITY_KEY).read_bytes(), None)
    except FileNotFoundError as error:
        raise Refused(f"there is no {error.filename}: run `flintlock certs init` first") from error
    except (OSError, ValueError) as error:
        raise Refused(f"the authority in {directory} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Refused(f"{directory / AUTHORITY_KEY} is not the key of {directory / AUTHORITY}")
    return certificate, key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file at once, and make it durable."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
