"""What a change of leader costs: how soon the next one lists every job, and whether running work notices."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.chaos.deployment import (
    SESSION_S,
    Deployment,
    Member,
    embedded_deployment,
    running_deployment,
    zookeeper_deployment,
)
from tests.chaos.work import Streams, submit
from tests.cluster.processes import until
from tests.zookeeper.servers import running_ensemble

from bench.figures import Bound, Figure, Spread, ratios, spread
from bench.load import Load, closed_loop, http
from bench.member_delays import record_loop_delays

STREAMS: Final = 5
ENDED: Final = 3
STORED: Final = 1000
KILLS: Final = 7
FREEZES: Final = 3
SMALL: Final[dict[str, Any]] = {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}}


def leader_change() -> Iterator[Figure]:
    """Kill, terminate and freeze the leader over a three-node ensemble while five streaming scripts run."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        with running_deployment(Path(scratch, "bench"), taskmanagers=1, slots=STREAMS + 1) as deployment:
            streams = Streams(deployment, STREAMS)
            streams.submit()
            until("the streams", lambda: streams.progressed(3), 300)
            ended = [_submitted(deployment, f"ended-{number}", 1) for number in range(ENDED)]
            until("the ended jobs", lambda: _states(deployment, ended) == {"FINISHED"}, 120)
            known = {*streams.ids, *ended}
            killed = spread([_change(deployment, known, Member.kill) for _ in range(KILLS)])
            yield _figure("leader-killed", f"leader SIGKILL -> next one lists all jobs, {STREAMS} streams run", killed,
                          1.5, flink=f"4.1 s with a session timeout of {SESSION_S} s")  # fmt: skip
            terminated = spread([_change(deployment, known, Member.terminate) for _ in range(KILLS)])
            yield _figure("leader-terminated", "leader SIGTERM -> the same", terminated, 1.0)
            frozen = spread([_change(deployment, known, Member.freeze) for _ in range(FREEZES)])
            yield _figure("leader-frozen", f"leader SIGSTOP -> the same, session timeout {SESSION_S} s", frozen,
                          SESSION_S + 2.0)  # fmt: skip
            known |= _store(deployment)
            with_many = spread([_change(deployment, known, Member.kill) for _ in range(KILLS)])
            yield Figure(
                name="leader-killed-1000", what=f"leader SIGKILL with {STORED:,} stored jobs, in addition",
                value=with_many.median - killed.median, unit="s", samples=with_many.samples, bound=Bound(limit=3.0),
                against=f"without them {killed.median:.2f} s, with them {with_many.median:.2f} s",
            )  # fmt: skip
            forgotten = [job for job in ended if deployment.get(f"/jobs/{job}").status_code != 200]
            restarts = sum(_attempts(deployment, job) - 1 for job in streams.ids)
            streams.end()
            until("the streams' end", lambda: _states(deployment, streams.ids) == {"FINISHED"}, 120)
            problems = streams.problems()
            record_loop_delays(deployment)
        changes = 3 * KILLS + FREEZES
    yield Figure(
        name="streams-disturbed", what="restarts, and batches missing or repeated, of those streams",
        value=restarts + len(problems), unit="", bound=Bound(limit=0), samples=changes, note="; ".join(problems),
        against=f"{changes} changes of leader", flink="every task restarted, 1.2-18 s gap, 4-44 s of work redone",
    )  # fmt: skip
    yield Figure(
        name="ended-forgotten", what="ended jobs that the last leader does not know", value=len(forgotten), unit="",
        bound=Bound(limit=0), samples=ENDED, against=f"{changes} changes of leader", flink="all forgotten",
    )  # fmt: skip


def embedded_change() -> Iterator[Figure]:
    """Kill the leader of two JobManagers that share a state directory."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as cleanup:
        pair = _pair(Path(scratch, "state"), cleanup)
        job = {submit(pair, {"name": "waits", "steps": SMALL}, "waits", {})}
        killed = spread([_change(pair, job, Member.kill) for _ in range(KILLS)])
        record_loop_delays(pair)
    yield _figure("embedded-leader-killed", "leader SIGKILL, embedded store -> standby lists its job", killed, 1.0)


def standby_reads() -> Iterator[Figure]:
    """GET /jobs/overview of 60 jobs at the leader and at a standby, in turn."""
    request = http("GET", "/jobs/overview")
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as cleanup:
        pair = _pair(Path(scratch, "state"), cleanup)
        for number in range(60):
            submit(pair, {"name": f"waits-{number}", "steps": SMALL}, f"waits-{number}", {})
        leader = until("a leader", pair.leader)[0]
        ports = {member is leader: _port(member) for member in pair.jobmanagers}
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(24):
            led = number % 2 == 0
            load = closed_loop(ports[led], lambda _: request, connections=8, requests=2000, status=200)
            if number >= 4:
                times[led].append(load.seconds)
        record_loop_delays(pair)
    quotient = ratios(times[True], times[False])
    yield Figure(
        name="standby-reads", what="GET /jobs/overview on a standby, throughput of the leader's", value=quotient.median,
        low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x", flink="0.12 x",
        bound=Bound(limit=0.5, at_least=True),
        against=f"leader {2000 / spread(times[True]).median:.0f} a second, 8 connections, interleaved",
    )  # fmt: skip


def ensemble_acknowledgements() -> Iterator[Figure]:
    """Submissions of sixteen clients to a JobManager over a three-node ensemble, without TaskManagers."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        home = Path(scratch, "bench")
        with running_ensemble(home / "ensemble", 3) as ensemble, ExitStack() as cleanup:
            deployment = zookeeper_deployment(home, ensemble, jobmanagers=1, taskmanagers=0, slots=0)
            _started(deployment, cleanup)
            _load(deployment, 100, clients=16)
            load = _load(deployment, 1500, clients=16)
            record_loop_delays(deployment)
    yield Figure(
        name="ensemble-acknowledgements", what="durable acknowledgements through a 3-node ensemble, 16 clients",
        value=load.rate, unit="a second", bound=Bound(limit=150, at_least=True), samples=1500,
        against="absolute; servers, JobManager and clients share two cores, servers do not flush to the disk",
    )  # fmt: skip


def _pair(state_dir: Path, cleanup: ExitStack) -> Deployment:
    pair = embedded_deployment(state_dir, 2)
    _started(pair, cleanup)
    return pair


def _started(deployment: Deployment, cleanup: ExitStack) -> None:
    cleanup.callback(deployment.close)
    for member in deployment.jobmanagers:
        cleanup.callback(member.end)
        member.start()
    until("a leader", deployment.leader, 60)
    _await_members(deployment)


def _change(deployment: Deployment, known: set[str], fault: Callable[[Member], None]) -> float:
    """Inflict a fault on the leader; return how long the next one takes to list all known jobs. Restores it."""
    leader, epoch = until("a leader", deployment.leader, 60)
    record_loop_delays(deployment)
    begun = time.perf_counter()
    fault(leader)
    until(
        "the next leader", lambda: known <= (deployment.listing(epoch, besides=leader) or {}).keys(), 60, pause_s=0.01
    )
    elapsed = time.perf_counter() - begun
    if fault is Member.terminate:
        leader.end()
    leader.restore()
    _await_members(deployment)
    return elapsed


def _await_members(deployment: Deployment) -> None:
    """Wait until every JobManager answers: standbys then know who leads, and watch it."""
    until("every JobManager", lambda: deployment.answering() == len(deployment.jobmanagers), 60)


def _submitted(deployment: Deployment, name: str, parallelism: int) -> str:
    return submit(deployment, {"name": name, "parallelism": parallelism, "steps": SMALL}, name, {})


def _store(deployment: Deployment) -> set[str]:
    """Store jobs that wait for more slots than are free."""
    before = set(until("the listing", deployment.listing))
    _load(deployment, STORED, clients=8, parallelism=STREAMS + 1)
    return set(until("the listing", deployment.listing)) - before


def _load(deployment: Deployment, count: int, *, clients: int, parallelism: int = 1) -> Load:
    body = msgspec.json.encode({"name": "waits", "parallelism": parallelism, "steps": SMALL})
    leader = until("a leader", deployment.leader)[0]
    request = http("POST", "/jobs", body)
    load = closed_loop(_port(leader), lambda _: request, connections=clients, requests=count, status=202)
    if load.failures:
        raise RuntimeError(f"{load.failures} submissions were not acknowledged")
    return load


def _port(member: Member) -> int:
    return int(member.url.rpartition(":")[2])


def _states(deployment: Deployment, jobs: list[str]) -> set[str | None]:
    states = deployment.listing() or {}
    return {states.get(job) for job in jobs}


def _attempts(deployment: Deployment, job: str) -> int:
    return len(deployment.get(f"/jobs/{job}/attempts").json()["regions"][0]["attempts"])


def _figure(name: str, what: str, found: Spread, limit_s: float, flink: str = "") -> Figure:
    return Figure(
        name=name, what=what, value=found.median, low=found.low, high=found.high, samples=found.samples, unit="s",
        bound=Bound(limit=limit_s), against="absolute", flink=flink,
    )  # fmt: skip
