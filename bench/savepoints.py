"""How fast a savepoint is made of 1 GB of state: where it links, and where it copies, compared with `cp -r`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.figures import Bound, Figure, ratios, spread
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, JobType, JobVertex, vertex_id
from flintlock.model.operations import Sink, Source
from flintlock.model.streaming.streams import StreamQuery
from flintlock.savepoints.writing import write_savepoint

SIZE: Final = 1 << 30
FILE: Final = 16 << 20  # of RocksDB's SST files
PARTITIONS: Final = 4
PAIRS: Final = 5
UID: Final = "counts-v1"
_JOB: Final = JobId("5" * 32)
_OTHER_FILE_SYSTEM: Final = Path("/dev/shm")  # noqa: S108 - files that are read from memory, on Linux


def savepoint_of_state() -> Iterator[Figure]:
    """Make savepoints of one checkpoint, on its own file system and on another one, in turn with `cp -r`."""
    with (
        tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch,
        tempfile.TemporaryDirectory(prefix="flintlock-bench-", dir=_OTHER_FILE_SYSTEM) as elsewhere,
    ):
        linked = [save(make_checkpoint(Path(scratch)), Path(scratch), number) for number in range(PAIRS)]
        shutil.rmtree(Path(scratch, "checkpoints"))
        other = make_checkpoint(Path(elsewhere))
        mine: list[float] = []
        theirs: list[float] = []
        for number in range(PAIRS + 1):
            for plain in (True, False) if number % 2 else (False, True):
                taken = _copy(other, Path(scratch)) if plain else save(other, Path(scratch), number)
                if number:  # the first pair warms up
                    (theirs if plain else mine).append(taken)
    yield Figure(
        name="savepoint-linked", what="savepoint of 1 GB of state, by hard links", value=spread(linked).median,
        low=spread(linked).low, high=spread(linked).high, samples=PAIRS, unit="s", bound=Bound(limit=2.0),
        against="absolute; every file is read, hashed and made durable",
    )  # fmt: skip
    speed = ratios(theirs, mine)
    yield Figure(
        name="savepoint-copied", what="savepoint of 1 GB of state, by copies, speed of `cp -r`", value=speed.median,
        low=speed.low, high=speed.high, samples=speed.samples, unit="x", bound=Bound(limit=0.7, at_least=True),
        against=f"`cp -r` and `sync` {spread(theirs).median:.2f} s, a savepoint {spread(mine).median:.2f} s, "
        "interleaved; from memory to the disk",
    )  # fmt: skip


def make_checkpoint(root: Path, size: int = SIZE, file_size: int = FILE) -> Path:
    """Return the directory of a job's checkpoints, with one query and so much state, made at the first call."""
    checkpoints = root / "checkpoints"
    query = checkpoints / UID
    if query.exists():
        return checkpoints
    entry = [
        "v1",
        json.dumps({"conf": {"spark.sql.shuffle.partitions": str(PARTITIONS)}}),
        json.dumps({"logOffset": 0}),
    ]
    for name, text in (("metadata", json.dumps({"id": "1"})), ("offsets/0", "\n".join(entry)), ("commits/0", "v1\n{}")):
        (query / name).parent.mkdir(parents=True, exist_ok=True)
        (query / name).write_text(text)
    noise = os.urandom(file_size)
    for number in range(PARTITIONS):
        partition = query / "state" / "0" / str(number)
        (partition / "SSTs").mkdir(parents=True)
        names = [f"{file:06}-{uuid.uuid4()}.sst" for file in range(number, size // file_size, PARTITIONS)]
        for name in names:
            (partition / "SSTs" / name).write_bytes(noise)
        _write_snapshot(partition / "1.zip", names, file_size)
    subprocess.run(["/bin/sync", "-f", str(checkpoints)], check=True)
    return checkpoints


def _write_snapshot(path: Path, names: list[str], file_size: int) -> None:
    """Write a snapshot of RocksDB that names these SST files: what is saved is compared with it."""
    files = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": file_size} for name in names]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps({'sstFiles': files, 'numKeys': 1})}")


def save(checkpoints: Path, target: Path, number: int, size: int = SIZE) -> float:
    """Return what it takes to make a savepoint of so much state, which is removed again."""
    parent = target / "savepoints"
    begun = time.perf_counter()
    place = write_savepoint(
        _job(), checkpoints=checkpoints, parent=parent, name="savepoint", spark="4.3.0", now_ms=0, unique=str(number)
    )
    taken = time.perf_counter() - begun
    if sum(path.stat().st_size for path in place.rglob("*.sst")) != size:
        raise RuntimeError("the savepoint has another size than the state")
    shutil.rmtree(parent)
    return taken


def _copy(checkpoints: Path, target: Path) -> float:
    """Return what `cp -r` takes, with a `sync` of the copy: a savepoint is durable, too."""
    begun = time.perf_counter()
    subprocess.run(["/bin/cp", "-r", str(checkpoints), str(target / "copy")], check=True)
    subprocess.run(["/bin/sync", *(str(path) for path in (target / "copy").rglob("*"))], check=True)
    taken = time.perf_counter() - begun
    shutil.rmtree(target / "copy")
    return taken


def _job() -> JobGraph:
    source = Source(format="json", paths=("/in",), schema="n LONG", stream=True)
    return JobGraph(
        job_id=_JOB,
        name="saved",
        job_type=JobType.STREAMING,
        vertices=(
            JobVertex(id=vertex_id(_JOB, "events"), name=StepName("events"), operation=source),
            JobVertex(
                id=vertex_id(_JOB, "counts"),
                name=StepName("counts"),
                operation=Sink(format="noop"),
                inputs=(StepName("events"),),
                query=StreamQuery(uid=UID),
            ),
        ),
    )
