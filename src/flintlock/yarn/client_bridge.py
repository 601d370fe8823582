"""A client's side of YARN over the bridge: applications, queues, and the staging directory of an application."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import structs

from flintlock.model.errors import NotFound, Refused, Unavailable
from flintlock.spark.engine.metrics import JavaObject
from flintlock.yarn.bridge import YarnJvm
from flintlock.yarn.messages import (
    ApplicationReport,
    ApplicationSubmission,
    ContainerSize,
    Launch,
    StagedFile,
    YarnApplicationState,
)

#: How applications of Flintlock are called in YARN's lists.
APPLICATION_TYPE: Final = "FLINTLOCK"

_UNKNOWN_URL: Final = "N/A"
_PRIVATE_DIRECTORY: Final = "700"
_PRIVATE_FILE: Final = "600"
_UNFINISHED: Final = ".unfinished"


class BridgedYarn:
    """A YarnGateway. `close` it."""

    def __init__(self, yarn: YarnJvm) -> None:
        self._yarn: Final = yarn
        self._client: Final[JavaObject] = yarn.jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        yarn.call(self._client.init, yarn.conf)
        yarn.call(self._client.start)

    def close(self) -> None:
        """Close the connections to YARN."""
        self._yarn.call(self._client.stop)

    def is_secure(self) -> bool:
        """See `YarnGateway`."""
        return bool(self._yarn.call(self._yarn.jvm.org.apache.hadoop.security.UserGroupInformation.isSecurityEnabled))

    def node_hosts(self) -> frozenset[str]:
        """See `YarnGateway`."""
        states = self._yarn.records.NodeState
        reports: Any = self._yarn.call(self._client.getNodeReports, self._yarn.array(states, [states.RUNNING]))
        return frozenset(str(report.getNodeId().getHost()) for report in reports)

    def queues(self) -> tuple[str, ...]:
        """See `YarnGateway`."""
        found: Any = self._yarn.call(self._client.getAllQueues)
        return tuple(str(queue.getQueueName()) for queue in found)

    def create_application(self) -> tuple[str, ContainerSize]:
        """See `YarnGateway`."""
        answer: Any = self._yarn.call(lambda: self._client.createApplication().getNewApplicationResponse())
        return str(answer.getApplicationId()), _size(answer.getMaximumResourceCapability())

    def submit(self, submission: ApplicationSubmission) -> None:
        """See `YarnGateway`."""
        self._yarn.call(self._client.submitApplication, submission_context(self._yarn, submission))

    def report(self, application_id: str) -> ApplicationReport:
        """See `YarnGateway`."""
        found: Any = self._yarn.call(self._client.getApplicationReport, self._id(application_id))
        url = str(found.getOriginalTrackingUrl() or "")
        usage: Any = found.getApplicationResourceUsageReport()
        return ApplicationReport(
            id=application_id,
            name=str(found.getName()),
            kind=str(found.getApplicationType()),
            user=str(found.getUser()),
            queue=str(found.getQueue()),
            state=YarnApplicationState(str(found.getYarnApplicationState())),
            final_status=str(found.getFinalApplicationStatus()),
            tracking_url="" if url == _UNKNOWN_URL else url,
            diagnostics=str(found.getDiagnostics() or "").strip(),
            containers=max(0, int(usage.getNumUsedContainers())) if usage is not None else 0,  # -1: none yet
        )

    def kill(self, application_id: str) -> None:
        """See `YarnGateway`."""
        self._yarn.call(self._client.killApplication, self._id(application_id))

    def _id(self, application_id: str) -> JavaObject:
        return _application_id(self._yarn, application_id)


class BridgedStaging:
    """A StagingGateway: `.flintlock/<application id>` in the directory given, else in the user's home directory."""

    def __init__(self, yarn: YarnJvm, application_id: str, root: str = "") -> None:
        self._yarn: Final = yarn
        fs = yarn.jvm.org.apache.hadoop.fs
        parent = fs.Path(root) if root else yarn.call(lambda: fs.FileSystem.get(yarn.conf).getHomeDirectory())
        self._fs: Final[JavaObject] = yarn.call(parent.getFileSystem, yarn.conf)
        self._path: Final[JavaObject] = self._fs.makeQualified(fs.Path(parent, f".flintlock/{application_id}"))

    @property
    def url(self) -> str:
        """See `StagingGateway`."""
        return str(self._path)

    def create(self) -> None:
        """See `StagingGateway`."""
        mode = self._mode(_PRIVATE_DIRECTORY)
        if not self._yarn.call(self._fs.mkdirs, self._path, mode):
            raise Unavailable(f"the staging directory {self.url} cannot be created")
        self._yarn.call(self._fs.setPermission, self._path, mode)  # whatever the umask was

    def put(self, name: str, source: Path) -> None:
        """See `StagingGateway`."""
        if not source.is_file():
            raise Refused(f"{source} is not a file")
        target, unfinished = self._child(name), self._child(f".{name}{_UNFINISHED}")
        local = self._yarn.jvm.org.apache.hadoop.fs.Path(f"file://{source}")
        self._yarn.call(self._fs.copyFromLocalFile, False, True, local, unfinished)
        self._yarn.call(self._fs.setPermission, unfinished, self._mode(_PRIVATE_FILE))
        self._yarn.call(self._fs.delete, target, False)
        if not self._yarn.call(self._fs.rename, unfinished, target):
            raise Unavailable(f"{target} cannot be written")

    def read(self, name: str) -> bytes:
        """See `StagingGateway`."""
        stream: Any = self._yarn.call(self._fs.open, self._child(name))
        try:
            return bytes(self._yarn.call(self._yarn.jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray, stream))
        finally:
            self._yarn.call(stream.close)

    def files(self) -> tuple[StagedFile, ...]:
        """See `StagingGateway`."""
        files = self._list(self._fs, self._path, recursive=False)
        return tuple(file for file in files if not (file.name.startswith(".") and file.name.endswith(_UNFINISHED)))

    def provided(self, url: str, at_most: int) -> tuple[StagedFile, ...]:
        """See `StagingGateway`."""
        path = self._yarn.jvm.org.apache.hadoop.fs.Path(url)
        fs: JavaObject = self._yarn.call(path.getFileSystem, self._yarn.conf)
        status: JavaObject = self._yarn.call(fs.getFileStatus, path)
        if not status.isDirectory():
            raise NotFound(f"{url} is not a directory")
        files = self._list(fs, fs.makeQualified(path), recursive=True, at_most=at_most)
        return tuple(structs.replace(file, is_provided=True) for file in files)

    def _list(
        self, fs: JavaObject, path: JavaObject, *, recursive: bool, at_most: int | None = None
    ) -> tuple[StagedFile, ...]:
        """Return the files in a directory, by their paths within it."""
        found: list[StagedFile] = []
        listed: JavaObject = self._yarn.call(fs.listFiles, path, recursive)
        while (at_most is None or len(found) < at_most) and self._yarn.call(listed.hasNext):
            status: JavaObject = self._yarn.call(listed.next)
            url = str(status.getPath())
            found.append(
                StagedFile(
                    name=url.removeprefix(f"{str(path).rstrip('/')}/"),
                    url=url,
                    size=int(status.getLen()),
                    timestamp_ms=int(status.getModificationTime()),
                )
            )
        return tuple(found)

    def remove(self) -> None:
        """See `StagingGateway`."""
        self._yarn.call(self._fs.delete, self._path, True)

    def _child(self, name: str) -> JavaObject:
        return self._yarn.jvm.org.apache.hadoop.fs.Path(self._path, name)

    def _mode(self, octal: str) -> JavaObject:
        return self._yarn.jvm.org.apache.hadoop.fs.permission.FsPermission(octal)


def size_record(yarn: YarnJvm, size: ContainerSize) -> JavaObject:
    """Return YARN's record of a size."""
    return yarn.records.Resource.newInstance(size.memory_mb, size.vcores)


def submission_context(yarn: YarnJvm, submission: ApplicationSubmission) -> JavaObject:
    """Return YARN's record of what is submitted."""
    records = yarn.records
    context = records.ApplicationSubmissionContext.newInstance(
        _application_id(yarn, submission.id),
        submission.name,
        submission.queue,
        records.Priority.newInstance(submission.priority) if submission.priority >= 0 else None,
        launch_context(yarn, submission.launch),
        False,  # an unmanaged ApplicationMaster
        True,  # cancel tokens when the application has ended
        submission.attempts,
        size_record(yarn, submission.size),
        APPLICATION_TYPE,
        True,  # containers outlive an attempt of the ApplicationMaster
    )
    context.setAttemptFailuresValidityInterval(submission.attempt_failures_validity_ms)
    context.setApplicationTags(_string_set(yarn, submission.tags))
    if submission.rolled_logs:
        every = ".*"  # at the end
        context.setLogAggregationContext(
            records.LogAggregationContext.newInstance(every, "", submission.rolled_logs, "")
        )
    if submission.node_label:
        context.setNodeLabelExpression(submission.node_label)
    return context


def _application_id(yarn: YarnJvm, text: str) -> JavaObject:
    return yarn.call(yarn.records.ApplicationId.fromString, text)


def launch_context(yarn: YarnJvm, launch: Launch) -> JavaObject:
    """Return YARN's record of what runs in a container."""
    records, fs = yarn.records, yarn.jvm.org.apache.hadoop.fs
    visibility = records.LocalResourceVisibility
    resources = {
        file.name: records.LocalResource.newInstance(
            records.URL.fromPath(fs.Path(file.url)),
            records.LocalResourceType.ARCHIVE if file.is_archive else records.LocalResourceType.FILE,
            visibility.PRIVATE if file.is_provided else visibility.APPLICATION,
            file.size,
            file.timestamp_ms,
        )
        for file in launch.files
    }
    tokens = yarn.jvm.java.nio.ByteBuffer.wrap(launch.tokens) if launch.tokens else None
    return records.ContainerLaunchContext.newInstance(
        resources, dict(launch.environment), [launch.command], None, tokens, None
    )


def _size(resource: JavaObject) -> ContainerSize:
    return ContainerSize(memory_mb=int(resource.getMemorySize()), vcores=int(resource.getVirtualCores()))


def _string_set(yarn: YarnJvm, texts: tuple[str, ...]) -> JavaObject:
    found = yarn.jvm.java.util.HashSet()
    for text in texts:
        found.add(text)
    return found
