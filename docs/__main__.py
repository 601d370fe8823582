"""Write the generated reference pages: `make docs`. A test compares them with what this would write."""

from __future__ import annotations

import sys
from pathlib import Path

from flintlock.config.options import OPTIONS
from flintlock.model import log_events
from flintlock.rest.server.routes import ENDPOINTS, EVENTS

HERE = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Return each generated page with its text."""
    return {
        HERE / "configuration.md": configuration(),
        HERE / "rest.md": rest(),
        HERE / "log-events.md": events(),
    }


def configuration() -> str:
    """The options, from their declarations."""
    lines = [
        "# Configuration",
        "",
        "Made from `flintlock/config/options.py` by `make docs`.",
        "",
        "Defaults < `flintlock.yaml` < environment (`FLINTLOCK_` and the key in capitals, `.` and `-` as `_`) < `-D`",
        "and flags. Options of scope *job* may also stand in a job's own `config`, and beat the cluster's there.",
        "`spark.*` of the cluster configures engines; `spark.*` of a job sets its session.",
        "",
        "| key | takes | default | scope | meaning |",
        "|---|---|---|---|---|",
    ]
    for option in sorted(OPTIONS, key=lambda option: option.key):
        default = option.default_text or (str(option.default) if option.default != "" else "")
        lines.append(f"| `{option.key}` | {option.kind} | {default} | {option.scope} | {option.description} |")
    return "\n".join(lines) + "\n"


def rest() -> str:
    """The endpoints, from their table."""
    lines = [
        "# REST",
        "",
        "Made from `flintlock/rest/server/routes.py` by `make docs`; `/openapi.json` has the schemas. Every path",
        'answers bare and under `/v1`. Errors are `{"errors": […]}`; 503 carries `Retry-After`.',
        "",
        "Every JobManager answers: one that does not lead passes requests on to the one that does.",
        "`Flintlock-Leader-Epoch` names the term of the leader that gave the answer; `Age` marks a copy of it, at most",
        "half a second old (`Cache-Control: no-cache` asks for none).",
        "",
        "| method | path | does | answers | errors |",
        "|---|---|---|---|---|",
    ]
    for row in ENDPOINTS:
        parameters = "".join(f"<br>`{item.name}` ({item.where}): {item.description}" for item in row.parameters)
        name = getattr(row.answers, "__name__", str(row.answers))
        errors = ", ".join(map(str, row.errors))
        lines.append(f"| {row.method} | `{row.path}` | {row.title}{parameters} | {row.status} {name} | {errors} |")
    lines.append(f"| GET | `{EVENTS.path}` | Server-sent events: a line for each job that changed. | 200 stream | |")
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


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(HERE.parent)}\n")
