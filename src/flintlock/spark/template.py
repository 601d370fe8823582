"""The template: has imported PySpark once, and forks a runner whenever the TaskManager asks for one.

`python -m flintlock.spark.template FD PARENT`: FD is the inherited socket to the TaskManager, PARENT its pid.

Importing PySpark with Connect costs more than half a second of CPU; a fork of a process that has done it costs
milliseconds. Forking is safe only as long as this process has one thread and no open gRPC channel, so it never opens
a channel, never starts a thread, and never looks at user code.

It is the parent of all runners: it reaps them, tells how they ended, kills on request (a pid that it has not reaped
cannot belong to somebody else), and clears away what they leave running. When it ends, they end.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

#: What keeps libraries from starting threads as soon as they are imported: BLAS one for each core, Arrow's allocator
#: one in the background. A fork copies only one thread, and every lock as another may hold it just then.
ONE_THREAD: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_ours: Final = tuple(name for name in ONE_THREAD if name not in os.environ)
os.environ.update({name: ONE_THREAD[name] for name in _ours})

from flintlock.spark import runner_main  # noqa: E402 - the environment above must stand before numpy is imported
from flintlock.spark.processes import (  # noqa: E402
    adopt_orphans,
    children,
    die_with_parent,
    kill_group,
    threads,
)
from flintlock.spark.wire import (  # noqa: E402
    TO_TEMPLATE,
    Exited,
    Fork,
    Forked,
    Frames,
    Kill,
    TemplateReady,
    frame,
)


class Template:
    """Runners by number and by pid, from fork to reaping."""

    def __init__(self, control: socket.socket) -> None:
        self._control: Final = control
        self._frames: Final = Frames(TO_TEMPLATE)
        self._sockets: Final[list[int]] = []  # came with Fork frames that are not whole yet
        self._pids: Final[dict[int, int]] = {}  # runner -> pid; emptied as they are reaped
        self._wakeup, self._woken = socket.socketpair()

    def serve(self) -> None:
        """Fork and reap until the TaskManager closes its end; then kill what is left."""
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, _noted)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._say(TemplateReady())
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._woken in ready:
                    self._woken.recv(4096)
                    self._reap()
                if self._control in ready and not self._hear():
                    break
        for pid in self._pids.values():
            kill_group(pid)
        os._exit(0)

    def _hear(self) -> bool:
        data, sockets, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
        self._sockets.extend(sockets)
        for message in self._frames.feed(data):
            match message:
                case Fork(runner=runner):
                    self._fork(runner, self._sockets.pop(0))
                case Kill(runner=runner):
                    if runner in self._pids:
                        kill_group(self._pids[runner])
        return bool(data)

    def _fork(self, runner: int, descriptor: int) -> None:
        own = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._say(Exited(runner=runner, fork_error=str(error)))
            return
        if pid == 0:
            self._become_runner(own, descriptor)
        with suppress(OSError):  # the child does the same: whoever comes first, a kill finds the group
            os.setpgid(pid, pid)
        os.close(descriptor)
        self._pids[runner] = pid
        self._say(Forked(runner=runner, pid=pid))

    def _become_runner(self, template: int, descriptor: int) -> None:
        """Leave everything of the template behind. Does not return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with_parent(template)
            for inherited in (self._control, self._wakeup, self._woken):
                inherited.close()
            for pending in self._sockets:  # of runners that are about to be forked
                os.close(pending)
            os.set_inheritable(descriptor, False)
            for name in _ours:
                del os.environ[name]  # user code decides for itself
            runner_main.serve(socket.socket(fileno=descriptor))
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        by_pid = {pid: runner for runner, pid in self._pids.items()}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in by_pid:
                kill_group(pid)  # before it is reaped: until then the group's number is its own
            _, status = os.waitpid(pid, 0)
            runner = by_pid.pop(pid, None)
            if runner is None:
                continue
            del self._pids[runner]
            for orphan in children() - set(by_pid):
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            self._say(Exited(runner=runner, code=os.waitstatus_to_exitcode(status)))

    def _say(self, message: TemplateReady | Forked | Exited) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # heard as the end of the stream, next
            self._control.sendall(frame(message))


def _noted(_number: int, _frame: object) -> None:
    """Take SIGCHLD: the wakeup descriptor has told the loop."""


def main(descriptor: int, parent: int) -> None:
    """Import everything, then serve."""
    die_with_parent(parent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started the cluster
    runner_main.import_everything()
    if threads() > 1:
        sys.stderr.write("the template of runners has more than one thread: a runner may hang when it is forked\n")
    gc.collect()
    gc.freeze()  # so that no collection in a runner copies the pages they share
    Template(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
