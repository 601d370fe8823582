"""What a change of leader costs: how soon the next one lists every job, and whether running work notices."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.chaos.stage import SESSION_S, Member, Stage, embedded_stage, running_stage, zookeeper_stage
from tests.chaos.work import Streams, submit
from tests.cluster.processes import until
from tests.zookeeper.servers import running_ensemble

from bench.figures import Bound, Figure, Spread, ratios, spread
from bench.load import Load, closed_loop, http

STREAMS: Final = 5
ENDED: Final = 3
STORED: Final = 1000
KILLS: Final = 7
FREEZES: Final = 3
SMALL: Final[dict[str, Any]] = {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}}


def leader_change() -> Iterator[Figure]:
    """Kill, terminate and freeze the leader over a three-node ensemble while five streaming scripts run."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        with running_stage(Path(scratch, "bench"), taskmanagers=1, slots=STREAMS + 1) as stage:
            streams = Streams(stage, STREAMS)
            streams.submit()
            until("the streams", lambda: streams.progressed(3), 300)
            ended = [_submitted(stage, f"ended-{number}", 1) for number in range(ENDED)]
            until("the ended jobs", lambda: _states(stage, ended) == {"FINISHED"}, 120)
            known = {*streams.ids, *ended}
            killed = spread([_change(stage, known, Member.kill) for _ in range(KILLS)])
            yield _figure("leader-killed", f"leader SIGKILL -> next one lists all jobs, {STREAMS} streams run", killed,
                          1.5, flink=f"4.1 s with a session timeout of {SESSION_S} s")  # fmt: skip
            terminated = spread([_change(stage, known, Member.terminate) for _ in range(KILLS)])
            yield _figure("leader-terminated", "leader SIGTERM -> the same", terminated, 1.0)
            frozen = spread([_change(stage, known, Member.freeze) for _ in range(FREEZES)])
            yield _figure("leader-frozen", f"leader SIGSTOP -> the same, session timeout {SESSION_S} s", frozen,
                          SESSION_S + 2.0)  # fmt: skip
            known |= _store(stage)
            with_many = spread([_change(stage, known, Member.kill) for _ in range(KILLS)])
            yield Figure(
                name="leader-killed-1000", what=f"leader SIGKILL with {STORED:,} stored jobs, in addition",
                value=with_many.median - killed.median, unit="s", samples=with_many.samples, bound=Bound(limit=3.0),
                against=f"without them {killed.median:.2f} s, with them {with_many.median:.2f} s",
            )  # fmt: skip
            forgotten = [job for job in ended if stage.get(f"/jobs/{job}").status_code != 200]
            restarts = sum(_attempts(stage, job) - 1 for job in streams.ids)
            streams.end()
            until("the streams' end", lambda: _states(stage, streams.ids) == {"FINISHED"}, 120)
            problems = streams.problems()
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
            stage = zookeeper_stage(home, ensemble, jobmanagers=1, taskmanagers=0, slots=0)
            _started(stage, cleanup)
            _load(stage, 100, clients=16)
            load = _load(stage, 1500, clients=16)
    yield Figure(
        name="ensemble-acknowledgements", what="durable acknowledgements through a 3-node ensemble, 16 clients",
        value=load.rate, unit="a second", bound=Bound(limit=150, at_least=True), samples=1500,
        against="absolute; servers, JobManager and clients share two cores, servers do not flush to the disk",
    )  # fmt: skip


def _pair(state_dir: Path, cleanup: ExitStack) -> Stage:
    pair = embedded_stage(state_dir, 2)
    _started(pair, cleanup)
    return pair


def _started(stage: Stage, cleanup: ExitStack) -> None:
    for member in stage.jobmanagers:
        cleanup.callback(member.end)
        member.start()
    until("a leader", stage.leader, 60)
    _await_members(stage)


def _change(stage: Stage, known: set[str], hurt: Callable[[Member], None]) -> float:
    """Hurt the leader; return after how long the next one lists all that is known. Mends it afterwards."""
    leader, epoch = until("a leader", stage.leader, 60)
    begun = time.perf_counter()
    hurt(leader)
    until("the next leader", lambda: known <= (stage.listing(epoch, besides=leader) or {}).keys(), 60, pause_s=0.01)
    elapsed = time.perf_counter() - begun
    if hurt is Member.terminate:
        leader.end()
    leader.mend()
    _await_members(stage)
    return elapsed


def _await_members(stage: Stage) -> None:
    """Wait until every JobManager answers: standbys then know who leads, and watch it."""
    until("every JobManager", lambda: stage.answering() == len(stage.jobmanagers), 60)


def _submitted(stage: Stage, name: str, parallelism: int) -> str:
    return submit(stage, {"name": name, "parallelism": parallelism, "steps": SMALL}, name, {})


def _store(stage: Stage) -> set[str]:
    """Store jobs that wait for more slots than are free."""
    before = set(until("the listing", stage.listing))
    _load(stage, STORED, clients=8, parallelism=STREAMS + 1)
    return set(until("the listing", stage.listing)) - before


def _load(stage: Stage, count: int, *, clients: int, parallelism: int = 1) -> Load:
    body = msgspec.json.encode({"name": "waits", "parallelism": parallelism, "steps": SMALL})
    leader = until("a leader", stage.leader)[0]
    request = http("POST", "/jobs", body)
    load = closed_loop(_port(leader), lambda _: request, connections=clients, requests=count, status=202)
    if load.failures:
        raise RuntimeError(f"{load.failures} submissions were not acknowledged")
    return load


def _port(member: Member) -> int:
    return int(member.url.rpartition(":")[2])


def _states(stage: Stage, jobs: list[str]) -> set[str | None]:
    states = stage.listing() or {}
    return {states.get(job) for job in jobs}


def _attempts(stage: Stage, job: str) -> int:
    return len(stage.get(f"/jobs/{job}/attempts").json()["regions"][0]["attempts"])


def _figure(name: str, what: str, found: Spread, limit_s: float, flink: str = "") -> Figure:
    return Figure(
        name=name, what=what, value=found.median, low=found.low, high=found.high, samples=found.samples, unit="s",
        bound=Bound(limit=limit_s), against="absolute", flink=flink,
    )  # fmt: skip
