"""Spark engines that run for one command and end with it.

`flintlock info --analyze` reads the schema of every step's rows. The graph's functions are called, as they are when a
job runs, and build DataFrames; no Spark job of ours is started. `flintlock cluster prepare` writes the class archive.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.config.files import cache_directory
from flintlock.config.options import TM_ENGINE_MEMORY
from flintlock.model.errors import FlintlockError
from flintlock.model.jobgraph import JobGraph
from flintlock.spark.engine.handle import EngineSettings, SparkEngine
from flintlock.spark.engine.java import find_java
from flintlock.spark.runner.pool import PoolSettings, runner_pool
from flintlock.spark.runner_messages import Analyzed

_CORES: Final = 2


def analyze(graph: JobGraph, files: Mapping[str, bytes | Path], configuration: Configuration) -> Analyzed:
    """Return each step's schema up to the first step that fails, with its failure. Starts and ends an engine.

    `files` are the graph's artifacts by name: a path of the user's, or the content.
    """
    with tempfile.TemporaryDirectory(prefix="flintlock-analyze-") as directory:
        artifacts = _write_artifacts(files, Path(directory) / "artifacts")
        return asyncio.run(_analyze(graph, artifacts, configuration, Path(directory)))


async def _analyze(
    graph: JobGraph, artifacts: Mapping[str, str], configuration: Configuration, directory: Path
) -> Analyzed:
    engine = EngineSettings(
        java=find_java(os.environ),
        scratch_dir=str(directory / "engine"),
        log_file=str(directory / "engine.log"),
        run_dir=str(directory / "run"),
        cores=_CORES,
        heap_bytes=configuration.get(TM_ENGINE_MEMORY),
        conf=configuration.spark(),
        working_dir=os.getcwd(),  # noqa: PTH109 relative paths mean what they mean to the user
    )
    pool = PoolSettings(scratch_dir=str(directory / "runners"), run_dir=str(directory / "run"), slots=_CORES, warm=0)

    try:
        async with runner_pool(pool) as runners, SparkEngine.start(engine) as running:
            runners.use_engine(running)
            return await runners.analyze(graph, str(directory / "output.log"), artifacts)
    except BaseExceptionGroup as group:  # the scope of the pool wraps the errors that are raised in it
        causes = [error for error in group.exceptions if isinstance(error, FlintlockError)]
        raise causes[0] if causes else group from group


async def record_archive(configuration: Configuration) -> Path:
    """Write the class archive that this user's engines start from; return its file."""
    archive_dir = cache_directory()
    archive_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flintlock-prepare-") as directory:
        return await SparkEngine.record_archive(
            EngineSettings(
                java=find_java(os.environ),
                scratch_dir=f"{directory}/engine",
                log_file=str(archive_dir / "prepare.log"),
                run_dir=f"{directory}/run",
                cores=_CORES,
                heap_bytes=configuration.get(TM_ENGINE_MEMORY),
                conf=configuration.spark(),
                archive_dir=str(archive_dir),
            )
        )


def _write_artifacts(files: Mapping[str, bytes | Path], directory: Path) -> dict[str, str]:
    """Return the path of each artifact: the user's own file, or one that is written here."""
    directory.mkdir()
    paths: dict[str, str] = {}
    for name, content in files.items():
        path = content if isinstance(content, Path) else directory / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        paths[name] = str(path)
    return paths
