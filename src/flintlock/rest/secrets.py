"""Hides the values of secret settings wherever REST returns configuration.

Whether a setting is secret is decided by its key, as in Flink.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from flintlock.config.configuration import MASTER_VARIABLES, WORKER_VARIABLES, Configuration
from flintlock.config.options import OPTIONS

HIDDEN: Final = "******"
"""Shown instead of a value."""

#: A key that contains one of these names a secret: Flink's list, and what Spark and its file systems call theirs.
_SECRET_PARTS: Final = (
    "password", "secret", "token", "credential", "apikey", "api-key", "access.key", "account.key", "service-key",
    "auth-params", "basic-auth", "jaas.config", "http-headers", "private", "encryption.key", "accesskey", ".sas.",
)  # fmt: skip
#: The user and the password of an address, and a Java property: secrets in a value whose key names none.
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s,]+(?=@)")
_PROPERTY: Final = re.compile(r"(?P<name>-D(?P<key>[^=\s]+)=)(?P<value>\S+)")


def is_secret(key: str) -> bool:
    """Return whether a key names a secret. Where secrets are stored is none, nor is the path of a file with one.

    What is in the environment of processes may be one, whatever it is called.
    """
    if key.startswith((MASTER_VARIABLES, WORKER_VARIABLES)):
        return True
    if key.endswith(("-file", ".file")) or key.startswith("security.secrets."):
        return False
    return any(part in key.lower() for part in _SECRET_PARTS)


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the values of secrets hidden."""
    return {key: _shown(key, value) for key, value in settings.items()}


def _shown(key: str, value: str) -> str:
    if is_secret(key):
        return HIDDEN
    value = _USER_INFO.sub(HIDDEN, value)
    return _PROPERTY.sub(lambda found: found["name"] + (HIDDEN if is_secret(found["key"]) else found["value"]), value)


def effective_settings(configuration: Configuration) -> dict[str, str]:
    """Return all settings of a process by key, defaults included, with the values of secrets hidden."""
    defaults = {option.key: option.default_text for option in OPTIONS}
    effective = without_secrets({**defaults, **configuration.as_dict()})
    return {key: effective[key] for key in sorted(effective)}


def arguments_without_secrets(arguments: Iterable[str]) -> list[str]:
    """Return a command line with the values of secrets hidden (`key=value`, as `-D` takes them)."""
    shown: list[str] = []
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        shown.append(f"{key}={HIDDEN}" if equals and is_secret(key) else argument)
    return shown
