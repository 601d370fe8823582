"""What the command line starts a Spark engine of its own for.

`flintlock info --analyze`: what every step's rows look like. The graph's functions are called, as they are when a job
runs, and build DataFrames; no Spark job of ours is started. `flintlock cluster prepare`: the class archive.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flintlock.config.files import LoadedConfiguration, cache_directory
from flintlock.config.options import TM_ENGINE_MEMORY
from flintlock.model.errors import FlintlockError

if TYPE_CHECKING:
    from flintlock.client.authoring.artifact_files import Content
    from flintlock.client.authoring.package import JobPackage
    from flintlock.model.jobgraph import JobGraph
    from flintlock.spark.runner_messages import Analyzed

_CORES: Final = 2


def analyze(package: JobPackage, settings: LoadedConfiguration) -> Analyzed:
    """Return each step's schema up to the first step that fails, with its failure. Starts and ends an engine."""
    with tempfile.TemporaryDirectory(prefix="flintlock-analyze-") as directory:
        places = _laid_out(package.files, Path(directory) / "artifacts")
        return asyncio.run(_analyzed(package.graph, places, settings, Path(directory)))


async def _analyzed(
    graph: JobGraph, artifacts: Mapping[str, str], settings: LoadedConfiguration, directory: Path
) -> Analyzed:
    from flintlock.spark.engine.handle import EngineSettings, SparkEngine
    from flintlock.spark.engine.java import find_java
    from flintlock.spark.runner.pool import PoolSettings, runner_pool

    engine = EngineSettings(
        java=find_java(os.environ),
        scratch_dir=str(directory / "engine"),
        log_file=str(directory / "engine.log"),
        run_dir=str(directory / "run"),
        cores=_CORES,
        heap_bytes=settings.configuration.get(TM_ENGINE_MEMORY),
        conf=settings.configuration.spark(),
        working_dir=os.getcwd(),  # noqa: PTH109 relative paths mean what they mean to the user
    )
    pool = PoolSettings(scratch_dir=str(directory / "runners"), run_dir=str(directory / "run"), slots=_CORES, warm=0)

    try:
        async with runner_pool(pool) as runners, SparkEngine.start(engine) as running:
            runners.use_engine(running)
            return await runners.analyze(graph, str(directory / "output.log"), artifacts)
    except BaseExceptionGroup as group:  # the pool's scope wraps what happens in it
        causes = [error for error in group.exceptions if isinstance(error, FlintlockError)]
        raise causes[0] if causes else group from group


async def record_archive(settings: LoadedConfiguration) -> Path:
    """Write the class archive that this user's engines start from; return its file."""
    from flintlock.spark.engine.handle import EngineSettings, SparkEngine
    from flintlock.spark.engine.java import find_java

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
                heap_bytes=settings.configuration.get(TM_ENGINE_MEMORY),
                conf=settings.configuration.spark(),
                archive_dir=str(archive_dir),
            )
        )


def _laid_out(files: Mapping[str, Content], directory: Path) -> dict[str, str]:
    """Return the file of each artifact: the user's own, or one written here."""
    directory.mkdir()
    places: dict[str, str] = {}
    for name, content in files.items():
        place = content if isinstance(content, Path) else directory / name
        if isinstance(content, bytes):
            place.write_bytes(content)
        places[name] = str(place)
    return places
