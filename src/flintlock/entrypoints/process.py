"""What every process of Flintlock does first and last: arguments, configuration, logs, signals, exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import psutil
import structlog

from flintlock import __version__
from flintlock.config.configuration import Configuration
from flintlock.config.files import load
from flintlock.host.parent_death import die_with_parent
from flintlock.model import log_events
from flintlock.model.errors import Invalid, Refused, Unavailable
from flintlock.model.jobgraph import Versions

EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 4
EXIT_FATAL: Final = 5

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a process was started."""

    state_dir: Path
    configuration: Configuration
    index: int = 0


def start(
    name: str,
    main: Callable[[Settings], Coroutine[Any, Any, None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run a server process until it ends or is told to (SIGTERM, SIGINT); return its exit code."""
    arguments = _parser(name).parse_args()
    if arguments.die_with_parent is not None:
        die_with_parent(arguments.die_with_parent or os.getppid())
    _configure_logs()
    try:
        state_dir = Path(arguments.state_dir).resolve()
        configuration = load(arguments.D).configuration
        state_dir.mkdir(parents=True, exist_ok=True)
        settings = Settings(state_dir=state_dir, configuration=configuration, index=arguments.index)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_until_told(main(settings), name))
    except Invalid as error:
        return _fail(name, EXIT_USAGE, "\n".join(error.problems))
    except (Refused, Unavailable) as error:
        return _fail(name, EXIT_UNUSABLE, error.public)
    except OSError as error:
        return _fail(name, EXIT_UNUSABLE, str(error))
    except BaseExceptionGroup as group:
        invalid = [error for error in leaves(group) if isinstance(error, Invalid)]
        if len(invalid) == len(leaves(group)):
            return _fail(name, EXIT_USAGE, "\n".join(problem for error in invalid for problem in error.problems))
        if all(isinstance(error, Refused | Unavailable | OSError) for error in leaves(group)):
            return _fail(name, EXIT_UNUSABLE, "; ".join(str(error) for error in leaves(group)))
        log.critical(log_events.PROCESS_FAILED, exc_info=group)
        return EXIT_FATAL
    return 0


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the errors inside a group, however deep."""
    found: list[BaseException] = []
    for error in group.exceptions:
        inner = cast("BaseExceptionGroup[BaseException]", error)
        found += leaves(inner) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def cluster_versions() -> Versions:
    """Return what runs here, without importing any of it."""
    return Versions(
        flintlock=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        pyspark=version("pyspark"),
    )


def write_json(path: Path, value: object) -> None:
    """Write a small file so that readers see all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
    fresh.replace(path)


def own_pid() -> dict[str, float]:
    """Name this process so that a recycled pid is never taken for it."""
    return {"pid": os.getpid(), "start-time": psutil.Process().create_time()}


async def _until_told(main: Coroutine[Any, Any, None], name: str) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(main, name=name)
        waiting = tasks.create_task(told.wait(), name="signals")
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        log.info(log_events.PROCESS_STOPPING, process=name, told=told.is_set())
        serving.cancel()
        waiting.cancel()


def _parser(name: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"flintlock {name}")
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--die-with-parent", type=int, nargs="?", const=0, metavar="PID")
    parser.add_argument("-D", action="append", default=[], metavar="key=value")
    return parser


def _fail(name: str, code: int, reason: str) -> int:
    sys.stderr.write(f"flintlock {name}: {reason}\n")
    return code


def _json(event: object, default: Callable[[Any], Any]) -> str:
    return msgspec.json.encode(event, enc_hook=default).decode()


def _configure_logs() -> None:
    """JSON lines off a terminal, colours on one."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(_json)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
