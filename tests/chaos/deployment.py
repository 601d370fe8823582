"""The cluster under test: JobManagers, TaskManagers and ZooKeeper servers, which can be killed, frozen and restored.

Every member has a state directory of its own, as if it were on a machine of its own; they share the ensemble and the
storage directory. JobManagers keep their ports when they are started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import msgspec
from tests.cluster.processes import ROOT, until
from tests.zookeeper.servers import Ensemble, Server, free_ports, running_ensemble

from flintlock.testing import rest_requests
from flintlock.testing.rest_requests import OWN_CREDENTIAL

SESSION_S: Final = 4
#: To make one takes as long as a change of leader's parts.
_CLIENT: Final = httpx.Client(auth=OWN_CREDENTIAL, timeout=2, trust_env=False)


class Member:
    """One JobManager or TaskManager: killed, frozen, woken up, started again."""

    def __init__(self, kind: str, index: int, state_dir: Path, settings: Mapping[str, str]) -> None:
        self.name: Final = f"{kind}-{index}"
        self.state_dir: Final = state_dir
        flags = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
        self._command: Final = [
            sys.executable, "-m", f"flintlock.entrypoints.{kind}", "--state-dir", str(state_dir),
            "--index", str(index), "--die-with-parent", str(os.getpid()), *flags,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self._announcement: Final = state_dir / "run" / (f"{self.name}.json" if index else f"{kind}.json")
        state_dir.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Where this JobManager answers; it may have ended."""
        return str(msgspec.json.decode(self._announcement.read_bytes())["rest"])

    @property
    def alive(self) -> bool:
        """Whether the process is there; a frozen one is."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, if it is not there."""
        if not self.alive:
            with (self.state_dir / f"{self.name}.log").open("ab") as out:
                self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=out, stderr=out)

    def kill(self) -> None:
        """SIGKILL it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP it."""
        self._signal(signal.SIGSTOP)

    def terminate(self) -> None:
        """SIGTERM it."""
        self._signal(signal.SIGTERM)

    def restore(self) -> None:
        """Wake it up, or start it again: it may have ended itself meanwhile."""
        self._signal(signal.SIGCONT)
        self.start()

    def end(self) -> None:
        """Terminate it, and wait."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def last_output(self) -> str:
        """Return the end of what it has printed."""
        return (self.state_dir / f"{self.name}.log").read_text()[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self.process is not None:
            self.process.send_signal(number)


class ZooKeeperMember:
    """A server of the ensemble, with the faults of the other members."""

    def __init__(self, server: Server, index: int) -> None:
        self.name: Final = f"zookeeper-{index}"
        self._server: Final = server
        self._killed = False  # until it is restored

    def kill(self) -> None:
        """SIGKILL it."""
        self._server.kill()
        self._killed = True

    def freeze(self) -> None:
        """SIGSTOP it."""
        self._server.signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Wake it up, or start it again."""
        if self._killed:
            self._server.start()
            self._killed = False
        else:
            self._server.signal(signal.SIGCONT)


class Deployment:
    """All members of the cluster under test."""

    def __init__(
        self, home: Path, jobmanagers: list[Member], taskmanagers: list[Member], servers: list[ZooKeeperMember]
    ) -> None:
        self.home: Final = home
        self.jobmanagers: Final = jobmanagers
        self.taskmanagers: Final = taskmanagers
        self.servers: Final = servers

    @property
    def urls(self) -> list[str]:
        """Where the JobManagers answer."""
        found: list[str] = []
        for member in self.jobmanagers:
            with suppress(OSError, msgspec.DecodeError):
                found.append(member.url)
        return found

    def leader(self) -> tuple[Member, int] | None:
        """Return the JobManager that claims to lead in the latest epoch, and that epoch."""
        leaders: list[tuple[int, Member]] = []
        for member in self.jobmanagers:
            with suppress(OSError, msgspec.DecodeError):
                file = msgspec.json.decode((member.state_dir / "cluster.json").read_bytes())
                if member.process is not None and file["pid"] == member.process.pid and member.alive:
                    leaders.append((int(file["epoch"]), member))
        return max(((member, epoch) for epoch, member in leaders), key=lambda found: found[1], default=None)

    def listing(self, after_epoch: int = 0, besides: Member | None = None) -> dict[str, str] | None:
        """Return the state of every job, by id, from a JobManager that answers for a leader of a later epoch.

        The member `besides` is not asked: it may be frozen, and the request would time out.
        """
        for member in self.jobmanagers:
            answer = None if member is besides else _overview(member)
            if answer is not None and int(answer.headers["flintlock-leader-epoch"]) > after_epoch:
                return {line["jid"]: line["state"] for line in answer.json()["jobs"]}
        return None

    def answering(self) -> int:
        """Return how many JobManagers answer for the leader."""
        return sum(_overview(member) is not None for member in self.jobmanagers)

    def get(self, path: str) -> httpx.Response:
        """Ask any JobManager until one answers."""

        def ask() -> httpx.Response | None:
            for url in self.urls:
                with suppress(httpx.TransportError):
                    answer = rest_requests.get(f"{url}{path}", timeout=10)
                    if answer.status_code != 503:
                        return answer
            return None

        return until(f"an answer to {path}", ask)

    def restore(self) -> None:
        """Restore every JobManager and TaskManager."""
        for member in (*self.jobmanagers, *self.taskmanagers):
            member.restore()


def zookeeper_deployment(
    home: Path, ensemble: Ensemble, *, jobmanagers: int, taskmanagers: int, slots: int
) -> Deployment:
    """Return members with a state directory each, as if on separate machines."""
    shared = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": ensemble.quorum,
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_S} s",
        "high-availability.cluster-id": home.name,
        "high-availability.storageDir": str(home / "ha"),
        "high-availability.recovery-time": "5 s",
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "15 s",
        **rest_requests.shared_secret(home),
    }
    ports = iter(free_ports(2 * jobmanagers))

    def member(kind: str, index: int, own: dict[str, str]) -> Member:
        return Member(kind, index, home / f"{kind}-{index}", {**shared, **own})

    return Deployment(
        home,
        [
            member("jobmanager", index, {"rest.port": str(next(ports)), "jobmanager.rpc.port": str(next(ports))})
            for index in range(jobmanagers)
        ],
        [member("taskmanager", index, {"taskmanager.numberOfTaskSlots": str(slots)}) for index in range(taskmanagers)],
        [ZooKeeperMember(server, index) for index, server in enumerate(ensemble.servers)],
    )


def embedded_deployment(home: Path, jobmanagers: int) -> Deployment:
    """Return JobManagers that share a state directory."""
    return Deployment(
        home, [Member("jobmanager", index, home, {"rest.port": "0"}) for index in range(jobmanagers)], [], []
    )


@contextmanager
def running_deployment(
    home: Path, *, servers: int = 3, jobmanagers: int = 3, taskmanagers: int = 2, slots: int = 2
) -> Generator[Deployment]:
    """Start everything over an ensemble; yields it when all slots are there."""
    with running_ensemble(home / "ensemble", servers) as ensemble, ExitStack() as leaving:
        deployment = zookeeper_deployment(
            home, ensemble, jobmanagers=jobmanagers, taskmanagers=taskmanagers, slots=slots
        )
        for member in (*deployment.jobmanagers, *deployment.taskmanagers):
            leaving.callback(member.end)
            member.start()

        def offered() -> bool:
            return deployment.get("/overview").json()["slots-total"] == taskmanagers * slots

        until("a leader", deployment.leader, 60)
        until("all slots", offered, 300)
        yield deployment


def _overview(member: Member) -> httpx.Response | None:
    """Ask for all jobs, as they are now."""
    with suppress(httpx.TransportError, OSError, msgspec.DecodeError):
        answer = _CLIENT.get(f"{member.url}/jobs/overview", headers={"cache-control": "no-cache"})
        return answer if answer.status_code == 200 else None
    return None
