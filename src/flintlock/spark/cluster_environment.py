"""The Python environment of all jobs of a TaskManager, from the requirements that its configuration names.

`python -m flintlock.spark.cluster_environment CACHE REQUIREMENTS` builds the environment, or finds it, writes one line
of JSON to its output (all that pip prints goes to its errors), and has the environment in use until its input closes.
A process of its own does this, as the user whom user code runs as: installing a package may run its code.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from flintlock.host.processes.children import forget_child, record_child
from flintlock.host.runner_user import RunnerUser, process_user
from flintlock.model.errors import Unavailable
from flintlock.spark.environments import (
    EnvironmentFailed,
    EnvironmentSource,
    build_environment,
    environment_key,
    open_environment,
    parent_sites,
)


class EnvironmentOutcome(Struct, frozen=True, kw_only=True):
    """The environment's Python, or why there is none."""

    python: str = ""
    problem: str = ""


@asynccontextmanager
async def cluster_environment(
    requirements: str,
    *,
    cache: Path,
    run_dir: Path,
    log_file: Path,
    environment: Mapping[str, str],
    user: RunnerUser | None = None,
) -> AsyncGenerator[str]:
    """Build the environment of these requirements and yield its Python; it is in use until the end of the scope.

    Without requirements it is the Python of this process. Raises Unavailable with pip's last lines.
    """
    if not requirements:
        yield sys.executable
        return
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "flintlock.spark.cluster_environment", str(cache), requirements,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            cwd="/", env=dict(environment), **process_user(user),
        )  # fmt: skip
    finally:
        os.close(log)
    record = record_child(run_dir, "environment", process.pid)
    try:
        line = await process.stdout.readline() if process.stdout is not None else b""
        outcome = msgspec.json.decode(line, type=EnvironmentOutcome) if line else EnvironmentOutcome()
        if not outcome.python:
            reason = outcome.problem or f"its process ended; {log_file} may say why"
            raise Unavailable(f"the Python environment of {requirements} cannot be built: {reason}")
        yield outcome.python
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        forget_child(record)


def main(cache: Path, requirements: Path) -> None:
    """Build the environment, say where it is, and keep it in use until the input closes."""
    answers, sys.stdout = sys.stdout, sys.stderr
    parents = parent_sites()
    try:
        digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
        source = EnvironmentSource(content=(digest,), requirements=str(requirements), in_place=True)

        environment = open_environment(
            cache, environment_key(source, parents), lambda directory: build_environment(source, directory, parents)
        )
        outcome = EnvironmentOutcome(python=environment.python)
    except (EnvironmentFailed, OSError) as error:
        outcome = EnvironmentOutcome(problem=str(error))
    answers.write(msgspec.json.encode(outcome).decode() + "\n")
    answers.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
