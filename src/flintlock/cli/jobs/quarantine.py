"""`flintlock quarantine list|show|retry|drop`."""

from __future__ import annotations

from pathlib import Path

import click

from flintlock.cli.settings import cluster_options, connect, json_option, print_json
from flintlock.cli.tables import aligned, moment


@click.group()
def quarantine() -> None:
    """Inspect jobs that are stored and cannot be run; put them back, or give them up."""


@quarantine.command("list")
@json_option
@cluster_options
def list_quarantined(*, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """List the quarantined jobs."""
    with connect(urls, conf, state_dir) as client:
        found = client.quarantined()
    if as_json:
        print_json({"jobs": found})
        return
    if not found:
        click.echo("no job is quarantined")
        return
    rows = [(job.jid, job.name or "-", moment(job.since), job.reason.partition("\n")[0]) for job in found]
    for line in aligned(("JOB", "NAME", "SINCE", "REASON"), rows):
        click.echo(line)


@quarantine.command()
@click.argument("job")
@json_option
@cluster_options
def show(*, job: str, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Show one quarantined job, with what is kept of it. JOB is its id."""
    with connect(urls, conf, state_dir) as client:
        found = client.job(job).quarantined()
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.jid}  {found.name or '(its name is unknown)'}")
    click.echo(f"  quarantined  {moment(found.since)}")
    click.echo(f"  reason       {found.reason}")
    click.echo(f"  graph        {'can be read' if found.readable else 'cannot be read'}")
    for name in found.artifacts:
        click.echo(f"  artifact     {name}")
    for directory in found.directories:
        click.echo(f"  directory    {directory}")


@quarantine.command()
@click.argument("job")
@cluster_options
def retry(*, job: str, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Put a job back, under its own id; it continues from its recorded progress. JOB is its id."""
    with connect(urls, conf, state_dir) as client:
        client.job(job).retry_quarantined()
    click.echo(f"{job} runs again")


@quarantine.command()
@click.argument("job")
@cluster_options
def drop(*, job: str, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Give a job up; its records, files and artifacts are removed. JOB is its id."""
    with connect(urls, conf, state_dir) as client:
        client.job(job).drop_quarantined()
    click.echo(f"{job} was dropped")
