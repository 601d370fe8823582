"""A cluster on YARN, deployed: checked, staged, submitted, and waited for. Flink's YarnClusterDescriptor.

Everything that can be known to fail is refused before an application id is requested or a file is copied. From then on
a deployment that fails, or whose client is interrupted, leaves neither an application nor a staging directory.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    CHECKPOINTS_DIR,
    HA_CLUSTER_ID,
    HA_TYPE,
    JM_BIND_HOST,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    MAX_TASK_MANAGERS,
    REST_ADDRESS,
    REST_BIND_ADDRESS,
    REST_PORT,
    SAVEPOINTS_DIR,
    SECRET_FILE,
    TLS_MEMBER,
    TM_BIND_HOST,
    TM_HOST,
    TM_RPC_PORT,
    TM_SLOTS,
    TOKEN,
    TOKEN_FILE,
    WORK_DIR,
    YARN_APPLICATION_ID,
    YARN_APPLICATION_NAME,
    YARN_ATTEMPTS,
    YARN_ATTEMPTS_INTERVAL,
    YARN_NODE_LABEL,
    YARN_PRIORITY,
    YARN_PYTHON,
    YARN_QUEUE,
    YARN_ROLLED_LOGS,
    YARN_SHIP_ARCHIVES,
    YARN_SHIP_FILES,
    YARN_TAGS,
)
from flintlock.host.files.whole_files import write_whole
from flintlock.model.errors import Refused, Unavailable
from flintlock.security.cluster_secret import FILE_NAME as SECRET_NAME
from flintlock.spark.engine.executors.demand import is_shipped, unusable_with_shipped_python
from flintlock.yarn.delegation_tokens import DelegationTokens, WithoutKerberos
from flintlock.yarn.gateways import StagingGateway, YarnGateway
from flintlock.yarn.layout import (
    CONFIGURATION_NAME,
    DIRECTORY_SUFFIX,
    HADOOP_FILES,
    JOB_NAME,
    RESERVED_NAMES,
    container_files,
    launch_of,
    master_size,
    slots_of,
    worker_size,
)
from flintlock.yarn.messages import ApplicationReport, ApplicationSubmission, ContainerSize, YarnApplicationState

#: What a JobManager on YARN runs. Named here, not imported: this package is below the entrypoints.
JOB_MANAGER: Final = "flintlock.entrypoints.yarn_jobmanager"

_POLL_S: Final = 0.25
_MOST_TASK_MANAGERS: Final = 1000  # the queue is the limit
_SOON_S: Final = 10.0  # until the first note of what is waited for
_LONG_S: Final = 60.0  # between such notes
_ARCHIVES: Final = (".zip", ".jar", ".tar", ".tar.gz", ".tgz")
#: Of the client's machine only, or its own credentials.
_NOT_SHIPPED: Final = frozenset(
    option.key
    for option in (SECRET_FILE, TOKEN, TOKEN_FILE, REST_BIND_ADDRESS, JM_BIND_HOST, TM_BIND_HOST, YARN_APPLICATION_ID)
)


class YarnClusterDescriptor:
    """Deploys clusters with one Hadoop configuration."""

    def __init__(
        self,
        yarn: YarnGateway,
        staging_of: Callable[[str], StagingGateway],
        conf_dir: Path,
        *,
        tokens: DelegationTokens | None = None,
        sleep: Callable[[float], None] = time.sleep,  # noqa: TID251 (YARN is polled)
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._yarn: Final = yarn
        self._staging_of: Final = staging_of
        self._conf_dir: Final = conf_dir
        self._tokens: Final = tokens or WithoutKerberos(yarn)
        self._sleep: Final = sleep
        self._clock_s: Final = clock_s

    def deploy(
        self,
        configuration: Configuration,
        secret: bytes,
        *,
        job: Path | None = None,
        timeout_s: float,
        notify: Callable[[str], None] = lambda _: None,
    ) -> ApplicationReport:
        """Start a cluster with this secret; return once its JobManager is registered with YARN.

        `job`: it is for this one, an archive of the directory of a job, and ends with it. Such a cluster waits in its
        queue for as long as that is full, as its job would on a session: `timeout_s` is then for what YARN has begun to
        start.

        Raises Refused with what is wrong before anything is started, Unavailable if YARN does not start it.
        """
        tokens = self._tokens.obtain()
        self._check(configuration)
        files = {**_ship_files(configuration), **({} if job is None else {JOB_NAME: job})}
        application_id, largest = self._yarn.create_application()
        _check_sizes(configuration, largest)
        staging = self._staging_of(application_id)
        submitted = False
        try:
            staging.create()
            settings = shipped_configuration(configuration, application_id, staging.url, own_job=job is not None)
            self._stage(staging, settings, secret, files)
            submission = _submission(configuration, application_id, staging, tokens)
            submitted = True
            self._yarn.submit(submission)
            notify(f"submitted {application_id} to queue {submission.queue!r} of YARN …")
            return self._await_running(submission, timeout_s, notify, waits_for_turn=job is not None)
        except BaseException:
            try:
                if submitted:
                    self._yarn.kill(application_id)
            finally:
                staging.remove()
            raise

    def _check(self, configuration: Configuration) -> None:
        if configuration.get(YARN_ATTEMPTS) > 1 and configuration.get(HA_TYPE) != "zookeeper":
            raise Refused(
                f"{YARN_ATTEMPTS.key} is {configuration.get(YARN_ATTEMPTS)}: more than one attempt needs"
                f" {HA_TYPE.key}: zookeeper, as another attempt finds nothing of what the first one has stored"
            )
        shipped = is_shipped(configuration.get(YARN_PYTHON))
        if shipped and (problem := unusable_with_shipped_python(configuration.spark())) is not None:
            raise Refused(problem)
        hosts = self._yarn.node_hosts()
        if not hosts:
            raise Unavailable("no node of YARN runs")
        if len(hosts) > 1 and not configuration.get(TLS_MEMBER):
            raise Refused(
                f"YARN has {len(hosts)} hosts, and TLS is not configured: JobManager and TaskManagers would listen on"
                f" loopback addresses and not reach each other; set {TLS_MEMBER.key} to a file that each host has"
            )
        queue, queues = configuration.get(YARN_QUEUE), self._yarn.queues()
        if queue.removeprefix("root.").rpartition(".")[2] not in queues and queue not in queues:
            raise Refused(f"YARN has no queue {queue!r} ({YARN_QUEUE.key}); it has: {', '.join(sorted(queues))}")

    def _stage(
        self, staging: StagingGateway, settings: Mapping[str, str], secret: bytes, files: Mapping[str, Path]
    ) -> None:
        with TemporaryDirectory(prefix="flintlock-yarn-") as directory:
            made = {CONFIGURATION_NAME: msgspec.json.encode(settings), SECRET_NAME: secret}  # JSON is YAML
            for name, content in made.items():
                write_whole(Path(directory) / name, content, mode=0o600)
                staging.put(name, Path(directory) / name)
        for name in HADOOP_FILES:
            if (self._conf_dir / name).is_file():
                staging.put(name, self._conf_dir / name)
        for name, path in files.items():
            if path.is_dir():
                _put_directory(staging, name, path)
            else:
                staging.put(name, path)

    def _await_running(
        self,
        submission: ApplicationSubmission,
        timeout_s: float,
        notify: Callable[[str], None],
        *,
        waits_for_turn: bool,
    ) -> ApplicationReport:
        """Return once the JobManager is registered. Raises Unavailable if it ends before, or takes too long."""
        application_id = submission.id
        submitted_s = begun_s = self._clock_s()
        show_s = submitted_s + _SOON_S  # when the next note is due
        was_told_to_wait = False
        while True:
            report = self._yarn.report(application_id)
            if report.state is YarnApplicationState.RUNNING and report.tracking_url:
                return report
            if report.state.has_ended:
                raise Unavailable(
                    f"{application_id} has ended on YARN before it was ready, {report.state}: {report.diagnostics}\n"
                    f"(its logs: yarn logs -applicationId {application_id})"
                )
            now_s = self._clock_s()
            if waits_for_turn and report.awaits_turn:
                begun_s = now_s
            elif now_s - begun_s >= timeout_s:
                raise Unavailable(
                    f"{application_id} is still {report.state} after {timeout_s:.0f} s, and was killed: {_why(report)}"
                )
            if was_told_to_wait and not report.awaits_turn:
                was_told_to_wait = False
                notify(f"{application_id} has its turn: YARN starts its JobManager …")
            if now_s >= show_s:
                waited_s = now_s - submitted_s
                if report.awaits_turn:
                    was_told_to_wait = True
                    text = f"has waited for its turn in queue {submission.queue!r} for {waited_s:.0f} s"
                else:
                    text = f"is {report.state} for {waited_s:.0f} s"
                notify(f"{application_id} {text}: {_why(report)}")
                show_s = now_s + _LONG_S
            self._sleep(_POLL_S)


def _why(report: ApplicationReport) -> str:
    return report.diagnostics or "YARN may not have the resources that were requested"


def shipped_configuration(
    configuration: Configuration, application_id: str, staging_url: str, *, own_job: bool = False
) -> dict[str, str]:
    """Return the settings of all processes of the cluster, from those of its client.

    `own_job`: it is for one job. At its end all that is stored under its id is removed, so it never shares an id.
    """
    address = "0.0.0.0" if configuration.get(TLS_MEMBER) else "127.0.0.1"  # noqa: S104 (only with TLS)
    values = {key: value for key, value in configuration.as_dict().items() if key not in _NOT_SHIPPED}
    values |= {option.key: address for option in (REST_ADDRESS, JM_RPC_ADDRESS, TM_HOST)}
    values |= {option.key: "0" for option in (REST_PORT, JM_RPC_PORT, TM_RPC_PORT)}
    values[YARN_APPLICATION_ID.key] = application_id
    values[TM_SLOTS.key] = str(slots_of(configuration))
    if not configuration.get(MAX_TASK_MANAGERS):
        values[MAX_TASK_MANAGERS.key] = str(_MOST_TASK_MANAGERS)
    if own_job or not configuration.get(HA_CLUSTER_ID):
        values[HA_CLUSTER_ID.key] = application_id
    if configuration.get(HA_TYPE) != "zookeeper":  # otherwise these are in `high-availability.storageDir`
        own = staging_url.removeprefix("file:") if staging_url.startswith("file:/") else staging_url
        values = {WORK_DIR.key: f"{own}/work", CHECKPOINTS_DIR.key: f"{own}/checkpoints", **values}
        if own.startswith("/"):  # savepoints outlive the application; the JobManager writes them as files
            values.setdefault(SAVEPOINTS_DIR.key, f"{own.rpartition('/')[0]}/savepoints")
    return values


def _submission(
    configuration: Configuration, application_id: str, staging: StagingGateway, tokens: bytes
) -> ApplicationSubmission:
    launch = launch_of(JOB_MANAGER, (), configuration, container_files(configuration, staging))
    spans_attempts = configuration.get(HA_TYPE) == "zookeeper"
    return ApplicationSubmission(
        id=application_id,
        name=configuration.get(YARN_APPLICATION_NAME),
        queue=configuration.get(YARN_QUEUE),
        size=master_size(configuration),
        launch=structs.replace(launch, tokens=tokens),
        attempts=configuration.get(YARN_ATTEMPTS) or (2 if spans_attempts else 1),
        attempt_failures_validity_ms=int(configuration.get(YARN_ATTEMPTS_INTERVAL) * 1000),
        priority=configuration.get(YARN_PRIORITY),
        tags=configuration.get(YARN_TAGS),
        node_label=configuration.get(YARN_NODE_LABEL),
        rolled_logs=configuration.get(YARN_ROLLED_LOGS),
    )


def _check_sizes(configuration: Configuration, largest: ContainerSize) -> None:
    """Refuse containers that YARN could never allocate."""
    for what, size in (("JobManager", master_size(configuration)), ("TaskManager", worker_size(configuration))):
        if not size.fits_into(largest):
            raise Refused(f"a container for a {what} needs {size}, and the largest that YARN allocates has {largest}")


def _ship_files(configuration: Configuration) -> dict[str, Path]:
    """Return files and directories of the user by their names in containers. Raises Refused."""
    found: dict[str, Path] = {}
    for option in (YARN_SHIP_FILES, YARN_SHIP_ARCHIVES):
        for text in configuration.get(option):
            path = Path(text).expanduser().absolute()
            if option is YARN_SHIP_FILES and not path.exists():
                raise Refused(f"{option.key}: there is no file or directory {text!r}")
            if option is YARN_SHIP_ARCHIVES and not path.is_file():
                raise Refused(f"{option.key}: there is no file {text!r}")
            if option is YARN_SHIP_ARCHIVES and not path.name.endswith(_ARCHIVES):
                raise Refused(f"{option.key}: {path.name} is not an archive that YARN unpacks: {', '.join(_ARCHIVES)}")
            if path.name in found or path.name in RESERVED_NAMES:
                raise Refused(f"{option.key}: the name {path.name!r} is taken; all files are in one directory")
            if not path.name or path.name.endswith(DIRECTORY_SUFFIX):
                raise Refused(f"{option.key}: {text!r} cannot have this name in containers")
            found[path.name] = path
    return found


def _put_directory(staging: StagingGateway, name: str, path: Path) -> None:
    """Stage a directory with all that is in it, links followed, as one archive. Raises Refused if it cannot be read."""
    with TemporaryDirectory(prefix="flintlock-yarn-") as place:
        archive = Path(place) / f"{name}{DIRECTORY_SUFFIX}"
        try:
            with tarfile.open(archive, "w", dereference=True) as tar:
                for child in sorted(path.iterdir()):
                    tar.add(child, child.name)
        except OSError as error:
            raise Refused(f"{YARN_SHIP_FILES.key}: {path} cannot be read: {error}") from error
        staging.put(archive.name, archive)
