"""Write the generated pages, and the types of the dashboard: `make docs`. A test compares them with what is there."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from dashboard.api_types import TYPES, types_text

from flintlock.config.options import OPTIONS
from flintlock.dispatcher.core import PHASE_MOVES, JobPhase
from flintlock.model import log_events
from flintlock.model.states import EXECUTION_MOVES, JOB_MOVES, ExecutionState, JobStatus
from flintlock.model.tasks import REGION_MOVES, RegionPhase
from flintlock.rest.server.routes import ROUTES

HERE = Path(__file__).parent
_State = TypeVar("_State", bound=StrEnum)


def pages() -> dict[Path, str]:
    """Return each generated file with its text."""
    return {
        HERE / "configuration.md": configuration(),
        HERE / "rest.md": rest(),
        HERE / "log-events.md": events(),
        HERE / "states.md": states(),
        TYPES: types_text(),
    }


def configuration() -> str:
    """The options, from their declarations."""
    lines = [
        "# Configuration",
        "",
        "Made from `flintlock/config/options.py` by `make docs`.",
        "",
        "Defaults < `flintlock.yaml` < environment (`FLINTLOCK_` and the key in capitals, `.` and `-` as `_`) < `-D`",
        "and flags. Options of scope *job* may also be set in a job's own `config`, which takes precedence.",
        "`spark.*` of the cluster configures engines; `spark.*` of a job sets its session.",
        "`containerized.master.env.NAME` and `containerized.taskmanager.env.NAME` set the environment variable NAME of",
        "JobManagers and TaskManagers in containers of YARN ([deployment](deployment.md#a-cluster-on-yarn)).",
        "",
        "| key | takes | default | scope | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{option.key}` | {option.kind} | {option.default_text} | {option.scope} | {option.description} |"
        for option in sorted(OPTIONS, key=lambda option: option.key)
    ]
    return "\n".join(lines) + "\n"


def rest() -> str:
    """The REST routes, from their table."""
    lines = [
        "# REST",
        "",
        "Made from `flintlock/rest/server/routes.py` by `make docs`; `/openapi.json` has the schemas. Every path is",
        'served bare and under `/v1`. Errors are `{"errors": […]}`; 503 has the header `Retry-After`.',
        "",
        "Every JobManager answers. *Served by* leader: a standby forwards the request to the leader, and",
        "`Flintlock-Leader-Epoch` names the term of the leader that made the response. *Cached*: a standby may send a",
        "response that is this old; the header `Age` marks it, and `Cache-Control: no-cache` asks for a new one.",
        "",
        "*Role*: the least role that a caller needs (viewer, submitter, operator, admin; each includes the ones before",
        "it). *Own*: a submitter may do it to jobs that the same name has submitted, an operator to all. 401: there is",
        "no credential, or it is wrong, expired or revoked; 403: the role does not suffice, or a web page of another",
        "origin sent the request. [Security](security.md) says how to get a credential.",
        "",
        "| method | path | role | does | responds | errors | served by | cached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROUTES:
        parameters = "".join(f"<br>`{item.name}` ({item.where}): {item.description}" for item in row.parameters)
        name = "stream" if row.streams else getattr(row.answers, "__name__", str(row.answers))
        errors = ", ".join(map(str, row.statuses))
        role = "" if row.role is None else f"{row.role}{' (own)' if row.of_own_job else ''}"
        cached = f"{row.cache_s:g} s" if row.cache_s else ""
        lines.append(
            f"| {row.method} | `{row.path}` | {role} | {row.summary}{parameters} | {row.status} {name} | {errors}"
            f" | {row.served_by} | {cached} |"
        )
    return "\n".join(lines) + "\n"


def events() -> str:
    """The log events, from their registry."""
    lines = [
        "# Log events",
        "",
        "Made from `flintlock/model/log_events.py` by `make docs`.",
        "",
        "Every log line is one JSON object when it is not written to a terminal. `event` is one of the names below;",
        "the other keys are facts of that event, such as `job_id`.",
    ]
    for section, named in log_events.EVENTS.items():
        lines += ["", f"## {section}", "", "| event | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in named.items()]
    return "\n".join(lines) + "\n"


def states() -> str:
    """The state machines, from the tables that the code checks every move against."""
    lines = [
        "# States",
        "",
        "Made from the tables in `flintlock/model/states.py`, `flintlock/model/tasks.py` and",
        "`flintlock/dispatcher/core.py` by `make docs`. A move that is not in its table is a bug: it ends the process.",
        "",
        "## Job",
        "",
        "The states and moves are Flink's. SUSPENDED ends a JobMaster's work on the job, not the job: the next leader",
        "continues it, from INITIALIZING. FINISHED, FAILED and CANCELED never change.",
        *_state_machine(JOB_MOVES, [JobStatus.INITIALIZING], [status for status in JobStatus if status.terminal]),
        "",
        "## Execution",
        "",
        "An execution is one attempt at one region. A further attempt is a new execution, which begins in CREATED; one",
        "that an earlier leader had sent begins in RECONCILING, or ends in CANCELED if it cannot be reached.",
        "Flink's INITIALIZING (a task restores its state) is in REST answers, because Flink's clients expect a count",
        "for each state. No attempt is ever in it.",
        *_state_machine(
            EXECUTION_MOVES,
            [ExecutionState.CREATED, ExecutionState.RECONCILING],
            [state for state in ExecutionState if state.terminal],
        ),
        "",
        "## Region record",
        "",
        "What the store knows of a region; each record is durable before the message that it announces is sent.",
        "DEPLOYED follows itself with every further attempt. It follows FINISHED when a blocking result was lost and",
        "is made again. A region without staged sinks goes from DEPLOYED to FINISHED.",
        *_state_machine(REGION_MOVES, [RegionPhase.DEPLOYED], [RegionPhase.FINISHED]),
        "",
        "## Job in the Dispatcher",
        "",
        "What the Dispatcher still has to do for a job. A submission begins in RESERVED, a recovered job in",
        "INITIALIZING, a job whose result is stored but whose cleanup was interrupted in CLEANING.",
        *_state_machine(
            PHASE_MOVES,
            [JobPhase.RESERVED, JobPhase.INITIALIZING, JobPhase.CLEANING],
            [phase for phase, following in PHASE_MOVES.items() if not following],
        ),
    ]
    return "\n".join(lines) + "\n"


def _state_machine(
    moves: Mapping[_State, frozenset[_State]], first: Collection[_State], last: Collection[_State]
) -> list[str]:
    """Return one table of moves as a diagram and as a table, in the order of the declaration."""
    order = [state for state in type(next(iter(moves))) if state in moves]
    edges = [(state, [other for other in order if other in moves[state]]) for state in order]
    return [
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    [*] --> {state}" for state in first),
        *(f"    {state} --> {other}" for state, following in edges for other in following),
        *(f"    {state} --> [*]" for state in order if state in last),
        "```",
        "",
        "| from | to |",
        "|---|---|",
        *(f"| {state} | {', '.join(following) or 'nothing: terminal'} |" for state, following in edges),
    ]


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(HERE.parent)}\n")
