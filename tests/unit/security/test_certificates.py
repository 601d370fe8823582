"""Certificates of a cluster on several machines, and the files that they are in."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from structlog.testing import capture_logs

from flintlock.cli.main import run_app
from flintlock.model.errors import Invalid, Refused
from flintlock.model.log_events import CERTIFICATE_NOT_RELOADED, CERTIFICATE_RELOADED
from flintlock.security.certificates import AUTHORITY, AUTHORITY_KEY, MEMBER, issue, make_authority
from flintlock.security.tls_files import TlsFiles


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes()[path.read_bytes().index(b"-----BEGIN CERT") :])


def test_keys_are_closed_to_other_users(tmp_path: Path) -> None:
    authority = tmp_path / "certs"
    make_authority(authority)
    member = issue(authority, ["tm1.example"], authority / "tm1")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (authority, authority / AUTHORITY_KEY, member)}
    assert modes == {"certs": 0o700, AUTHORITY_KEY: 0o600, MEMBER: 0o600}
    assert {path.name for path in authority.iterdir()} == {AUTHORITY, AUTHORITY_KEY, "tm1"}


def test_a_member_has_the_names_that_others_reach_it_at_for_both_sides_of_a_connection(tmp_path: Path) -> None:
    make_authority(tmp_path)
    certificate = certificate_in(issue(tmp_path, ["tm1.example", "10.0.0.7"], tmp_path / "tm1"))

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {*names.get_values_for_type(x509.DNSName)} == {"tm1.example", "localhost"}
    assert ip_address("10.0.0.7") in names.get_values_for_type(x509.IPAddress)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {*usage} == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert timedelta(days=89) < certificate.not_valid_after_utc - datetime.now(UTC) < timedelta(days=91)
    certificate.verify_directly_issued_by(certificate_in(tmp_path / AUTHORITY))


def test_an_authority_is_never_replaced_and_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="flintlock certs init"):
        issue(tmp_path, ["host"], tmp_path / "host")
    make_authority(tmp_path)
    before = (tmp_path / AUTHORITY_KEY).read_bytes()
    with pytest.raises(Refused, match="exists"):
        make_authority(tmp_path)
    assert (tmp_path / AUTHORITY_KEY).read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "-/-", "x..y", "*.example", "ü"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    make_authority(tmp_path)
    with pytest.raises(Invalid, match="neither the name of a machine nor an IP address"):
        issue(tmp_path, [name], tmp_path / "out")


def test_files_that_are_replaced_are_read_again_and_unusable_ones_ignored(tmp_path: Path) -> None:
    clock = [0.0]
    make_authority(tmp_path)
    member = issue(tmp_path, ["host"], tmp_path / "host", days=1)
    files = TlsFiles(member, tmp_path / "host" / AUTHORITY, lambda: clock[0])
    first = files.material

    with capture_logs() as logs:
        clock[0] += 2
        assert files.material is first
        issue(tmp_path, ["host"], tmp_path / "host", days=2)
        clock[0] += 2
        second = files.material
        assert second.expires > first.expires
        member.write_bytes(b"half a file")
        clock[0] += 2
        assert files.material is second
        clock[0] += 2
        assert files.material is second

    assert [line["event"] for line in logs] == [CERTIFICATE_RELOADED, CERTIFICATE_NOT_RELOADED]
    assert "PRIVATE" not in str(logs) + repr(second)


def test_unusable_files_are_refused_at_the_start_with_what_to_do(tmp_path: Path) -> None:
    make_authority(tmp_path / "ca")
    make_authority(tmp_path / "other")
    member = issue(tmp_path / "ca", ["host"], tmp_path / "host")
    authorities = tmp_path / "host" / AUTHORITY
    other = issue(tmp_path / "other", ["host"], tmp_path / "host2")

    with pytest.raises(Refused, match="cannot be read"):
        TlsFiles(tmp_path / "none", authorities)
    with pytest.raises(Refused, match="no certificate"):
        TlsFiles(member, tmp_path / "ca" / AUTHORITY_KEY)
    member.chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        TlsFiles(member, authorities)
    member.chmod(0o600)
    key_of_one = member.read_bytes().partition(b"-----BEGIN CERT")[0]
    member.write_bytes(key_of_one + other.read_bytes()[other.read_bytes().index(b"-----BEGIN CERT") :])
    with pytest.raises(Refused, match="is not that of the first certificate"):
        TlsFiles(member, authorities)


def test_the_two_commands_make_what_a_machine_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "certs")
    assert run_app(["certs", "init", "--directory", directory]) == 0
    assert run_app(["certs", "issue", "tm1", "10.0.0.7", "--directory", directory]) == 0

    out = capsys.readouterr().out
    assert "security.tls.certificate-file" in out
    assert "security.tls.ca-file" in out
    TlsFiles(tmp_path / "certs" / "tm1" / MEMBER, tmp_path / "certs" / "tm1" / AUTHORITY)
    assert run_app(["certs", "init", "--directory", directory]) == 2
