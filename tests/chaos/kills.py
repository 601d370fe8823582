"""Kills under a streaming job, of each kind in turn, at random moments: no row may be lost or doubled.

`python -m tests.chaos.kills --kills 100 --seed 7`; the seed is printed first, and repeats the same moments.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

import psutil
from tests.chaos.deployment import Deployment, Member, embedded_deployment
from tests.chaos.pipelines import LIMIT_S, Pipeline
from tests.cluster.processes import until

#: Leases that are short, but long enough for a machine on which everything runs at once.
SETTINGS: Final = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "8 s",
    "high-availability.embedded.silence-timeout": "3 s",
    "high-availability.recovery-time": "3 s",
}


class Kill(Enum):
    """What is killed, or frozen until its work runs elsewhere; those that take an engine are followed by others."""

    RUNNER = "SIGKILL runners"
    JOBMANAGER = "SIGKILL JobManager"
    FROZEN_TASKMANAGER = "SIGSTOP TaskManager"
    RESCALING_JOBMANAGER = "SIGKILL JobManager while the job is rescaled"
    FROZEN_MACHINE = "SIGSTOP TaskManager with its engine, its runners and its watchdog"
    UPGRADING_JOBMANAGER = "SIGKILL JobManager while the job is upgraded"
    ENGINE = "SIGKILL engine"
    TASKMANAGER = "SIGKILL TaskManager"


class StreamingKills:
    """One cluster with one streaming job, and what is done to them."""

    def __init__(
        self, deployment: Deployment, pipeline: Pipeline, random: Random, report: Callable[[str], None]
    ) -> None:
        self._deployment: Final = deployment
        self._pipeline: Final = pipeline
        self._random: Final = random
        self._report: Final = report
        self.problems: Final[list[str]] = []

    def inflict(self, number: int, kill: Kill) -> None:
        """Wait for some batches, then kill; return when the job has restarted where it had to."""
        started = time.monotonic()
        self._await_batches(self._random.randint(1, 3))
        Event().wait(self._random.uniform(0.0, 0.6))  # any moment of a batch
        before, begun = self._attempts(), time.monotonic()
        match kill:
            case Kill.JOBMANAGER:
                self._change_leader()
            case Kill.RESCALING_JOBMANAGER:
                self._rescale()
            case Kill.UPGRADING_JOBMANAGER:
                self._upgrade()
            case _:
                self._hit(kill)
                until(f"a restart after {kill.value}", lambda: self._attempts() > before, LIMIT_S)
        waited_s, elapsed_s = begun - started, time.monotonic() - begun
        batches = f"batches {self._pipeline.batches()} after {waited_s:.1f} s"
        self._report(f"{number:3} {kill.value}: {batches}, back after {elapsed_s:.1f} s")

    def _await_batches(self, count: int) -> None:
        files, upserted = self._pipeline.batches()

        def passed() -> bool:
            now = self._pipeline.batches()
            return now[0] >= files + count and now[1] >= upserted + count

        until(f"{count} batches of each query", passed, LIMIT_S)

    def _regions(self) -> list[dict[str, Any]]:
        return self._deployment.get(f"/jobs/{self._pipeline.id}/attempts").json().get("regions", [])

    def _attempts(self) -> int:
        """Return how many attempts there were."""
        return sum(len(region["attempts"]) + region.get("omitted", 0) for region in self._regions())

    def _busy(self) -> list[Member]:
        """Return the TaskManagers that run the two queries now, each once for each query; none if one does not run."""
        members = {member.name.rpartition("-")[2]: member for member in self._deployment.taskmanagers}
        running = [
            region["attempts"][-1]["taskmanager-id"]
            for region in self._regions()
            if region["attempts"] and region["attempts"][-1]["state"] == "RUNNING"
        ]
        found = [members[name.rpartition("-")[2]] for name in running]
        return found if len(found) == 2 else []

    def _hit(self, kill: Kill) -> None:
        if kill in (Kill.FROZEN_TASKMANAGER, Kill.FROZEN_MACHINE):  # another one has to take its work
            until("all slots", lambda: self._deployment.serves(self._deployment.slots), LIMIT_S)
        busy = until("two running attempts", self._busy, LIMIT_S)
        victim = self._random.choice(busy)
        match kill:
            case Kill.RUNNER:
                _kill_one(lambda: _runners(victim)[0])
                for runner in _runners(victim):  # which of them have tasks, and which wait for one, does not show
                    with suppress(psutil.NoSuchProcess):
                        runner.kill()
            case Kill.ENGINE:
                _kill_one(lambda: _children(victim, "org.apache.spark.deploy.SparkSubmit")[0])
            case Kill.TASKMANAGER:
                victim.kill()
                victim.start()
            case Kill.FROZEN_TASKMANAGER | Kill.FROZEN_MACHINE:
                self._freeze(victim, whole=kill is Kill.FROZEN_MACHINE)
            case Kill.JOBMANAGER | Kill.RESCALING_JOBMANAGER | Kill.UPGRADING_JOBMANAGER:
                raise AssertionError(f"{kill} hits no TaskManager")

    def _change_leader(self) -> None:
        """Kill the leader: the next one has to leave the attempts alone, which go on with their next batches."""
        until("two running attempts", self._busy, LIMIT_S)
        before, committed = self._latest_attempts(), self._pipeline.committed()
        self._kill_leader()
        until("two running attempts", self._busy, LIMIT_S)

        def gone_on() -> dict[str, set[int]] | None:
            now = self._pipeline.committed()
            return now if all(max(now[uid]) > max(batches) for uid, batches in committed.items()) else None

        since = until("one more committed batch of each query", gone_on, LIMIT_S)
        after = self._latest_attempts()
        if after != before:
            self.problems.append(f"the attempts were {before}, and are {after} under the next leader")
        for uid, batches in since.items():
            latest = sorted(batch for batch in batches if batch >= max(committed[uid]))
            if latest != [*range(max(committed[uid]), max(batches) + 1)]:
                self.problems.append(f"{uid} went on with the batches {latest} under the next leader")

    def _latest_attempts(self) -> list[tuple[int, str]]:
        """Return the number and the TaskManager of the latest attempt at each region."""
        latest = [region["attempts"][-1] for region in self._regions() if region["attempts"]]
        return [(attempt["attempt"], attempt["taskmanager-id"]) for attempt in latest]

    def _rescale(self) -> None:
        """Give the state other partitions, and kill the leader at any moment of that: the next one completes it."""
        partitions = self._random.choice([each for each in (1, 2, 3) if each != self._pipeline.partitions()])
        trigger = self._pipeline.rescale(partitions)
        self._kill_leader(after_s=self._random.uniform(0.0, 3.0))
        failure = self._pipeline.rescaled(trigger)
        if failure or self._pipeline.partitions() != partitions:
            self.problems.append(f"{self._pipeline.partitions()} partitions, not {partitions}: {failure}")

    def _upgrade(self) -> None:
        """Let a job take the place of this one, and kill the leader at any moment of that: the next one goes on."""
        former = self._pipeline.upgrade()
        self._kill_leader(after_s=self._random.uniform(0.0, 3.0))
        wrong = self._pipeline.upgraded(former)
        if wrong:
            self.problems.append(wrong)

    def _freeze(self, victim: Member, *, whole: bool) -> None:
        """Freeze a TaskManager until all of the job runs elsewhere; then it continues where it was."""
        assert victim.process is not None
        process = psutil.Process(victim.process.pid)
        family = [process, *(process.children(recursive=True) if whole else [])]
        _signal(family, signal.SIGSTOP)
        try:
            until(
                "the work of the frozen TaskManager elsewhere",
                lambda: victim not in (self._busy() or [victim]),
                LIMIT_S,
            )
            self._await_batches(1)
        finally:
            _signal(reversed(family) if self._random.random() < 0.5 else family, signal.SIGCONT)
        victim.restore()

    def _kill_leader(self, after_s: float = 0.0) -> None:
        until("a standby", lambda: self._deployment.answering() == len(self._deployment.jobmanagers), LIMIT_S)
        Event().wait(after_s)
        leader, epoch = until("a leader", self._deployment.leader, LIMIT_S)
        leader.kill()
        until("the next leader", lambda: self._deployment.listing(epoch, besides=leader) is not None, LIMIT_S)
        leader.restore()


def kill_under_load(home: Path, *, seed: int, kills: int, report: Callable[[str], None]) -> list[str]:
    """Run a streaming job, kill what it needs, and return what is wrong with its rows."""
    random, started = Random(f"kills-{seed}"), time.monotonic()
    deployment = embedded_deployment(home, 2, taskmanagers=2, settings=SETTINGS)
    with ExitStack() as leaving:
        leaving.callback(deployment.close)
        for member in deployment.members:
            leaving.callback(member.end)
            member.start()
        until("a leader", deployment.leader, LIMIT_S)
        until("all slots", lambda: deployment.serves(deployment.slots), LIMIT_S)
        report(f"cluster: {time.monotonic() - started:.1f} s")
        pipeline = leaving.enter_context(Pipeline(deployment, "pipeline"))
        pipeline.submit()
        cluster = StreamingKills(deployment, pipeline, random, report)
        for number in range(kills):
            cluster.inflict(number + 1, [*Kill][number % len(Kill)])
        problems = [*cluster.problems, *pipeline.finish()]
        report(f"all rows processed: {time.monotonic() - started:.1f} s in all")
        return problems


def _children(member: Member, text: str) -> list[psutil.Process]:
    """Return the descendants of a member with a text in their command, the oldest first."""
    found: list[psutil.Process] = []
    assert member.process is not None
    for child in psutil.Process(member.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if text in " ".join(child.cmdline()):
                found.append(child)
    return sorted(found, key=lambda child: child.create_time())


def _runners(member: Member) -> list[psutil.Process]:
    """Return the runners of a TaskManager, the oldest first, with and without tasks."""
    templates = _children(member, "flintlock.spark.runner.template")
    runners = [child for template in templates for child in template.children()]
    return sorted(runners, key=lambda runner: runner.create_time())


def _kill_one(find: Callable[[], psutil.Process]) -> None:
    """SIGKILL a process; those that are looked at may end meanwhile."""

    def killed() -> bool:
        try:
            find().kill()
        except (psutil.NoSuchProcess, IndexError):
            return False
        return True

    until("a process to kill", killed)


def _signal(processes: Any, number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def main() -> int:
    """Kill; the exit code is 1 if a row was lost or doubled, or something did not happen in time."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    chosen = parser.parse_args()
    _print(f"seed {chosen.seed}: {chosen.kills} kills under a streaming job")
    scratch = Path(tempfile.mkdtemp(prefix="flintlock-kills-"))
    try:
        problems = kill_under_load(scratch / "kills", seed=chosen.seed, kills=chosen.kills, report=_print)
    except (TimeoutError, AssertionError, OSError) as error:
        problems = [str(error) or repr(error)]
    for problem in problems:
        _print(f"BROKEN: {problem}")
    if problems:
        _print(f"seed {chosen.seed} is BROKEN; the processes' logs are in {scratch}")
        return 1
    shutil.rmtree(scratch, ignore_errors=True)
    _print(f"seed {chosen.seed} is kept: after {chosen.kills} kills every row is there once")
    return 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
