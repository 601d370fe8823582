"""The secrets of jobs: values that a TaskManager reads on its machine, by the names that jobs refer to.

Jobs refer to them as `${secret:NAME}` (`flintlock.model.access.secret_references`). No component stores them, and no
process but the task's own gets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from flintlock.host.files.private_files import read_private_file
from flintlock.model.access.secret_references import SECRET_NAME
from flintlock.model.errors import Refused

_LARGEST: Final = 64 << 10  # bytes of one secret


class SecretProvider(Protocol):
    """Where secrets are kept."""

    @property
    def place(self) -> str:
        """Where a missing secret would be put, for messages: completes "it is expected …"."""
        ...

    def read(self, name: str) -> str | None:
        """Return a secret, or None if this provider has none of that name. Raises Refused if it may not be used."""
        ...


class SecretFiles:
    """One file for each secret in one directory, readable by its owner only. A final newline does not count."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    @property
    def place(self) -> str:
        """The directory."""
        return f"in a file of that name in {self._directory}"

    def read(self, name: str) -> str | None:
        """Return the content of the file. Raises Refused if other users can read it."""
        path = self._directory / name
        try:
            content = read_private_file(path, _LARGEST)
        except FileNotFoundError:
            return None
        except Refused as error:
            raise Refused(f"the secret {name!r} is not used: {error.public}") from error
        with suppress(UnicodeDecodeError):
            return content.decode().removesuffix("\n")
        raise Refused(f"the secret {name!r} is not used: {path} is not UTF-8")


class SecretVariables:
    """Environment variables of the TaskManager with a common prefix. User code does not inherit them."""

    def __init__(self, environ: Mapping[str, str], prefix: str) -> None:
        self._environ: Final = environ
        self._prefix: Final = prefix

    @property
    def place(self) -> str:
        """The prefix."""
        return f"in the environment variable {self._prefix}NAME of the TaskManager"

    def read(self, name: str) -> str | None:
        """Return the value of the variable."""
        return self._environ.get(self._prefix + name)


def read_secrets(names: Iterable[str], providers: Iterable[SecretProvider]) -> dict[str, str]:
    """Return each secret from the first provider that has it. Raises Refused for one that none has."""
    found: dict[str, str] = {}
    searched = tuple(providers)
    for name in sorted(names):
        if not SECRET_NAME.fullmatch(name):
            raise Refused(f"{name!r} cannot be the name of a secret")
        value = next((value for provider in searched if (value := provider.read(name)) is not None), None)
        if value is None:
            places = ", or ".join(provider.place for provider in searched)
            raise Refused(f"there is no secret {name!r} on this TaskManager: it is expected {places}")
        found[name] = value
    return found
