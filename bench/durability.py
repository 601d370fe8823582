"""What durable files cost: a publication with and without making local files durable, interleaved."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from bench.figures import Bound, Figure, ratios, spread
from flintlock.model.files.staging import PREFIX
from flintlock.model.ids import StepName
from flintlock.model.operations import SaveMode
from flintlock.spark.engine.handle import SparkEngine
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.messages import EngineSettings
from flintlock.spark.engine.publication.publish_plan import StagedSink, sink_files

FILES: Final = 1000
FILE_BYTES: Final = 64 << 10
PAIRS: Final = 10
WARM_UPS: Final = 2


def durable_publication() -> Iterator[Figure]:
    """A thousand staged files, from the end of Spark's work to the success marker: listed, then published."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:  # not in /tmp, which may be in memory
        mine, theirs = asyncio.run(_measure(Path(scratch)))
    quotient = ratios(mine, theirs)
    yield Figure(
        name="durable-publication",
        what=f"publication of {FILES:,} files on a local disk, durable, of the same with execution.sync-files=false",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.5),
        against=f"{spread(theirs).median:.2f} s without, {spread(mine).median:.2f} s with, interleaved; "
        f"files of {FILE_BYTES >> 10} kB",
    )  # fmt: skip


async def _measure(scratch: Path) -> tuple[list[float], list[float]]:
    times: dict[bool, list[float]] = {True: [], False: []}
    async with AsyncExitStack() as engines:
        by_durability = {
            durable: await engines.enter_async_context(SparkEngine.start(_settings(scratch, durable=durable)))
            for durable in times
        }
        for number in range(WARM_UPS + PAIRS):
            for durable in (True, False) if number % 2 else (False, True):
                elapsed_s = await _publish(by_durability[durable], scratch / "target")
                if number >= WARM_UPS:
                    times[durable].append(elapsed_s)
    return times[True], times[False]


async def _publish(engine: SparkEngine, target: Path) -> float:
    """Write the files as Spark leaves them, and return the seconds until they are published."""
    staging = target / f"{PREFIX}{'0' * 32}-0-0"
    staging.mkdir(parents=True)
    content = os.urandom(FILE_BYTES)
    for number in range(FILES):
        (staging / f"part-{number:05}.parquet").write_bytes(content)
    sink = StagedSink(step=StepName("out"), target=str(target), staging=str(staging), mode=SaveMode.APPEND)
    begun = time.perf_counter()
    listing = await engine.list_files(sink.staging, with_sizes=True, durable=True)
    async for _ in engine.publish((sink_files(sink, listing.files, ()),)):
        pass
    elapsed_s = time.perf_counter() - begun
    await asyncio.to_thread(_check_and_remove, target)
    return elapsed_s


def _check_and_remove(target: Path) -> None:
    if len(list(target.glob("part-*"))) != FILES or not (target / "_SUCCESS").exists():
        raise RuntimeError("not all files were published")
    shutil.rmtree(target)
    os.sync()  # so that no measurement waits for what another has written


def _settings(scratch: Path, *, durable: bool) -> EngineSettings:
    place = scratch / f"engine-{durable}"
    place.mkdir()
    return EngineSettings(
        java=find_java(os.environ),
        scratch_dir=str(place / "scratch"),
        log_file=str(place / "engine.log"),
        run_dir=str(place / "run"),
        sync_files=durable,
    )
