from __future__ import annotations

from pathlib import Path

import pytest

from flintlock.model.errors import Refused
from flintlock.security.job_secrets import SecretFiles, SecretVariables, read_secrets


def secret_file(directory: Path, name: str, content: bytes, mode: int = 0o600) -> SecretFiles:
    path = directory / name
    path.write_bytes(content)
    path.chmod(mode)
    return SecretFiles(directory)


def test_the_first_provider_that_has_a_secret_is_used(tmp_path: Path) -> None:
    files = secret_file(tmp_path, "DB", "grün\n".encode())
    variables = SecretVariables({"SECRET_DB": "other", "SECRET_S3": "key", "S3": "not a secret"}, "SECRET_")

    assert read_secrets({"DB", "S3"}, (files, variables)) == {"DB": "grün", "S3": "key"}


def test_a_missing_secret_is_refused_with_the_places_where_it_is_expected(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no secret 'DB' on this TaskManager: it is expected in a file .*SECRET_NAME"):
        read_secrets({"DB"}, (SecretFiles(tmp_path), SecretVariables({}, "SECRET_")))


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"x", 0o644, r"other users can read .*chmod 600"),
        (b"\xff\xfe", 0o600, "is not UTF-8"),
        (b"x" * (64 * 1024 + 1), 0o600, "more than 65536 bytes"),
    ],
)
def test_a_file_that_must_not_be_used_is_refused(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read_secrets({"DB"}, (secret_file(tmp_path, "DB", content, mode),))


@pytest.mark.parametrize("name", ["../cluster-secret", "a/b", "", ".hidden", "x" * 129, "a\0b"])
def test_a_name_never_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="cannot be the name of a secret"):
        read_secrets({name}, (SecretFiles(tmp_path),))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "DB").mkdir(mode=0o700)
    with pytest.raises(Refused, match="is not a file"):
        read_secrets({"DB"}, (SecretFiles(tmp_path),))
