"""`flintlock savepoint`, `stop`, `upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from flintlock.cli.jobs.run import job_options, overrides_of
from flintlock.cli.settings import (
    cluster_options,
    connect,
    job_argument,
    json_option,
    optional_job_argument,
    print_json,
)
from flintlock.cli.tables import aligned, moment
from flintlock.model.errors import NotFound, Refused


@click.command()
@optional_job_argument
@click.argument("directory", required=False)
@click.option("-d", "--dispose", "disposed", metavar="PATH", help="Remove this savepoint.")
@json_option
@cluster_options
def savepoint(*, job: str | None, directory: str | None, disposed: str | None, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Save where the queries of a streaming job are, while it runs, and print where the savepoint is.

    JOB is an id, the beginning of one, a name, or NAME@latest. DIRECTORY is one of the cluster, by default
    state.savepoints.dir. `flintlock savepoint inspect PATH` shows what is in a savepoint on this machine;
    -d removes one on the cluster.
    """
    if job == "inspect" and directory is not None:
        _inspect(Path(directory), as_json=as_json)
        return
    if (job is None) == (disposed is None):
        raise Refused("give a job to save, or the savepoint to remove with -d")
    with connect(urls, conf, state_dir) as client:
        if job is None:
            client.dispose_savepoint(str(disposed))
            return
        handle = client.find(job, unambiguous=True)
        location = handle.savepoint(directory)
    if as_json:
        print_json({"jobid": handle.id, "location": location})
    else:
        click.echo(location)


@click.command()
@job_argument
@click.option("-p", "--savepoint-path", "directory", metavar="DIR", help="Where the savepoint is made, on the cluster.")
@json_option
@cluster_options
def stop(*, job: str, directory: str | None, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """End a streaming job with a savepoint, and print where that is. JOB is as for `flintlock savepoint`.

    Each query completes the batch that it has begun, and nothing after it; then the job is FINISHED.
    """
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job, unambiguous=True)
        location = handle.stop(directory)
    if as_json:
        print_json({"jobid": handle.id, "location": location})
    else:
        click.echo(location)


@click.command()
@job_argument
@click.argument("target")
@click.option("-n", "--allow-non-restored-state", is_flag=True,
              help="Drop the state of queries that TARGET does not have.")  # fmt: skip
@job_options
@json_option
@cluster_options
def upgrade(*, job: str, target: str, allow_non_restored_state: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None, **given: Any) -> None:  # fmt: skip # noqa: E501
    """Have TARGET take the place of a streaming job that runs, from where that is, and print the new job's id.

    JOB is as for `flintlock savepoint`, TARGET a job graph as for `flintlock run`. What does not fit the state of the
    job is refused, and the job is not changed; else it is stopped with a savepoint, which TARGET begins from. If TARGET
    fails before its first batch, the former job runs again. The new job has the name of the former one.
    """
    from flintlock.client.authoring.targets import ProgramJob, read_target

    overrides = overrides_of(**given)
    graph = read_target(target, (), connect=not overrides.needs_driver)
    if isinstance(graph, ProgramJob):
        raise Refused(f"{target} is a program: only job graphs can take the place of a streaming job")
    with connect(urls, conf, state_dir) as client:
        former = client.find(job, unambiguous=True)
        new = client.upgrade(former, graph, overrides=overrides, allow_non_restored_state=allow_non_restored_state)
    if as_json:
        print_json({"jobid": new.id, "upgrade-of": former.id})
    else:
        click.echo(new.id)


def _inspect(place: Path, *, as_json: bool) -> None:
    from flintlock.model.streaming.savepoints import MANIFEST, QUERIES, decode_manifest
    from flintlock.savepoints.inspecting import saved_states
    from flintlock.savepoints.kept_checkpoints import kept_checkpoints, read_checkpoints

    queries = place / QUERIES
    try:
        kept = None if (place / MANIFEST).exists() else kept_checkpoints(place)
        if kept is not None:
            manifest, queries = read_checkpoints(kept), kept
        else:
            manifest = decode_manifest((place / MANIFEST).read_bytes())
    except OSError as error:
        raise NotFound(f"{place} is not a savepoint: it has no file {MANIFEST} that can be read") from error
    states = saved_states(queries, manifest)
    if as_json:
        print_json({**msgspec.to_builtins(manifest), "states": msgspec.to_builtins(states)})
        return
    size = sum(file.size for file in manifest.files)
    if kept is not None:
        click.echo(f"checkpoints that job {manifest.job_id} has left")
        click.echo(f"the latest of {moment(manifest.created_ms)}; {len(manifest.files)} files, {size} bytes")
    else:
        click.echo(f"savepoint of {manifest.job_name}  {manifest.job_id}")
        click.echo(
            f"made {moment(manifest.created_ms)} with Spark {manifest.spark}; {len(manifest.files)} files, {size} bytes"
        )
    rows = [
        (
            query.uid,
            query.step,
            str(query.batch),
            "-" if query.sink_batch is None else str(query.sink_batch),
            str(query.partitions or "-"),
            " ".join(query.offsets),
        )
        for query in manifest.queries
    ]
    for line in aligned(("UID", "STEP", "BATCH", "SINK BATCH", "STATE PARTITIONS", "OFFSETS"), rows):
        click.echo(line)
    if states:
        click.echo("")
        found = [
            (
                state.uid,
                str(state.operator),
                str(state.partitions),
                "-" if state.rows is None else str(state.rows),
                str(state.bytes),
                " | ".join(state.schemas),
            )
            for state in states
        ]
        for line in aligned(("UID", "OPERATOR", "PARTITIONS", "ROWS", "BYTES", "STATE (keys | values)"), found):
            click.echo(line)
    if len(rows) > 1:
        click.echo("each query is consistent in itself; they were saved one after another")
