"""The template: has imported PySpark once, and forks a runner whenever the TaskManager requests one.

`python -m flintlock.spark.runner.template FD PARENT [confined]`: FD is the inherited socket to the TaskManager, PARENT
its pid; `confined` says that the template runs as another user than the TaskManager.

Importing PySpark with Connect costs more than half a second of CPU; a fork of a process that has done it costs
milliseconds. Forking is safe only as long as this process has one thread and no open gRPC channel, so it never opens
a channel, never starts a thread, and never loads user code.

It is the parent of all runners: it reaps them, reports how they ended, kills them on request (a pid that it has not
reaped cannot belong to another process), writes their output to the logs, and kills the processes that they leave
behind. When it ends, they end.

Orphans of a runner's children are adopted by the runner as long as it runs, and by the template when it has ended: so
then every child of the template that is no runner was the dead runner's, also if it had left its process group.
"""

from __future__ import annotations

import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Final

from flintlock.host.memory_limit import EAGER_COMMIT

#: Keeps libraries from starting threads as soon as they are imported: BLAS one for each core, Arrow's allocator one in
#: the background. A fork copies only one thread, but also the locks that other threads have at that time.
ONE_THREAD: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
os.environ.setdefault(*EAGER_COMMIT)
_ours: Final = tuple(name for name in ONE_THREAD if name not in os.environ)
os.environ.update({name: ONE_THREAD[name] for name in _ours})

from flintlock.host.logs.log_output import note  # noqa: E402
from flintlock.host.processes.parent_death import adopt_orphans, die_with_parent  # noqa: E402
from flintlock.host.processes.process import children, kill_group, threads  # noqa: E402
from flintlock.host.runner_user import CONFINED, confine  # noqa: E402
from flintlock.spark.framing import FrameDecoder, frame  # noqa: E402
from flintlock.spark.runner import process  # noqa: E402 - the environment above must be set before numpy is imported
from flintlock.spark.runner.captured_output import CapturedOutput  # noqa: E402
from flintlock.spark.runner.output_pipe import OutputPipe, remove_pipe  # noqa: E402
from flintlock.spark.runner_messages import TO_TEMPLATE, Capture, Exited, Fork, Forked, Kill, TemplateReady  # noqa: E402

#: How long the processes that a runner left behind may take to end after they were killed.
SWEEP_S: Final = 2.0


class Template:
    """Runners by number and by pid, from fork to reaping."""

    def __init__(self, control: socket.socket) -> None:
        self._control: Final = control
        self._frames: Final = FrameDecoder(TO_TEMPLATE)
        self._descriptors: Final[list[int]] = []  # received with frames that are not complete yet
        self._pids: Final[dict[int, int]] = {}  # runner -> pid; emptied as they are reaped
        self._outputs: Final[dict[int, CapturedOutput]] = {}  # by runner; as _pids
        self._wakeup, self._woken = socket.socketpair()
        self._selector: Final = selectors.DefaultSelector()

    def serve(self) -> None:
        """Fork and reap until the TaskManager closes its end; then kill what is left."""
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._send(TemplateReady())
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj: key.data for key, _ in self._selector.select()}
            for reader, printed in ready.items():
                if isinstance(printed, CapturedOutput) and isinstance(reader, int) and not printed.pump(reader):
                    self._selector.unregister(reader)
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._control in ready and not self._receive():
                break
        for pid in self._pids.values():
            kill_group(pid)
        self._pids.clear()
        self._sweep()  # also processes that have left their runner's group
        os._exit(0)

    def _receive(self) -> bool:
        data, received, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
        self._descriptors.extend(received)
        for message in self._frames.feed(data):
            match message:
                case Fork(runner=runner):
                    self._fork(runner, self._descriptors.pop(0))
                case Capture(runner=runner, path=path, limit=limit, opened=opened):
                    passed = [self._descriptors.pop(0) for _ in range(2 if opened else 0)]
                    self._capture(runner, path, limit, passed)
                case Kill(runner=runner):
                    if runner in self._pids:
                        kill_group(self._pids[runner])
        return bool(data)

    def _capture(self, runner: int, path: str, limit: int, passed: list[int]) -> None:
        """Write a runner's output to a file; `passed`: descriptors of it and of its record, or none."""
        output = self._outputs.get(runner)
        if output is None:
            for one in passed:
                os.close(one)
            return
        output.open(path, limit, *passed)
        for reader in output.readers:
            self._selector.register(reader, selectors.EVENT_READ, output)

    def _receive_pending(self) -> None:
        """Receive what the TaskManager has sent, without waiting for more."""
        while select.select([self._control], [], [], 0)[0] and self._receive():
            pass

    def _fork(self, runner: int, descriptor: int) -> None:
        own = os.getpid()
        opened = [descriptor]
        try:
            pipe = OutputPipe(runner)
            opened += [pipe.reader, pipe.writer]
            printed, printing = os.pipe()
            opened += [printed, printing]
            pid = os.fork()
        except OSError as error:
            for one in opened:
                os.close(one)
            self._send(Exited(runner=runner, fork_error=str(error)))
            return
        if pid == 0:
            os.close(pipe.reader)
            os.close(printed)
            self._become_runner(own, descriptor, printing, pipe)
        with suppress(OSError):  # the child does the same: whichever is first, a kill finds the group
            os.setpgid(pid, pid)
        os.close(descriptor)
        os.close(pipe.writer)
        os.close(printing)
        self._pids[runner] = pid
        self._outputs[runner] = CapturedOutput(printed, pipe.reader)
        self._send(Forked(runner=runner, pid=pid))

    def _become_runner(self, template: int, descriptor: int, printing: int, pipe: OutputPipe) -> None:
        """Close everything of the template, then serve as a runner. Does not return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with_parent(template)
            adopt_orphans()
            for inherited in (self._control, self._wakeup, self._woken, self._selector):
                inherited.close()
            for theirs in self._descriptors:  # of other runners, also of those that are yet to be forked
                os.close(theirs)
            for printed in self._outputs.values():
                printed.forget()
            os.set_inheritable(descriptor, False)
            for name in _ours:
                del os.environ[name]  # user code decides for itself
            process.serve(socket.socket(fileno=descriptor), printing, pipe.writer, pipe.path)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            runner = next((number for number, known in self._pids.items() if known == pid), None)
            if runner is not None:
                kill_group(pid)  # before it is reaped: until then the group's number is its own
            _, status = os.waitpid(pid, 0)
            if runner is None:
                continue
            del self._pids[runner]
            self._sweep()
            self._receive_pending()  # a task may have begun and ended while this waited: where its output goes is here
            self._close_output(runner)
            self._send(Exited(runner=runner, code=os.waitstatus_to_exitcode(status)))

    def _sweep(self) -> None:
        """Kill what dead runners left running, and what that leaves in turn; the next sweep finds what does not end."""
        give_up_s = time.monotonic() + SWEEP_S
        while orphans := children() - set(self._pids.values()):
            for orphan in orphans:
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            for orphan in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)
            if time.monotonic() > give_up_s:
                return
            self._wait_for_child(give_up_s - time.monotonic())

    def _wait_for_child(self, timeout_s: float) -> None:
        """Wait until a child has ended: SIGCHLD writes to the wake-up socket. `_reap` finds all that ended then."""
        self._woken.settimeout(max(timeout_s, 0.001))
        with suppress(TimeoutError):
            self._woken.recv(4096)
        self._woken.settimeout(None)

    def _close_output(self, runner: int) -> None:
        printed = self._outputs.pop(runner)
        for reader in printed.readers:
            with suppress(KeyError):  # it has had no task, or has closed its pipe
                self._selector.unregister(reader)
            remove_pipe(reader)  # first: a worker that opens it now would find no reader anyway
        printed.close()

    def _send(self, message: TemplateReady | Forked | Exited) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the end of the stream is read next
            self._control.sendall(frame(message))


def _ignore(_number: int, _frame: object) -> None:
    """Handle SIGCHLD by doing nothing: the wake-up socket has woken the loop."""


def main(descriptor: int, parent: int, *, confined: bool) -> None:
    """Import everything, then serve; `confined`: as a user who is not the TaskManager's."""
    die_with_parent(parent)
    if confined:
        confine()  # runners inherit it
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the cluster
    process.import_everything()
    if threads() > 1:
        note("the template of runners has more than one thread: a runner may hang when it is forked")
    gc.collect()
    gc.freeze()  # so that no collection in a runner copies the pages they share
    Template(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), confined=CONFINED in sys.argv[3:])
