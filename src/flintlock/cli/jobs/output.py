"""`flintlock logs`, `threads` and `result`: what a job prints, does and returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from msgspec import structs

from flintlock.cli.settings import (
    cluster_options,
    connect,
    job_argument,
    json_option,
    optional_job_argument,
    print_json,
)
from flintlock.cli.tables import moment_of
from flintlock.model.errors import Conflict, NotFound, Refused
from flintlock.model.states import ExecutionState

if TYPE_CHECKING:
    from flintlock.api.jobs import AttemptInfo, JobAttempts, LogPart
    from flintlock.client.connection.client import Client
    from flintlock.client.connection.results import ResultHandle

_TICK_S: Final = 0.5
FORMATS: Final = ("table", "csv", "json", "jsonl", "parquet", "arrow")
F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@optional_job_argument
@click.option("-f", "--follow", "follows", is_flag=True, help="Follow the output until the job has ended.")
@click.option("-n", "--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(0), metavar="N", help="Only of this attempt, counted from 0.")
@click.option("--region", type=click.IntRange(0), metavar="N", help="Only of this region, counted from 0.")
@click.option("--since", metavar="TIME",
              help="Only of attempts that ran since then: a duration such as 2h, or a date and time.")  # fmt: skip
@click.option(
    "--taskmanager",
    metavar="ID",
    help="Print the log of a TaskManager instead of a job's output: its id, the beginning or the end of one.",
)
@click.option(
    "--engine", is_flag=True, help="With --taskmanager: the log of its Spark engine, with the rows of console sinks."
)
@json_option
@cluster_options
def logs(
    *,
    job: str | None, taskmanager: str | None, engine: bool,
    follows: bool, tail: int | None, attempt: int | None, region: int | None, since: str | None,
    as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None,
) -> None:  # fmt: skip
    """Print the output of a job's code, attempt by attempt, or the log of a TaskManager (at most its last 4 MiB).

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    if (job is None) == (taskmanager is None):
        raise Refused("name either a job, or a TaskManager with --taskmanager")
    if taskmanager is not None:
        if follows or as_json or attempt is not None or region is not None or since is not None:
            raise Refused("of a job's options only --tail can be used with --taskmanager")
        with connect(urls, conf, state_dir) as client:
            _print_log(client.task_manager_log(_task_manager(client, taskmanager), engine=engine), tail)
        return
    if engine or job is None:
        raise Refused("--engine prints the log of a TaskManager's engine: name the TaskManager with --taskmanager")
    if follows and as_json:
        raise Refused("--json prints one complete document: it cannot follow the job")
    from flintlock.client.display.following import OutputReader

    selection = AttemptSelection(attempt, region, 0 if since is None else moment_of(since, "--since").timestamp())
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        reader, printer, parts = OutputReader(handle), Printer(), list[object]()
        while True:
            whole = handle.attempts()
            state = selection.of(whole)
            found = reader.new(state) if tail is None else reader.tail(state, tail)
            for part in found:
                parts.append(part) if as_json else printer.show(part, state)
            if not follows or state.status.globally_terminal:
                break
            tail = None  # what comes next is complete
            handle.ended_within(_TICK_S)
    if as_json:
        print_json({"logs": parts})
    elif not printer.has_printed:
        _require_selected(whole, selection)
        click.echo(f"no output of {_described(whole, selection)}", err=True)


def _task_manager(client: Client, text: str) -> str:
    """Return the id of the one TaskManager that the text names. Raises NotFound that lists the ids."""
    ids = [entry.id for entry in client.task_managers()]
    found = [name for name in ids if text == name] or [name for name in ids if name.startswith(text)]
    found = found or [name for name in ids if name.endswith(text)]
    if len(found) == 1:
        return found[0]
    matches = f"matches {len(found)} TaskManagers" if found else "is no TaskManager"
    raise NotFound(f"{text!r} {matches}; there are: {', '.join(found or ids) or 'none'}")


def _print_log(text: str, tail: int | None) -> None:
    lines = text.splitlines(keepends=True)
    sys.stdout.write("".join(lines if tail is None else lines[-tail:]))


class AttemptSelection(NamedTuple):
    """Which attempts of a job are looked at: None and 0 stand for all."""

    attempt: int | None = None
    region: int | None = None
    since_s: float = 0.0

    def of(self, job: JobAttempts) -> JobAttempts:
        """Return the job with the selected attempts only."""
        regions = [
            structs.replace(region, attempts=tuple(item for item in region.attempts if self._has(item)))
            for region in job.regions
            if self.region in (None, region.id)
        ]
        return structs.replace(job, regions=tuple(regions))

    def _has(self, attempt: AttemptInfo) -> bool:
        ended_ms = max(attempt.timestamps.values(), default=0) if attempt.state.terminal else None
        return self.attempt in (None, attempt.attempt) and (ended_ms is None or ended_ms >= self.since_s * 1000)


def _require_selected(job: JobAttempts, selection: AttemptSelection) -> None:
    """Raise NotFound with those that the job has, if it has no region or no attempt with the selected number."""
    regions = [region.id for region in job.regions]
    attempts = sorted({item.attempt for region in job.regions for item in region.attempts})
    for kind, number, existing in (("region", selection.region, regions), ("attempt", selection.attempt, attempts)):
        if number is not None and number not in existing:
            have = ", ".join(map(str, existing)) or "none yet"
            raise NotFound(f"job {job.jobid} has no {kind} {number}; it has {have}, counted from 0")


def _described(job: JobAttempts, selection: AttemptSelection) -> str:
    return f"job {job.jobid}" if selection == AttemptSelection() else f"the selected attempts of job {job.jobid}"


@click.command()
@job_argument
@json_option
@cluster_options
def threads(*, job: str, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Print the stack of every Python thread of each running task.

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        regions = handle.attempts().regions
        dumps: list[dict[str, object]] = []
        for number, region in enumerate(regions):
            if region.latest is None or region.latest.state is not ExecutionState.RUNNING:
                continue
            step = region.steps[0]
            subtask = sum(step in earlier.steps for earlier in regions[:number])
            try:
                found = handle.threads(step, subtask)
            except Conflict as error:  # it has ended meanwhile
                click.echo(error.public, err=True)
                continue
            dumps.append({"region": region.id, "attempt": region.latest.attempt, "threadInfos": found})
            if not as_json:
                click.echo(f"==> region {region.id} ({', '.join(region.steps)}), attempt {region.latest.attempt} <==")
                for thread in found:
                    click.echo(thread.stringified_thread_info)
    if as_json:
        print_json({"attempts": dumps})
    elif not dumps:
        raise Conflict(f"no task of job {handle.id} runs now")


def result_options(command: F) -> F:
    """Add what says how rows are printed: `--format` and `-o`."""
    command = click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                           help="Write the rows to a file, whose name says the format: .csv, .json, .jsonl, .parquet"
                           " or .arrow.")(command)  # fmt: skip
    return click.option("--format", "form", type=click.Choice(FORMATS), metavar="FORMAT",
                        help=f"Print the rows as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")(command)  # fmt: skip


@click.command()
@job_argument
@click.argument("name", required=False)
@result_options
@json_option
@cluster_options
def result(
    *,
    job: str, name: str | None, form: str | None, output: Path | None, as_json: bool, urls: tuple[str, ...],
    conf: Path | None, state_dir: str | None,
) -> None:  # fmt: skip
    """Print the result NAME of a job (not needed if it has one only).

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        found = handle.result(name)
        print_result(found, "json" if as_json and form is None else form, output)


def print_result(result: ResultHandle, form: str | None, output: Path | None, *, title: bool = True) -> None:
    """Print or write a result. Without a format: as the name of the file says, else as a table."""
    from flintlock.client.display.result_files import ResultFormat, encoded, format_of, write_file

    chosen = ResultFormat(form) if form is not None else ResultFormat.TABLE if output is None else format_of(output)
    if output is not None:
        write_file(output, encoded(result, chosen))
    elif chosen is ResultFormat.TABLE:
        from flintlock.client.display.console import output_console, result_table

        output_console().print(result_table(result.table, title=title))
    elif chosen.binary and sys.stdout.isatty():
        raise Refused(f"{chosen.value} is not text: write it to a file with -o")
    else:
        sys.stdout.buffer.write(encoded(result, chosen))
        sys.stdout.buffer.flush()


class Printer:
    """Writes pieces of output; with several attempts, a header names the attempt wherever it changes."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None  # the attempt whose piece was written last

    @property
    def has_printed(self) -> bool:
        """Whether there was anything to write."""
        return self._last is not None

    def show(self, part: LogPart, job: JobAttempts) -> None:
        """Write one piece."""
        whose = (part.region, part.attempt)
        if whose != self._last and (self._last is not None or sum(len(region.attempts) for region in job.regions) > 1):
            steps = next((", ".join(region.steps) for region in job.regions if region.id == part.region), "")
            click.echo(f"==> region {part.region} ({steps}), attempt {part.attempt} on {part.taskmanager_id} <==")
        self._last = whose
        sys.stdout.write(part.text)
        sys.stdout.flush()
