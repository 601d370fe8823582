"""Clusters on YARN, for their users: started, found again by their application ids, and stopped.

`<state directory>/yarn/<application id>` has what a client needs of one: a copy of the cluster's secret, for its owner
only, where its leader is registered, and the address that its JobManager had last. Where that directory is missing, as
on another machine, the secret is read from the staging directory of the application, which only its owner can read.
When the address does not answer, `yarn_addresses` finds the current one: another attempt of the JobManager listens
elsewhere.

`<state directory>/yarn/session` names the session that was started or attached last. A command with `-m yarn://…` does
not change it, whatever cluster it is for.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from flintlock.client.authoring.package import JobPackage
from flintlock.client.clusters.discovery import YARN_PATIENCE_S, RunningCluster
from flintlock.client.clusters.job_cluster import JobCluster
from flintlock.client.clusters.yarn_addresses import YarnAddresses
from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials
from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.options import SECRET_FILE, TM_SLOTS, YARN_APPLICATION_ID, YARN_APPLICATION_NAME, YARN_STAGING
from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.job_directory import JobDescription, JobDirectory, JobEnd
from flintlock.host.files.private_files import make_private_directory
from flintlock.host.files.whole_files import write_whole
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import FlintlockError, NotFound, Refused, Unavailable
from flintlock.model.ids import JobId
from flintlock.security.cluster_secret import FILE_NAME as SECRET_NAME
from flintlock.security.local_credentials import local_user

if TYPE_CHECKING:
    from flintlock.yarn.gateways import StagingGateway, YarnGateway
    from flintlock.yarn.messages import ApplicationReport

#: Opens YARN, and the staging directories of applications by their ids.
BridgeOpener: TypeAlias = Callable[[], AbstractContextManager[tuple["YarnGateway", Callable[[str], "StagingGateway"]]]]

SCHEME: Final = "yarn://"
_APPLICATION_ID: Final = re.compile(r"application_\d+_\d+")
_SECRET_BYTES: Final = 32
_REGISTER: Final = "high-availability"  # the file, and the beginning of its keys
_POLL_S: Final = 0.25
_END_S: Final = 60.0
_START_S: Final = 300.0
_PROGRAM_SLOTS: Final = "2"  # a program has one of them, and its first job must not wait for another container


@contextmanager
def open_yarn(staging_root: str) -> Generator[tuple[YarnGateway, Callable[[str], StagingGateway]]]:
    """Start a bridge to YARN for the duration of the block; yield YARN and the staging directories of applications.

    Raises Refused if the packages of a cluster are not installed, or no Hadoop configuration is set, Unavailable.
    """
    require_extra("cluster", "a cluster on YARN")
    from flintlock.yarn.bridge import running_bridge
    from flintlock.yarn.client_bridge import BridgedStaging, BridgedYarn

    with running_bridge(os.environ) as jvm, closing(BridgedYarn(jvm)) as yarn:
        yield yarn, lambda application_id: BridgedStaging(jvm, application_id, staging_root)


class YarnSession(Struct, frozen=True, kw_only=True):
    """A session cluster on YARN."""

    application_id: str
    rest: str
    running: RunningCluster


class YarnSessions:
    """The sessions that one user starts and uses, with one configuration and state directory."""

    def __init__(self, configuration: Configuration, state_dir: Path, open_bridge: BridgeOpener | None = None) -> None:
        self._configuration: Final = configuration
        self._directory: Final = state_dir / "yarn"
        self._bridged: Final = open_bridge or partial(open_yarn, configuration.get(YARN_STAGING))

    def start(self, *, timeout_s: float, notify: Callable[[str], None], job: Path | None = None) -> YarnSession:
        """Start a session, or a cluster for one job; return once it is ready. A session is the one used from then on.

        `job` is an archive of the job's directory. Raises Refused with what is wrong before anything is started,
        Unavailable if it does not start.
        """
        from flintlock.yarn.bridge import hadoop_conf_dir
        from flintlock.yarn.descriptor import YarnClusterDescriptor

        conf_dir = hadoop_conf_dir(os.environ)
        secret = f"{secrets.token_hex(_SECRET_BYTES)}\n".encode()
        with self._bridged() as (yarn, staging_of):
            descriptor = YarnClusterDescriptor(yarn, staging_of, conf_dir)
            report = descriptor.deploy(self._configuration, secret, job=job, timeout_s=timeout_s, notify=notify)
            self._remember(staging_of(report.id), report, secret)
            if job is None:
                self._use(report.id)
            session = self._session(report.id, report.tracking_url)
            try:
                with session.running.client() as client:
                    client.http.call("GET", "/readyz")
            except BaseException:
                yarn.kill(report.id)
                staging_of(report.id).remove()
                self._forget(report.id)
                raise
        return session

    def await_job_end(self, application_id: str) -> ApplicationStatus:
        """Wait until the end of a cluster for one job is recorded; return how it ends. Raises Unavailable."""
        from flintlock.yarn.layout import END_NAME

        with self._bridged() as (yarn, staging_of):
            staging = staging_of(application_id)
            while True:
                with suppress(NotFound):
                    return msgspec.json.decode(staging.read(END_NAME), type=JobEnd).application_status
                report = yarn.report(application_id)
                if report.state.has_ended:
                    raise Unavailable(
                        f"{application_id} has ended on YARN, {report.final_status}: {report.diagnostics}"
                    )
                time.sleep(_POLL_S)  # noqa: TID251 a file of another process

    def find(self, application_id: str = "") -> YarnSession:
        """Return a cluster by its id; without one, the configured session, else the last one.

        Raises Refused if no id is known, or it is not that of an application of Flintlock, Unavailable if the
        application does not run.
        """
        application_id = checked_id(application_id or self._current())
        place = self._directory / application_id
        if self._is_known(application_id):
            return self._session(application_id, (place / "rest").read_text())
        with self._bridged() as (yarn, staging_of):
            report = _listening(yarn.report(application_id))
            self._fetch(staging_of(application_id), report)
        return self._session(application_id, report.tracking_url)

    def attach(self, application_id: str) -> YarnSession:
        """Ask YARN for a session, and use it from now on. Raises as `find` does, and Refused if it is no session."""
        from flintlock.yarn.layout import JOB_NAME

        application_id = checked_id(application_id)
        with self._bridged() as (yarn, staging_of):
            report = _listening(yarn.report(application_id))
            staging = staging_of(application_id)
            self._fetch(staging, report)
            if any(file.name == JOB_NAME for file in staging.files()):
                raise Refused(
                    f"{application_id} is a cluster for one job or program, no session: commands reach it with"
                    f" -m {SCHEME}{application_id}"
                )
            self._use(application_id)
        return self._session(application_id, report.tracking_url)

    def stop(self, application_id: str = "") -> ApplicationReport:
        """End a session with all its TaskManagers, and wait for it; return how it has ended.

        One whose JobManager does not answer is killed by YARN, and nothing else is. Idempotent. Raises Refused if it is
        not an application of Flintlock, or its JobManager refuses.
        """
        application_id = checked_id(application_id or self._current())
        with self._bridged() as (yarn, staging_of):
            report = _of_flintlock(yarn.report(application_id))
            staging = staging_of(application_id)
            if not report.state.has_ended:
                if not self._shut_down(staging, report):
                    yarn.kill(application_id)
                end_s = time.monotonic() + _END_S
                while not (report := yarn.report(application_id)).state.has_ended:
                    if time.monotonic() >= end_s:
                        yarn.kill(application_id)
                        end_s += _END_S
                    time.sleep(_POLL_S)  # noqa: TID251 nothing tells when it has ended
            staging.remove()
        self._forget(application_id)
        return report

    def _shut_down(self, staging: StagingGateway, report: ApplicationReport) -> bool:
        """Have the JobManager shut the cluster down; return whether it answers. Raises Refused."""
        if not self._is_known(report.id):
            self._fetch(staging, report)
        address = report.tracking_url or (self._directory / report.id / "rest").read_text()
        if not address:  # no JobManager has registered yet
            return False
        try:
            with self._session(report.id, address).running.client() as client:
                client.shut_down()
        except Unavailable:
            return False
        return True

    def _session(self, application_id: str, rest: str) -> YarnSession:
        place = self._directory / application_id
        configuration = self._configuration.over({SECRET_FILE.key: str(place / SECRET_NAME)})
        register: dict[str, str] = {}
        with suppress(OSError):  # of an earlier version
            register = msgspec.json.decode((place / _REGISTER).read_bytes(), type=dict[str, str])
        addresses = YarnAddresses(application_id, register, rest, partial(self._ask_yarn, application_id))
        running = RunningCluster(
            urls=(rest,),
            find=partial(self._find_address, application_id, addresses),
            credentials=ClientCredentials(configuration, place),
            patience_s=YARN_PATIENCE_S,
            advice=f"{application_id} may have ended: `yarn application -status {application_id}` tells",
        )
        return YarnSession(application_id=application_id, rest=rest, running=running)

    def _find_address(self, application_id: str, addresses: YarnAddresses) -> tuple[str, ...]:
        """Return the current address, and remember it for the next client. Raises as `_ask_yarn` does."""
        found = addresses.find()
        place = self._directory / application_id
        if found and place.is_dir():
            write_whole(place / "rest", found[0].encode())
        return found

    def _ask_yarn(self, application_id: str) -> tuple[str, ...]:
        """Return where, as YARN knows, the current attempt of the JobManager listens; nothing while it does not.

        Raises Unavailable if the application has ended: no address of it answers any more.
        """
        try:
            with self._bridged() as (yarn, _):
                report = yarn.report(application_id)
        except FlintlockError:
            return ()
        if report.state.has_ended:
            self._forget(application_id)
        address = _running(report).tracking_url
        return (address,) if address else ()

    def _current(self) -> str:
        configured = self._configuration.get(YARN_APPLICATION_ID)
        try:
            return configured or (self._directory / "session").read_text().strip()
        except OSError:
            raise Refused(
                "no session on YARN is known here: start one with `flintlock session start -t yarn`, or name one with"
                f" -m {SCHEME}application_… or {YARN_APPLICATION_ID.key}"
            ) from None

    def _is_known(self, application_id: str) -> bool:
        place = self._directory / application_id
        return (place / SECRET_NAME).is_file() and (place / "rest").is_file()

    def _fetch(self, staging: StagingGateway, report: ApplicationReport) -> None:
        """Remember a cluster that was started elsewhere. Raises Refused if its secret is not where it is expected."""
        try:
            secret = staging.read(SECRET_NAME)
        except NotFound:
            raise Refused(
                f"the staging directory of {report.id} is not at {staging.url}:"
                f" set {YARN_STAGING.key} as it was when the cluster was started"
            ) from None
        self._remember(staging, report, secret)

    def _remember(self, staging: StagingGateway, report: ApplicationReport, secret: bytes) -> None:
        from flintlock.yarn.layout import CONFIGURATION_NAME

        settings: dict[str, str] = {}
        with suppress(NotFound):
            settings = msgspec.json.decode(staging.read(CONFIGURATION_NAME), type=dict[str, str])
        register = {key: value for key, value in settings.items() if key.startswith(_REGISTER)}
        place = self._directory / report.id
        make_private_directory(place)
        write_whole(place / _REGISTER, msgspec.json.encode(register), mode=0o600)
        write_whole(place / SECRET_NAME, secret, mode=0o600)
        write_whole(place / "rest", report.tracking_url.encode())

    def _use(self, application_id: str) -> None:
        """Make it the session that is used from now on."""
        write_whole(self._directory / "session", application_id.encode())

    def _forget(self, application_id: str) -> None:
        shutil.rmtree(self._directory / application_id, ignore_errors=True)
        current = self._directory / "session"
        if current.is_file() and current.read_text().strip() == application_id:
            current.unlink(missing_ok=True)


class YarnJobClusters:
    """JobClusters on YARN: each is an application, which ends with its job and with the status of that.

    `application`: the jobs are programs, which submit others.
    """

    def __init__(
        self,
        configuration: Configuration,
        state_dir: Path,
        notify: Callable[[str], None],
        *,
        application: bool = False,
        open_bridge: BridgeOpener | None = None,
    ) -> None:
        self._configuration: Final = configuration
        self._state_dir: Final = state_dir
        self._notify: Final = notify
        self._application: Final = application
        self._open_bridge: Final = open_bridge

    def place(self, job_id: JobId) -> str:  # noqa: ARG002 (YARN gives it an id)
        """See `JobClusters`."""
        return "on YARN"

    def start(self, package: JobPackage, overrides: Sequence[str], *, attached: bool) -> JobCluster:  # noqa: ARG002
        """See `JobClusters`. The overrides are in the configuration already."""
        job_id, name = JobId(package.spec.job_id or ""), package.spec.name
        description = JobDescription(
            job_id=job_id,
            name=name,
            attached=attached,
            submitted_by=local_user(),
            application=self._application,
            files=tuple(package.files),
        )
        configuration = self._configuration
        if not configuration.has(YARN_APPLICATION_NAME):
            configuration = configuration.over({YARN_APPLICATION_NAME.key: name})
        if self._application and not configuration.get(TM_SLOTS):
            configuration = configuration.over({TM_SLOTS.key: _PROGRAM_SLOTS})
        with TemporaryDirectory(prefix="flintlock-job-") as place:
            directory = JobDirectory(Path(place))
            directory.create(description, msgspec.json.encode(package.spec), package.files, ClusterSpec())
            archive = Path(place) / "job.tar"
            with tarfile.open(archive, "w") as tar:
                tar.add(directory.path, directory.path.name)
            sessions = YarnSessions(configuration, self._state_dir, self._open_bridge)
            started = sessions.start(timeout_s=_START_S, notify=self._notify, job=archive)
        own_dir = self._state_dir / "yarn" / started.application_id
        address = f"{SCHEME}{started.application_id}"
        return JobCluster(job_id=job_id, state_dir=own_dir, running=started.running, address=address)

    def await_end(self, client: Client, cluster: JobCluster) -> ApplicationStatus:  # noqa: ARG002
        """See `JobClusters`."""
        sessions = YarnSessions(self._configuration, self._state_dir, self._open_bridge)
        return sessions.await_job_end(cluster.state_dir.name)


def checked_id(text: str) -> str:
    """Return the id of an application, as given with or without `yarn://`. Raises Refused."""
    found = text.removeprefix(SCHEME)
    if _APPLICATION_ID.fullmatch(found) is None:
        raise Refused(f"{text!r} is not the id of an application on YARN, such as application_1700000000000_0001")
    return found


def _of_flintlock(report: ApplicationReport) -> ApplicationReport:
    """Raises Refused if it is not an application of Flintlock."""
    from flintlock.yarn.client_bridge import APPLICATION_TYPE

    if report.kind != APPLICATION_TYPE:
        raise Refused(f"{report.id} is an application of type {report.kind!r}, not of Flintlock")
    return report


def _running(report: ApplicationReport) -> ApplicationReport:
    if _of_flintlock(report).state.has_ended:
        error = Unavailable(f"{report.id} has ended on YARN, {report.final_status}: {report.diagnostics}")
        error.unreachable = True
        raise error
    return report


def _listening(report: ApplicationReport) -> ApplicationReport:
    if not _running(report).tracking_url:
        raise Unavailable(f"the JobManager of {report.id} is being started by YARN ({report.state}): try again")
    return report
