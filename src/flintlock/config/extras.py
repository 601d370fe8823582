"""Optional parts of the installation: the extras that `pyproject.toml` declares, and what to install for one.

`pip install flintlock` is the client: it submits jobs, lists and cancels them and reads their results over HTTP. What
runs a cluster comes with the extra `cluster`, what speaks to ZooKeeper with `zookeeper`, what checks the
tokens of an OpenID Connect provider with `oidc`. Code that needs an extra calls
`require_extra` before it imports or starts anything of it, so that a user reads one sentence and not an ImportError.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias

from flintlock.model.errors import Refused

Extra: TypeAlias = Literal["cluster", "zookeeper", "oidc"]

#: The modules by which the packages of each extra are imported. A test compares them with `pyproject.toml`.
MODULES: Final[Mapping[Extra, tuple[str, ...]]] = {
    "cluster": (
        "cryptography",
        "grpc",
        "httpcore",
        "pandas",
        "prometheus_client",
        "pyarrow",
        "pyspark",
        "python_multipart",
        "starlette",
        "structlog",
        "uvicorn",
        "uvloop",
    ),
    "zookeeper": ("fsspec", "kazoo", "structlog"),
    "oidc": ("jwt",),
}

_MOST_NAMED: Final = 3  # where more are missing the extra was never installed, and a list does not help


def install_command(extra: Extra) -> str:
    """Return the command that installs the extra."""
    return f"pip install 'flintlock[{extra}]'"


def missing_modules(extra: Extra) -> tuple[str, ...]:
    """Return the modules of the extra that are not installed; nothing is imported."""
    return tuple(module for module in MODULES[extra] if find_spec(module) is None)


def require_extra(extra: Extra, purpose: str) -> None:
    """Raise Refused if a package of the extra is not installed; `purpose` is the subject of the sentence."""
    missing = missing_modules(extra)
    if missing:
        names = f" ({', '.join(missing)})" if len(missing) <= _MOST_NAMED else ""
        raise Refused(f"{purpose} needs packages that are not installed here{names}: {install_command(extra)}")
