"""`flintlock rerun`: runs an earlier job again, from what the cluster stores of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from flintlock.cli.jobs.run import TerminalHooks, print_end
from flintlock.cli.settings import cluster_options, connect, job_argument, json_option
from flintlock.config.files import split_assignment
from flintlock.model.states import JobStatus

#: How the plan names a step that is a program.
_PROGRAM: Final = "Program: "


@click.command()
@job_argument
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Change a parameter; repeatable.")
@click.option("--from-failed", is_flag=True, help="Run only what had not finished when JOB failed.")
@click.option("-d", "--detached", is_flag=True, help="Print the new job's id and leave the job running.")
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@json_option
@cluster_options
def rerun(
    *,
    job: str, params: tuple[str, ...], from_failed: bool, detached: bool, verbose: bool, quiet: bool, as_json: bool,
    urls: tuple[str, ...], conf: Path | None, state_dir: str | None,
) -> int:  # fmt: skip
    """Run JOB again, as a new job, and show its progress until it ends.

    The new job has the steps, files, configuration and parameters of the earlier one, except for what --param changes.
    JOB is an id, the beginning of one, a name (its latest job), or latest.

    With --from-failed, regions that had finished when JOB failed are not run again: their blocking results are used,
    as long as the cluster keeps them (execution.failed-jobs.results-retention), and what they have published stays.
    Results that are missing or changed are computed again.
    """
    from flintlock.api.jobs import PlanResponse
    from flintlock.client.display.console import SilentDisplay, display_for, error_console
    from flintlock.client.running import follow_job

    if from_failed and params:
        raise click.UsageError("--param cannot be used with --from-failed: what had finished has the old parameters")
    given = dict(split_assignment(text, "--param") for text in params)
    hooks = TerminalHooks(detached=detached, quiet=quiet, as_json=as_json)
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job).rerun(params=given, from_failed=from_failed)
        hooks.submitted(handle)
        if detached:
            return 0
        nodes = client.http.get(f"/jobs/{handle.id}/plan", PlanResponse).plan.nodes
        program = any(node.description.startswith(_PROGRAM) for node in nodes)
        output = sys.stdout if program and not as_json else sys.stderr  # as `flintlock run` does
        display = SilentDisplay(output) if quiet else display_for(error_console(), output)
        end = follow_job(handle, display, hooks.interrupted)
        if end is None:
            return 0
        finished = end.status is JobStatus.FINISHED
        tables = [handle.result(name).table for name in handle.results()] if finished else []
    print_end(end, tables, elapsed_s=hooks.elapsed_s, verbose=verbose, quiet=quiet, as_json=as_json)
    return 0 if finished else 1
