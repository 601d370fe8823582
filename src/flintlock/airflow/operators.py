"""An operator that runs a job on a Flintlock cluster."""

# pyright: basic, reportMissingImports=false
# Airflow is not installed where Flintlock is checked.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from flintlock.airflow.task_jobs import TaskTry, last_output, submit_for
from flintlock.airflow.triggers import FlintlockJobTrigger
from flintlock.client.authoring.targets import read_target
from flintlock.client.connection.client import connect
from flintlock.model.ids import JobId


class FlintlockRunOperator(BaseOperator):
    """Runs a target of `flintlock run` and fails if the job fails. Its XCom is the job's id.

    `target` and `args` are those of the command line, `job_params` the job's parameters. The cluster is the one at
    `url`, else the one that is configured where Airflow's workers and its triggerer run. While the job runs the task is
    deferred; with `deferrable=False` it keeps its worker. The job of an earlier try that still runs is waited for.
    Killing the task cancels the job.
    """

    template_fields: Sequence[str] = ("target", "args", "job_params", "job_name", "url")
    ui_color = "#ffe9d6"

    def __init__(
        self,
        *,
        target: str,
        args: Sequence[str] = (),
        job_params: Mapping[str, object] | None = None,
        job_name: str | None = None,
        labels: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        parallelism: int | None = None,
        url: str | Sequence[str] = (),
        as_module: bool = False,
        deferrable: bool = True,
        poll_interval_s: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.args = list(args)
        self.job_params = dict(job_params or {})
        self.job_name = job_name
        self.labels = dict(labels or {})
        self.config = dict(config or {})
        self.parallelism = parallelism
        self.url = url
        self.as_module = as_module
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self._job_id: str | None = None  # of the job that this process has submitted

    def execute(self, context: Any) -> str:
        """Submit the job, or find it, and wait for its end."""
        ti = context["ti"]
        task = TaskTry(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
        )
        with connect(self.url) as client:
            handle = submit_for(
                task,
                client,
                read_target(self.target, self.args, as_module=self.as_module),
                params=self.job_params or None,
                name=self.job_name,
                labels=self.labels,
                config=self.config or None,
                parallelism=self.parallelism,
            )
            self._job_id = handle.id
            self.log.info("job %s: %s/jobs/%s", handle.id, client.http.urls[0], handle.id)
            if not self.deferrable:
                handle.wait(progress=False)
        if self.deferrable:
            trigger = FlintlockJobTrigger(handle.id, self.url, self.poll_interval_s)
            self.defer(trigger=trigger, method_name="execute_complete")
        return self.execute_complete(context, {"job_id": handle.id})

    def execute_complete(self, context: Any, event: Mapping[str, str]) -> str:  # noqa: ARG002 Airflow's signature
        """Log what the job's code has printed last and return the job's id. Raises JobFailed, JobCanceled."""
        with connect(self.url) as client:
            handle = client.job(JobId(event["job_id"]))
            if output := last_output(handle):
                self.log.info("the last output of job %s:\n%s", handle.id, output)
            handle.require_success()
        return event["job_id"]

    def on_kill(self) -> None:
        """Cancel the job."""
        if self._job_id is not None:
            with connect(self.url) as client:
                client.job(JobId(self._job_id)).cancel()
