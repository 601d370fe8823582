"""Flintlock: a job service for Apache Spark, with Apache Flink's control plane.

    import flintlock as fl

    job = fl.Job("revenue")
    ...
    fl.run(job)

Names are imported lazily (PEP 562): `import flintlock` loads neither PySpark nor gRPC nor an HTTP
client, so that the command line and every process of a cluster start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flintlock.client.authoring.job import Job, Step
    from flintlock.client.connection.client import Client, connect
    from flintlock.client.connection.handle import JobHandle
    from flintlock.client.errors import JobCanceled
    from flintlock.client.running import JobRun, run
    from flintlock.model.errors import (
        Conflict,
        FlintlockError,
        Invalid,
        JobFailed,
        NoRetry,
        NotFound,
        Refused,
        Unavailable,
    )

__version__: Final = "0.1.0"

__all__ = [
    "Client",
    "Conflict",
    "FlintlockError",
    "Invalid",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobHandle",
    "JobRun",
    "NoRetry",
    "NotFound",
    "Refused",
    "Step",
    "Unavailable",
    "__version__",
    "connect",
    "run",
]

#: Where each public name lives.
_HOMES: Final = {
    "Client": "flintlock.client.connection.client",
    "connect": "flintlock.client.connection.client",
    "JobHandle": "flintlock.client.connection.handle",
    "Job": "flintlock.client.authoring.job",
    "Step": "flintlock.client.authoring.job",
    "JobRun": "flintlock.client.running",
    "run": "flintlock.client.running",
    "JobCanceled": "flintlock.client.errors",
    "Conflict": "flintlock.model.errors",
    "FlintlockError": "flintlock.model.errors",
    "Invalid": "flintlock.model.errors",
    "JobFailed": "flintlock.model.errors",
    "NoRetry": "flintlock.model.errors",
    "NotFound": "flintlock.model.errors",
    "Refused": "flintlock.model.errors",
    "Unavailable": "flintlock.model.errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
