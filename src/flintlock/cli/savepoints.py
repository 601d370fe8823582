"""`flintlock savepoint`, `stop`."""

from __future__ import annotations

from pathlib import Path

import click

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


def _inspect(place: Path, *, as_json: bool) -> None:
    from flintlock.model.savepoints import MANIFEST, decode_manifest

    try:
        manifest = decode_manifest((place / MANIFEST).read_bytes())
    except OSError as error:
        raise NotFound(f"{place} is not a savepoint: it has no file {MANIFEST} that can be read") from error
    if as_json:
        print_json(manifest)
        return
    size = sum(file.size for file in manifest.files)
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
    if len(rows) > 1:
        click.echo("each query is consistent in itself; they were saved one after another")
