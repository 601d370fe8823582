"""What TLS between members costs: a heartbeat and a deployment, with it and without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from bench.figures import Bound, Figure
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, StepName, TaskManagerId
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Result, Sql
from flintlock.model.regions import regions_of
from flintlock.model.slots import Heartbeat, HeartbeatAnswer
from flintlock.model.tasks import DeploymentAnswer, DeployTask
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.security.certificates import AUTHORITY, issue, make_authority
from flintlock.security.tls_files import TlsFiles
from flintlock.testing.members import member_of

_CALLS: Final = 500
_ROUNDS: Final = 5
_JOB: Final = JobId("ab" * 16)


class _Answering:
    """Answers every call of both gateways at once."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def answer(*_: object) -> object:
            return DeploymentAnswer() if name == "deploy" else HeartbeatAnswer(known=True)

        return answer


def member_tls() -> Iterator[Figure]:
    """Measure both calls alternately, and compare the medians of the rounds."""
    with TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        directory = Path(scratch)
        make_authority(directory)
        tls = TlsFiles(issue(directory, ["localhost"], directory / "member"), directory / AUTHORITY)
        bare, protected = member_of(), RpcSecurity(signer=member_of().signer, tls=tls)
        rounds = [(asyncio.run(_measure(bare)), asyncio.run(_measure(protected))) for _ in range(_ROUNDS)]
    for index, call in enumerate(("heartbeat", "deployment")):
        ratios = [secured[index] / plain[index] for plain, secured in rounds]
        without, with_tls = (median(each[side][index] for each in rounds) * 1e6 for side in (0, 1))
        yield Figure(
            name=f"member-tls-{call}",
            what=f"a {call} between members, p50: time with mutual TLS / without",
            value=median(ratios), low=min(ratios), high=max(ratios), samples=_ROUNDS * _CALLS, unit="x",
            bound=Bound(limit=1.3),
            against=f"with {with_tls:.0f}, without {without:.0f} µs, in turns",
        )  # fmt: skip


async def _measure(security: RpcSecurity) -> tuple[float, float]:
    """Return the medians of a heartbeat and of a deployment, in seconds."""
    server = RpcServer("127.0.0.1", security=security)
    server.serve(ResourceManagerGateway, _Answering())
    server.serve(TaskManagerGateway, _Answering())
    order = _deployment()
    beat = Heartbeat(id=TaskManagerId("tm"), instance=InstanceId("i"), metrics={f"m{n}": 1.0 for n in range(7)})
    async with server, RpcChannels(security=security) as channels:
        resource_manager = channels.connect(ResourceManagerGateway, server.address)
        task_manager = channels.connect(TaskManagerGateway, server.address)
        return (
            await _median_s(lambda: resource_manager.heartbeat(beat)),
            await _median_s(lambda: task_manager.deploy(order)),
        )


async def _median_s(call: Callable[[], Awaitable[object]]) -> float:
    taken: list[float] = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return median(taken[_CALLS // 5 :])  # the first ones connect and warm up


def _deployment() -> DeployTask:
    """A graph of forty steps."""
    steps = [StepName(f"step-{n}") for n in range(40)]
    graph = JobGraph(
        job_id=_JOB,
        name="forty steps",
        vertices=(
            *(
                JobVertex(
                    id=vertex_id(_JOB, name),
                    name=name,
                    operation=Sql(query=f"SELECT * FROM {steps[n - 1]}" if n else "SELECT 1"),  # noqa: S608 - not run
                    inputs=(steps[n - 1],) if n else (),
                )
                for n, name in enumerate(steps)
            ),
            JobVertex(id=vertex_id(_JOB, "rows"), name=StepName("rows"), operation=Result(), inputs=(steps[-1],)),
        ),
    )
    attempt = AttemptId(job_id=_JOB, region=RegionId(0), attempt=0)
    return DeployTask(attempt=attempt, graph=graph, region=regions_of(graph)[0], slots=(0,))
