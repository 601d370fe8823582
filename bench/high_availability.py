"""What a change of leader costs where very many jobs are stored."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import msgspec
import psutil
from tests.cluster.processes import until
from tests.zookeeper.servers import running_ensemble

from bench.figures import Bound, Figure
from flintlock.config.configuration import Configuration
from flintlock.entrypoints.high_availability import ha_services
from flintlock.entrypoints.process import ProcessSettings
from flintlock.ha.protocols import HaServices, Stores
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.jobs import StoredJob
from flintlock.model.operations import Result, Sql
from flintlock.rpc.client import RpcChannels
from flintlock.security.cluster_secret import open_cluster_secret
from flintlock.testing import rest_requests
from flintlock.testing.members import member_of

JOBS: Final = 10_000
_WIDTH: Final = 200
_LIMIT_S: Final = 180.0


def recovery() -> Iterator[Figure]:
    """Start a JobManager over 10,000 stored jobs that wait for slots; wait until it leads and lists all of them."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        yield from _recovery("embedded", Path(scratch), {})
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, running_ensemble(Path(scratch, "zk")) as zk:
        settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": zk.quorum,
            "high-availability.cluster-id": uuid.uuid4().hex,
            "high-availability.storageDir": f"{scratch}/ha",
        }
        yield from _recovery("zookeeper", Path(scratch), settings)


def _recovery(store: str, scratch: Path, settings: dict[str, str]) -> Iterator[Figure]:
    state_dir = scratch / "state"
    state_dir.mkdir()
    configuration = Configuration(settings)
    secret = open_cluster_secret(configuration, state_dir)
    asyncio.run(_fill(ProcessSettings(state_dir=state_dir, configuration=configuration, secret=secret)))
    flags = [part for key, value in {**settings, "rest.port": "0"}.items() for part in ("-D", f"{key}={value}")]
    command = [sys.executable, "-m", "flintlock.entrypoints.jobmanager", "--state-dir", str(state_dir), *flags]
    begun = time.perf_counter()
    with (state_dir / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            _await_listed(state_dir, process)
            elapsed = time.perf_counter() - begun
            peak_mb = _peak_mb(process.pid)
        finally:
            process.kill()  # it has nothing to finish
    yield Figure(
        name=f"recovery-{store}", what=f"{JOBS:,} stored jobs, {store}: JobManager started -> leads and lists all",
        value=elapsed, unit="s", bound=Bound(limit=15), against="absolute; start of the process included",
    )  # fmt: skip
    yield Figure(
        name=f"recovery-{store}-memory", what="the same, largest RSS", value=peak_mb, unit="MB",
        bound=Bound(limit=600), against="absolute",
    )  # fmt: skip


async def _fill(settings: ProcessSettings) -> None:
    """Store the jobs as a leader that dies right after it has acknowledged them would."""
    async with (
        RpcChannels(security=member_of()) as channels,
        ha_services(settings, _now_ms, channels) as ha,
        _leading(ha) as stores,
    ):
        waiting = iter(range(JOBS))

        async def put() -> None:
            for number in waiting:
                await stores.graphs.put(_job(number))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WIDTH):
                tasks.create_task(put())


@asynccontextmanager
async def _leading(ha: HaServices) -> AsyncGenerator[Stores]:
    async for term in ha.election.terms():
        async with term as token:
            yield ha.stores(token)
        return


def _job(number: int) -> StoredJob:
    job_id = JobId(f"{uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex}")
    one, rows = StepName("one"), StepName("rows")
    graph = JobGraph(
        job_id=job_id,
        name=f"job {number}",
        vertices=(
            JobVertex(id=vertex_id(job_id, one), name=one, operation=Sql(query="SELECT 1 AS one")),
            JobVertex(id=vertex_id(job_id, rows), name=rows, operation=Result(), inputs=(one,)),
        ),
        parallelism=1,
    )
    return StoredJob(graph=graph, submitted_ms=_now_ms(), idempotency_key=f"key-{number}", digest="digest")


def _await_listed(state_dir: Path, process: subprocess.Popen[bytes]) -> None:
    def listed() -> bool:
        if process.poll() is not None:
            raise RuntimeError((state_dir / "out").read_text()[-2000:])
        return _listed(state_dir) == JOBS

    until("all jobs in the listing", listed, _LIMIT_S)


def _listed(state_dir: Path) -> int:
    try:
        url = str(msgspec.json.decode((state_dir / "cluster.json").read_bytes())["rest"])
        if not rest_requests.get(f"{url}/readyz", timeout=_LIMIT_S).is_success:
            return -1
        return len(rest_requests.get(f"{url}/jobs/overview", timeout=_LIMIT_S).raise_for_status().json()["jobs"])
    except (OSError, httpx.HTTPError, msgspec.DecodeError):
        return -1


def _peak_mb(pid: int) -> float:
    """Return the largest RSS that the process ever had, where the system reports it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return psutil.Process(pid).memory_info().rss / 1e6
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
