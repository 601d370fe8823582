"""A JobManager that SIGKILLs itself at one named point, once: `KILL_JOBMANAGER_AT=graphs.put:after`.

The process is the real one; its stores, blobs, connections and served gateways are wrapped, and die before or after
one of their operations. A marker in the state directory records it, so that the next process runs on.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from flintlock.entrypoints.jobmanager import serve
from flintlock.entrypoints.process import ProcessSettings, start
from flintlock.model.tasks import FilesPublished, RegionRecord, TaskReport

T = TypeVar("T")
POINT = os.environ.get("KILL_JOBMANAGER_AT", "")


def name_of(path: str, message: object) -> str:
    """Name an operation by its place and its message."""
    match message:
        case RegionRecord(phase=phase):
            return f"{path}.{phase}"
        case TaskReport(news=FilesPublished(done=done, complete=complete)):
            # A progress report may be replaced by a newer one, so the second file may go unreported.
            return f"{path}.published.{'all' if complete else 'first' if done == 1 else 'further'}"
        case TaskReport(news=news):
            return f"{path}.{type(news).__name__}"
        case _:
            return path


class Deadly:
    """Stands in front of a part and dies at the point."""

    def __init__(self, path: str, part: object, die: Any) -> None:
        self._path = path
        self._part = part
        self._die = die

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        path = name if self._path in ("ha", "host", "connector") else f"{self._path}.{name}"
        if name in ("graphs", "results", "progress", "ended"):
            return Deadly(name, found, self._die)
        if name == "stores":
            return partial(self._stores, found)
        if name == "connect":
            return partial(self._connect, found)
        if name == "serve":
            return partial(self._serve, found)
        if inspect.iscoroutinefunction(found) or hasattr(found, "__await__") or self._is_remote(found):
            return partial(self._deadly_call, path, found)
        return found

    def _stores(self, stores: Any, token: Any) -> Deadly:
        return Deadly("ha", stores(token), self._die)

    def _connect(self, connect: Any, gateway: type[object], *rest: Any) -> Deadly:
        return Deadly(gateway.__name__, connect(gateway, *rest), self._die)

    def _serve(self, serve_gateway: Any, gateway: type[object], implementation: object, *rest: Any) -> Any:
        return serve_gateway(gateway, Deadly(gateway.__name__, implementation, self._die), *rest)

    def _is_remote(self, found: object) -> bool:
        return callable(found) and self._path.endswith("Gateway")

    async def _deadly_call(self, path: str, call: Any, *arguments: Any) -> Any:
        name = name_of(path, arguments[0] if arguments else None)
        self._die(f"{name}:before")
        answer = await call(*arguments)
        self._die(f"{name}:after")
        return answer


def deadly_serve(settings: ProcessSettings) -> Any:
    """Serve as JobManager until the point."""
    marker = settings.state_dir / "killed"

    def die(name: str) -> None:
        with Path(settings.state_dir / "points").open("a", encoding="utf-8") as file:
            file.write(name + "\n")
        if name == POINT and not marker.exists():
            marker.write_text(name, encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)

    def instrument(name: str, part: T) -> T:
        return cast("T", Deadly(name, part, die))

    return serve(settings, instrument)


if __name__ == "__main__":
    sys.exit(start("jobmanager", deadly_serve, uvloop.new_event_loop))
