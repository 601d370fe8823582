"""The TaskManager's handle of its Spark engine: start it, send it commands, notice its death, end it.

Nothing here imports PySpark or py4j; all that touches Spark happens in the engine's own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.logs.log_tail import size_of, tail
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.errors import JobFailed, Refused, Unavailable
from flintlock.model.tasks import FilesPublished, SinkFiles
from flintlock.spark.engine.class_archive import archive_file
from flintlock.spark.engine.link import EngineLink
from flintlock.spark.engine.messages import (
    RELEASE_S,
    Done,
    EngineReady,
    EngineSettings,
    FilesListed,
    FindUnshared,
    ListFiles,
    MakeDurable,
    Measured,
    MeasureSession,
    Publish,
    Published,
    ReadUi,
    Released,
    ReleaseSessions,
    RemoveTree,
    RepartitionState,
    UiRead,
    Unshared,
)
from flintlock.spark.engine.publication.publish_plan import FileListing, UnsharedPath

__all__ = ["EngineSettings", "SparkEngine", "publication"]

#: How long an engine may take to end by itself after Stop.
STOP_S: Final = 5.0

#: How much later than its own timeout an engine's reply may come.
REPLY_S: Final = 10.0

#: How long a page of Spark's UI may take.
UI_S: Final = 30.0

#: How long an engine may take to write a class archive as it ends.
RECORD_S: Final = 660.0


class SparkEngine:
    """A warm engine; satisfies `gateways.engine.Engine`. Made by `start`."""

    def __init__(self, link: EngineLink, ready: EngineReady) -> None:
        self._link: Final = link
        self.ready: Final = ready

    @classmethod
    @asynccontextmanager
    async def start(cls, settings: EngineSettings) -> AsyncGenerator[SparkEngine]:
        """Start an engine, wait until it is warm, and end it with the scope: process, JVM and Python workers.

        Raises:
            Unavailable: It cannot be started; the message is the cause.
        """
        written_before = size_of(settings.log_file)  # by earlier engines
        link = await EngineLink.spawn(settings)
        try:
            await asyncio.wait(
                {link.ready, link.cause}, timeout=settings.start_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not link.ready.done():
                cause = link.cause.result() if link.cause.done() else _not_ready(settings, written_before)
                raise Unavailable(f"the Spark engine cannot be started: {cause}")
            yield cls(link, link.ready.result())
        finally:
            await link.stop(RECORD_S if settings.record_archive else STOP_S)

    @classmethod
    async def record_archive(cls, settings: EngineSettings) -> Path:
        """Write the class archive for the settings' Java into their archive directory, with an engine only for this.

        Takes a minute or two of every core. Raises Unavailable if the JVM wrote none.
        """
        if not settings.archive_dir:
            raise Refused("no directory for class archives is set")
        async with cls.start(msgspec.structs.replace(settings, record_archive=True)):
            pass
        file = archive_file(Path(settings.archive_dir), settings.java)
        if not file.is_file():
            raise Unavailable(f"the JVM wrote no class archive; {settings.log_file} may say why")
        return file

    @property
    def remote_url(self) -> str:
        """Where its Connect server listens, with its token. More parameters are appended as `;name=value`."""
        return self.ready.remote_url

    @property
    def pids(self) -> tuple[int, ...]:
        """Its own process and the JVM."""
        return (*self._link.pids, self.ready.jvm_pid)

    async def died(self) -> str:
        """Return the cause once the engine is dead."""
        return await asyncio.shield(self._link.cause)

    async def release_session(self, session: SparkSessionKey, timeout_s: float = RELEASE_S) -> bool:
        """End a session and its work; True once nothing of it is active any more, False if that is not certain."""
        return (await self.release(session.user_id, session.session_id, timeout_s)).confirmed

    async def release(self, user_id: str, session_id: str | None = None, timeout_s: float = RELEASE_S) -> Released:
        """End a session, or all sessions of a user, and return what is still active. Idempotent.

        An engine that does not reply in time has confirmed nothing.
        """
        try:
            async with asyncio.timeout(timeout_s + REPLY_S):
                return await self._link.ask(
                    lambda call: ReleaseSessions(
                        call=call, user_id=user_id, session_id=session_id, timeout_s=timeout_s
                    ),
                    Released,
                )
        except TimeoutError:
            return Released(call=0, confirmed=False, active=("the engine does not reply",))

    async def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        """Return the files below a path, local ones made durable if requested.

        Raises JobFailed if the file system cannot be read.
        """
        reply = await self._link.ask(
            lambda call: ListFiles(call=call, path=path, with_sizes=with_sizes, durable=durable), FilesListed
        )
        return reply.listing

    async def make_durable(self, path: str) -> None:
        """Make all local files below a path durable. Idempotent. Raises JobFailed if the file system refuses."""
        await self._link.ask(lambda call: MakeDurable(call=call, path=path), Done)

    async def find_unshared(self, targets: tuple[str, ...], sources: tuple[str, ...]) -> UnsharedPath | None:
        """Return a path that executors on other machines do not see as this one does; None if there is none.

        Raises JobFailed if a file system cannot be reached.
        """
        if not self.ready.has_executors or not (targets or sources):
            return None
        reply = await self._link.ask(lambda call: FindUnshared(call=call, targets=targets, sources=sources), Unshared)
        return UnsharedPath(path=reply.path, reason=reply.reason) if reply.path else None

    async def publish(self, sinks: tuple[SinkFiles, ...]) -> AsyncIterator[FilesPublished]:
        """Move, remove and mark file by file; the last item is complete. Raises JobFailed with the file's name.

        Old markers are removed before, and new ones made after all files. Repeating it is harmless, however far an
        earlier run came. Leaving the iteration early stops the publication after the file that it is at.
        """
        order = publication(sinks)
        with self._link.calling(lambda call: msgspec.structs.replace(order, call=call)) as (call, replies):
            complete = False
            try:
                while not complete:
                    reply = self._link.checked(await replies.get(), Published)
                    complete = reply.complete
                    yield FilesPublished(done=reply.done, total=reply.total, complete=complete)
            finally:
                if not complete:
                    self._link.stop_publication(call)

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Remove directories that are Flintlock's own. Idempotent. Raises Refused for others, JobFailed if it fails."""
        for path in directories:
            await self._link.ask(lambda call, path=path: RemoveTree(call=call, path=path), Done)

    async def read_ui(self, path: str, root: str) -> EngineUiPage:
        """Return a page of Spark's UI, its links below `root`. Raises Refused, Unavailable."""
        try:
            async with asyncio.timeout(UI_S):
                reply = await self._link.ask(lambda call: ReadUi(call=call, path=path, root=root), UiRead)
        except TimeoutError:
            raise Unavailable(f"Spark's UI does not respond within {UI_S:g} s") from None
        except JobFailed as error:
            raise Unavailable(error.public) from error
        return reply.page

    async def repartition_state(self, checkpoint: str, partitions: int, config: dict[str, str]) -> None:
        """Give the state in a checkpoint directory, which no query uses, another number of partitions.

        Raises JobFailed; the directory can then no longer be used.
        """
        await self._link.ask(
            lambda call: RepartitionState(call=call, checkpoint=checkpoint, partitions=partitions, config=config), Done
        )

    async def measure(self, session: SparkSessionKey, operations: tuple[str, ...] = ()) -> Measured:
        """Return what Spark counted: for the session while it is open, and for each of these operations also later."""

        def command(call: int) -> MeasureSession:
            return MeasureSession(
                call=call, user_id=session.user_id, session_id=session.session_id, operations=operations
            )

        return await self._link.ask(command, Measured)


def _not_ready(settings: EngineSettings, written_before: int) -> str:
    """Return what is known of an engine that neither is ready in time nor fails: it may wait for executors.

    Of its log only what it has written itself: the lines of an earlier engine would look like the cause.
    """
    last = tail(settings.log_file, after=written_before) or "(it has written nothing)"
    return (
        f"it is not ready after {settings.start_timeout_s:g} s (taskmanager.engine.start-timeout);"
        f" the end of {settings.log_file}:\n{last}"
    )


def publication(sinks: tuple[SinkFiles, ...]) -> Publish:
    """Return the publication of all these sinks as one: every file, then every marker, then empty directories.

    Directories that may be left empty, besides the staging ones, are those of removed files as far up as their target,
    unless a file arrives there.
    """
    filled = {move.target.rpartition("/")[0] for sink in sinks for move in sink.moves}
    left: dict[str, None] = {}
    for sink in sinks:
        target = f"{sink.target.rstrip('/')}/"
        for path in sink.removes:
            directory = path.rpartition("/")[0]
            while directory.startswith(target) and directory not in filled:
                left[directory] = None
                directory = directory.rpartition("/")[0]
    return Publish(
        call=0,
        moves=tuple(move for sink in sinks for move in sink.moves),
        removes=tuple(path for sink in sinks for path in sink.removes),
        success_markers=tuple(sink.success_marker for sink in sinks if sink.success_marker is not None),
        staging_dirs=tuple(sink.staging for sink in sinks if sink.staging),
        left_dirs=tuple(left),
    )
