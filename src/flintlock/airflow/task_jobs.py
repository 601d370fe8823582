"""Which job belongs to a task of a DAG. Imports no Airflow.

Airflow may start one task several times: another try after a failure, or after the worker is lost. Each try submits
under an idempotency key of its own, so one try never makes two jobs. A try that finds the job of an earlier one still
at work waits for that job; one that has ended is not used again, because a task that is cleared has to run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from flintlock.client.authoring.package import Packable
from flintlock.client.connection.client import Client
from flintlock.client.connection.handle import JobHandle
from flintlock.client.display.following import OutputReader
from flintlock.model.checking.limits import MAX_LABEL
from flintlock.model.states import JobStatus

INSTANCE_LABEL: Final = "airflow/instance"
"""The label that the jobs of all tries of one task have in common."""

_LAST_LINES: Final = 100
_DIGEST: Final = 8  # the characters that tell ids apart of which a label has only the beginning
#: States of a job that will not finish.
_ENDING: Final = frozenset({JobStatus.CANCELLING, JobStatus.FAILING})


class TaskTry(Struct, frozen=True, kw_only=True):
    """One try of one task of one run of a DAG."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 1

    @property
    def instance(self) -> str:
        """A text that is the same for all tries of the task, and for no other task."""
        return _digest(self.dag_id, self.run_id, self.task_id, str(self.map_index))

    @property
    def idempotency_key(self) -> str:
        """The key under which this try submits."""
        return f"airflow-{self.instance}-{self.try_number}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which people, and later tries, find the job."""
        named = {"airflow/dag": self.dag_id, "airflow/task": self.task_id, "airflow/run": self.run_id}
        return {key: _label(value) for key, value in named.items()} | {INSTANCE_LABEL: self.instance}


def submit_for(
    task: TaskTry, client: Client, job: Packable, labels: Mapping[str, str] | None = None, **given: Any
) -> JobHandle:
    """Return the job of an earlier try that is still at work, else submit one. `given` is passed on to `submit`."""
    for found in client.jobs(labels={INSTANCE_LABEL: task.instance}, ended=False):
        if found.state not in _ENDING:
            return client.job(found.jid)
    return client.submit(job, labels={**(labels or {}), **task.labels}, idempotency_key=task.idempotency_key, **given)


def last_output(handle: JobHandle) -> str:
    """Return the last lines that the job's code has printed."""
    return "".join(part.text for part in OutputReader(handle).tail(handle.attempts(), _LAST_LINES))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _label(value: str) -> str:
    """Return the value of a label: an id that is too long ends with a digest, so that no two ids become one."""
    text = "".join(char if char.isprintable() and char != "," else "_" for char in value)
    if len(text) <= MAX_LABEL:
        return text
    return f"{text[: MAX_LABEL - _DIGEST - 1]}-{_digest(value)[:_DIGEST]}"
