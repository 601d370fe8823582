"""The TaskManager's end of the pipes to its engine's process.

It has no asyncio tasks: messages from the process arrive in callbacks of the loop, so there is nothing to cancel and
nothing that could hang. Callers that wait for a reply when the engine dies get Unavailable with the cause.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from flintlock.host.cgroups import Group
from flintlock.host.processes.children import forget_child, record_child
from flintlock.host.runner_user import process_user
from flintlock.model.errors import JobFailed, Refused, Unavailable
from flintlock.spark.engine.messages import (
    FROM_ENGINE,
    EngineCommand,
    EngineDied,
    EngineReady,
    EngineReply,
    EngineSettings,
    Failed,
    StartEngine,
    Stop,
    StopPublication,
    ToEngine,
)
from flintlock.spark.framing import FrameDecoder, frame

#: How long the system may take to end a process that was killed.
KILL_S: Final = 5.0

STDOUT: Final = 1

R = TypeVar("R", bound=EngineReply)


class EngineLink(asyncio.SubprocessProtocol):
    """One engine's process: commands to it, replies from it, and its end."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings: Final = settings
        loop = asyncio.get_running_loop()
        self.ready: Final[asyncio.Future[EngineReady]] = loop.create_future()
        self.cause: Final[asyncio.Future[str]] = loop.create_future()  # of death; set once
        self._ended: Final[asyncio.Future[None]] = loop.create_future()  # set when the process is gone
        self._frames: Final = FrameDecoder(FROM_ENGINE)
        self._calls: Final = itertools.count(1)
        self._waiting: Final[dict[int, asyncio.Queue[EngineReply | None]]] = {}  # by call; None: the engine died
        self._reported_cause: str | None = None
        self._records: Final[list[Path | None]] = []  # of its processes, until they are gone
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def spawn(cls, settings: EngineSettings) -> EngineLink:
        """Start the process; it dies with the calling thread, which must be the loop's and outlive it."""
        log_file = Path(settings.log_file)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        log_reader = os.open(log_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            transport, link = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(settings),
                sys.executable,
                "-P",
                "-m",
                "flintlock.spark.engine.process",
                str(os.getpid()),
                str(log_reader),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=(log_reader,),
                start_new_session=True,  # Ctrl-C in a terminal is for the TaskManager; and one kill reaches the JVM too
                cwd=None if settings.user is None else settings.scratch_dir,
                env=settings.environment,
                **process_user(settings.user),
            )
        finally:
            os.close(log)
            os.close(log_reader)
        link._records.append(record_child(Path(settings.run_dir), "engine", transport.get_pid()))
        if settings.cgroup:
            with suppress(OSError):  # an engine in its parent's group still works
                Group(Path(settings.cgroup)).add(transport.get_pid())
        link._send(StartEngine(settings=settings))
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the transport."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101 - what the loop promises
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Process messages from the engine."""
        if fd != STDOUT:
            return
        for message in self._frames.feed(data):
            match message:
                case EngineReady():
                    self._on_ready(message)
                case EngineDied(cause=cause):
                    self._reported_cause = cause
                    self._on_death()
                case _:
                    waiting = self._waiting.get(message.call)
                    if waiting is not None:
                        waiting.put_nowait(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        """The process is gone, and all its messages have been processed."""
        self._on_death()
        for record in self._records:
            forget_child(record)
        if not self._ended.done():
            self._ended.set_result(None)

    @contextmanager
    def calling(
        self, command: Callable[[int], EngineCommand]
    ) -> Generator[tuple[int, asyncio.Queue[EngineReply | None]]]:
        """Send a command; yield its call and the queue of its replies. None in it: the engine died."""
        self._raise_if_dead()
        call = next(self._calls)
        replies: asyncio.Queue[EngineReply | None] = asyncio.Queue()
        self._waiting[call] = replies
        try:
            self._send(command(call))
            yield call, replies
        finally:
            del self._waiting[call]

    def stop_publication(self, call: int) -> None:
        """Have a publication stopped whose caller has stopped waiting."""
        self._send(StopPublication(publication=call))

    async def ask(self, command: Callable[[int], EngineCommand], kind: type[R]) -> R:
        """Send a command and return its only reply. Raises as `checked` does."""
        with self.calling(command) as (_, replies):
            return self.checked(await replies.get(), kind)

    def checked(self, reply: EngineReply | None, kind: type[R]) -> R:
        """Return the reply if it is of this kind.

        Raises:
            Refused: The command is not allowed.
            JobFailed: It tried, and Spark or a file system failed.
            Unavailable: The engine died.
        """
        if isinstance(reply, kind):
            return reply
        match reply:
            case Failed(kind="refused", reason=reason):
                raise Refused(reason)
            case Failed(reason=reason, permanent=permanent):
                error = JobFailed(reason)
                error.permanent = permanent
                raise error
            case _:
                self._raise_if_dead()
                raise Unavailable(f"the Spark engine sent an unexpected reply: {reply}")

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, until it is gone."""
        running = self._transport is not None and self._transport.get_returncode() is None
        return (self._transport.get_pid(),) if self._transport is not None and running else ()

    async def stop(self, timeout_s: float) -> None:
        """End the process and return when it is gone; by force if it takes longer, or if this is cancelled."""
        self._send(Stop())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._ended)
        except TimeoutError:
            self._kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_S):
                    await asyncio.shield(self._ended)
        finally:
            self._kill()
            if self._transport is not None:
                self._transport.close()

    def _send(self, message: ToEngine) -> None:
        stdin = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if isinstance(stdin, asyncio.WriteTransport) and not stdin.is_closing():
            stdin.write(frame(message))

    def _kill(self) -> None:
        """Kill the process and its group, including the JVM; harmless when it is gone."""
        if self._transport is not None and self._transport.get_returncode() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def _on_ready(self, ready: EngineReady) -> None:
        """Record the JVM of an engine that runs as another user and cannot do that itself; then it is ready.

        The process is not believed: with the pid of another one, it would have that recorded, and killed.
        """
        user = self._settings.user
        if user is not None:
            if not user.runs(ready.jvm_pid):
                self._reported_cause = f"process {ready.jvm_pid}, its JVM, does not run as {user.name!r}"
                self._on_death()
                return
            self._records.append(record_child(Path(self._settings.run_dir), "jvm", ready.jvm_pid))
        if not self.ready.done():
            self.ready.set_result(ready)

    def _on_death(self) -> None:
        """Wake all callers that wait for a reply, once."""
        if self.cause.done():
            return
        self.cause.set_result(self._reported_cause or self._exit_reason())
        for replies in self._waiting.values():
            replies.put_nowait(None)

    def _exit_reason(self) -> str:
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is not None and code < 0:
            return f"the engine's process was killed by {signal.Signals(-code).name}"
        return f"the engine's process ended with exit code {code}"

    def _raise_if_dead(self) -> None:
        if self.cause.done():
            error = Unavailable(f"the Spark engine died: {self.cause.result()}")
            error.unreachable = True
            raise error
