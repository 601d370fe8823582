"""`flintlock.run`: from a Job to its result in one call, in a script or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from flintlock.client.authoring.package import Overrides, Packable
from flintlock.client.clusters.discovery import chosen_cluster, standing_cluster
from flintlock.client.connection.results import ResultHandle
from flintlock.client.display.console import (
    SilentDisplay,
    display_for,
    error_console,
    output_console,
    output_stream,
    result_table,
)
from flintlock.client.display.following import OutputReader, follow
from flintlock.config.files import load, state_directory
from flintlock.model.ids import JobId
from flintlock.model.operations import ConfigValue, config_text


class JobRun(Struct, frozen=True, kw_only=True):
    """A job that has finished, with its results."""

    job_id: JobId
    name: str
    results: dict[str, ResultHandle]

    def result(self, name: str) -> ResultHandle:
        """Return a result by its step's name. Raises KeyError that names those that are there."""
        if name not in self.results:
            raise KeyError(f"no result {name!r}; there are: {', '.join(self.results) or 'none'}")
        return self.results[name]


def run(
    job: Packable,
    *,
    url: str | Sequence[str] = (),
    local: bool = False,
    state_dir: str | Path | None = None,
    params: Mapping[str, object] | None = None,
    parallelism: int | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    quiet: bool = False,
) -> JobRun:
    """Run the job to its end, show its progress and print its results; the same as `flintlock run file.py:job`.

    It runs on the cluster at `url`, else on the configured one, else on the live one of the state directory, else on an
    embedded one for the time of the job (`local` forces that). Raises JobFailed with the structured failure,
    JobCanceled, Invalid for a job that cannot run, Unavailable if a named cluster does not answer. Interrupting it
    (Ctrl-C) cancels the job.
    """
    settings = load()
    overrides = Overrides(
        parallelism=parallelism,
        params={name: str(value) for name, value in (params or {}).items()},
        config={key: config_text(value) for key, value in (config or {}).items()},
    )
    urls = [url] if isinstance(url, str) else list(url)
    directory = state_directory(settings, state_dir)
    local = local or standing_cluster(settings, urls, directory) is None
    if local and not quiet:
        sys.stderr.write("starting an embedded cluster (its Spark engine needs a moment) …\n")
    with chosen_cluster(settings, urls, directory, local=local) as chosen:
        package = chosen.client.package(job, overrides)
        handle = chosen.client.submit(package)
        display = SilentDisplay() if quiet else display_for(error_console(), output_stream(package.graph))
        try:
            with closing(display):
                follow(handle, display, OutputReader(handle), check=chosen.embedded.check if chosen.embedded else None)
        except KeyboardInterrupt:
            handle.cancel()
            raise
        handle.require_success()
        results = {name: handle.result(name).fetch() for name in handle.results()}
    if not quiet:
        for result in results.values():
            output_console().print(result_table(result.table))
    return JobRun(job_id=handle.id, name=handle.name, results=results)
