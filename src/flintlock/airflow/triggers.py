"""A trigger that fires when a job has ended: the task needs no worker meanwhile."""

# pyright: basic, reportMissingImports=false
# Airflow is not installed where Flintlock is checked.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from flintlock.client.connection.client import connect
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import JobId


class FlintlockJobTrigger(BaseTrigger):
    """Fires once when the job has ended, or the cluster refuses to say so; waits while no cluster answers.

    A user who clears the task, or marks it, cancels the job; a restart of the triggerer does not.
    """

    def __init__(self, job_id: str, url: str | Sequence[str] = (), poll_interval_s: float = 5.0) -> None:
        super().__init__()
        self.job_id = job_id
        self.url = url
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores of it."""
        given = {"job_id": self.job_id, "url": self.url, "poll_interval_s": self.poll_interval_s}
        return "flintlock.airflow.triggers.FlintlockJobTrigger", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the job's end."""
        while not await asyncio.to_thread(self._ended):  # noqa: ASYNC110 the job ends elsewhere
            await asyncio.sleep(self.poll_interval_s)
        yield TriggerEvent({"job_id": self.job_id})

    async def on_kill(self) -> None:
        """Cancel the job."""
        await asyncio.to_thread(self._cancel)

    def _ended(self) -> bool:
        try:
            with connect(self.url) as client:
                return client.job(JobId(self.job_id)).status.globally_terminal
        except Unavailable as error:
            self.log.warning("job %s: %s", self.job_id, error)
            return False
        except FlintlockError:
            return True  # the operator asks again, and reports it

    def _cancel(self) -> None:
        with connect(self.url) as client:
            client.job(JobId(self.job_id)).cancel()
