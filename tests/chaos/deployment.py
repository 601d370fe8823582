"""The cluster under test: JobManagers, TaskManagers and ZooKeeper servers, which can be killed, frozen and restored.

Every member has a machine of its own, or at least a state directory of its own; they share the ensemble and the storage
directory. JobManagers keep their ports when they are started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import msgspec
from tests.chaos.disks import Disk
from tests.chaos.machines import Machine, Machines, SharedMachine
from tests.cluster.processes import ROOT, until
from tests.zookeeper.servers import Ensemble, Server, free_ports, running_ensemble

from flintlock.config.configuration import Configuration
from flintlock.config.options import TLS_AUTHORITIES, TLS_MEMBER
from flintlock.security.certificates import AUTHORITY, issue, make_authority
from flintlock.testing.rest_requests import OWN_CREDENTIAL, OwnCredential, shared_secret

SESSION_S: Final = 4


class Member:
    """One JobManager or TaskManager: killed, frozen, woken up, started again."""

    def __init__(self, kind: str, index: int, machine: Machine, settings: Mapping[str, str]) -> None:
        self.name: Final = f"{kind}-{index}"
        self.machine: Final = machine
        self.state_dir: Final = machine.directory
        state_dir = self.state_dir
        flags = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
        self._command: Final = machine.command([
            sys.executable, "-m", f"flintlock.entrypoints.{kind}", "--state-dir", str(state_dir),
            "--index", str(index), "--die-with-parent", str(os.getpid()), *flags,
        ])  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.was_frozen = False  # the process that is there, at any time
        self._announcement: Final = state_dir / "run" / (f"{self.name}.json" if index else f"{kind}.json")

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
                self.was_frozen = False

    def kill(self) -> None:
        """SIGKILL it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP it."""
        self.was_frozen = True
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
        self.machine: Final = server.machine
        self._server: Final = server

    def kill(self) -> None:
        """SIGKILL it."""
        self._server.kill()

    def freeze(self) -> None:
        """SIGSTOP it."""
        self._server.signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Wake it up, or start it again: a server ends itself when it cannot write its log."""
        if self._server.alive:
            self._server.signal(signal.SIGCONT)
        else:
            self._server.start()


class Deployment:
    """All members of the cluster under test."""

    def __init__(
        self,
        home: Path,
        jobmanagers: list[Member],
        taskmanagers: list[Member],
        servers: list[ZooKeeperMember],
        *,
        slots: int = 0,
        storage: Disk | None = None,
        client: httpx.Client | None = None,
    ) -> None:
        self.home: Final = home
        self.client: Final = client or _client(OWN_CREDENTIAL)
        self.slots: Final = slots  # of all TaskManagers together
        self.jobmanagers: Final = jobmanagers
        self.taskmanagers: Final = taskmanagers
        self.servers: Final = servers
        self.storage: Final = storage  # the disk that all of them share, if there is one that can have faults

    def close(self) -> None:
        """Close the connections of the client."""
        self.client.close()

    @property
    def members(self) -> list[Member]:
        """All processes of Flintlock."""
        return [*self.jobmanagers, *self.taskmanagers]

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
            answer = None if member is besides else self._overview(member)
            if answer is not None and int(answer.headers["flintlock-leader-epoch"]) > after_epoch:
                return {line["jid"]: line["state"] for line in answer.json()["jobs"]}
        return None

    def answering(self) -> int:
        """Return how many JobManagers answer for the leader."""
        return sum(self._overview(member) is not None for member in self.jobmanagers)

    def available_slots(self) -> int | None:
        """Return how many slots there are, free ones or not; None unless every JobManager answers for the leader."""
        if self.leader() is None or self.answering() < len(self.jobmanagers):
            return None
        with suppress(httpx.TransportError):
            answer = self.client.get(f"{self.urls[0]}/overview")
            return int(answer.json()["slots-total"]) if answer.status_code == 200 else None
        return None

    def serves(self, slots: int) -> bool:
        """Whether every JobManager answers for the leader, and at least so many slots are there."""
        found = self.available_slots()
        return found is not None and found >= slots

    def ended(self, pids: Mapping[str, int]) -> list[str]:
        """Return which of these processes, by member, have ended, and how."""
        return [
            f"{member.name} ended with {member.process.returncode}"
            for member in self.members
            if member.process is not None and member.process.pid == pids.get(member.name) and not member.alive
        ]

    def pids(self) -> dict[str, int]:
        """Return the process of every member that is alive."""
        return {member.name: member.process.pid for member in self.members if member.process and member.alive}

    def get(self, path: str) -> httpx.Response:
        """Ask any JobManager until one answers."""

        def ask() -> httpx.Response | None:
            for url in self.urls:
                with suppress(httpx.TransportError):
                    answer = self.client.get(f"{url}{path}", timeout=10)
                    if answer.status_code != 503:
                        return answer
            return None

        return until(f"an answer to {path}", ask)

    def _overview(self, member: Member) -> httpx.Response | None:
        """Ask for all jobs, as they are now."""
        with suppress(httpx.TransportError, OSError, msgspec.DecodeError):
            answer = self.client.get(f"{member.url}/jobs/overview", headers={"cache-control": "no-cache"})
            return answer if answer.status_code == 200 else None
        return None

    def restore(self) -> None:
        """Restore every member."""
        for member in (*self.servers, *self.members):
            member.restore()

    def processes(self) -> list[str]:
        """Return what runs on the machines of the members, if each has one of its own."""
        return [
            f"process {pid} of {member.name}"
            for member in (*self.servers, *self.members)
            for pid in (() if member.machine.host is None else member.machine.host.processes())
        ]

    def copy_logs(self) -> None:
        """Copy logs that would end with the disks of their machines to `logs`."""
        for member in (*self.servers, *self.members):
            if member.machine.disk is None:
                continue
            for file in (*member.machine.directory.glob("log"), *member.machine.directory.glob("*.log")):
                copy = self.home / "logs" / member.name / file.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if file.is_dir() else shutil.copy)(file, copy)


def zookeeper_deployment(
    home: Path, ensemble: Ensemble, *, jobmanagers: int, taskmanagers: int, slots: int, machines: Machines | None = None
) -> Deployment:
    """Return members on one machine, or on machines of their own."""
    provided = machines or SharedMachine()
    storage = provided.disk(home / "ha")
    secret = shared_secret(home)
    certificates = home / "certificates"
    if machines is not None:
        make_authority(certificates)

    def tls(machine: Machine) -> dict[str, str]:
        """Return the settings of a machine whose address is not the loopback one: it has to use TLS."""
        if machine.host is None:
            return {}
        member_file = issue(certificates, (machine.address,), certificates / machine.directory.name)
        return {TLS_MEMBER.key: str(member_file), TLS_AUTHORITIES.key: str(certificates / AUTHORITY)}

    shared = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": ensemble.quorum,
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_S} s",
        "high-availability.cluster-id": home.name,
        "high-availability.storageDir": str(home / "ha"),
        "high-availability.recovery-time": "5 s",
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "15 s",
        **secret,
    }
    ports = iter(free_ports(2 * jobmanagers))

    def job_manager(index: int) -> Member:
        machine = provided.machine(home / f"jobmanager-{index}")
        own = {
            "rest.address": machine.address,
            "rest.port": str(next(ports)),
            "jobmanager.rpc.address": machine.address,
            "jobmanager.rpc.port": str(next(ports)),
        }
        return Member("jobmanager", index, machine, {**shared, **own, **tls(machine)})

    def task_manager(index: int) -> Member:
        machine = provided.machine(home / f"taskmanager-{index}")
        own = {"taskmanager.host": machine.address, "taskmanager.numberOfTaskSlots": str(slots)}
        return Member("taskmanager", index, machine, {**shared, **own, **tls(machine)})

    return Deployment(
        home,
        [job_manager(index) for index in range(jobmanagers)],
        [task_manager(index) for index in range(taskmanagers)],
        [ZooKeeperMember(server, index) for index, server in enumerate(ensemble.servers)],
        slots=taskmanagers * slots,
        storage=storage,
        client=_client(
            OwnCredential(Configuration(secret)), certificates / AUTHORITY if machines is not None else None
        ),
    )


def embedded_deployment(
    home: Path, jobmanagers: int, *, taskmanagers: int = 0, slots: int = 2, settings: Mapping[str, str] | None = None
) -> Deployment:
    """Return members that share a state directory."""
    machine, shared = SharedMachine().machine(home), settings or {}
    own = {**shared, "taskmanager.numberOfTaskSlots": str(slots)}
    return Deployment(
        home,
        [Member("jobmanager", index, machine, {"rest.port": "0", **shared}) for index in range(jobmanagers)],
        [Member("taskmanager", index, machine, own) for index in range(taskmanagers)],
        [],
        slots=taskmanagers * slots,
    )


@contextmanager
def running_deployment(
    home: Path,
    *,
    servers: int = 3,
    jobmanagers: int = 3,
    taskmanagers: int = 2,
    slots: int = 2,
    machines: Machines | None = None,
) -> Generator[Deployment]:
    """Start everything over an ensemble; yields it when all slots are there."""
    with running_ensemble(home / "ensemble", servers, machines) as ensemble, ExitStack() as leaving:
        deployment = zookeeper_deployment(
            home, ensemble, jobmanagers=jobmanagers, taskmanagers=taskmanagers, slots=slots, machines=machines
        )
        leaving.callback(deployment.close)
        leaving.callback(deployment.copy_logs)
        for member in deployment.members:
            leaving.callback(member.end)
            member.start()

        until("a leader", deployment.leader, 60)
        until("all slots", lambda: deployment.serves(deployment.slots), 300)
        yield deployment


def _client(credential: httpx.Auth, authority: Path | None = None) -> httpx.Client:
    """Return a client for all requests: to make one takes as long as a change of leader's parts."""
    verify = True if authority is None else ssl.create_default_context(cafile=str(authority))
    return httpx.Client(auth=credential, timeout=2, trust_env=False, verify=verify)
