"""Takes a file sink back to a savepoint: what later batches have written is moved out of it, and never removed.

    <sink>/_spark_metadata/<batch>                       the log of the sink: the files of each batch
    <sink>/.flintlock-rewound-<job>/plan.json            which entries and files are moved; written first, once
    <sink>/.flintlock-rewound-<job>/_spark_metadata/…    the entries after the savepoint
    <sink>/.flintlock-rewound-<job>/…                    the files that they name, under their own names

The entries are moved first, the latest first: from then on no reader of Spark sees the files, and the log ends at the
savepoint. A plan that is there is carried out to its end by the next JobManager.

Hadoop keeps the checksum of a file `x` in `.x.crc`. It is moved before its file: one that stayed would be compared with
what the restored query writes under that name, and a file without a checksum can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from flintlock.model.errors import Invalid
from flintlock.model.streaming.checkpoints import latest_batch
from flintlock.savepoints.writing import sync_directory, write_durably

_LOG: Final = "_spark_metadata"
_PLAN: Final = "plan.json"


class Rewind(Struct, frozen=True, kw_only=True):
    """What is moved out of one sink, by names relative to it."""

    batch: int  # the last one that stays
    entries: tuple[str, ...]  # of the log, the latest first
    files: tuple[str, ...]


def rewind_sink(sink: Path, batch: int, job_id: str) -> None:
    """Have a file sink end with a batch. Repeating it completes it. Raises Invalid if it cannot be done, OSError."""
    aside = sink / f".flintlock-rewound-{job_id}"
    if aside.is_symlink():
        raise Invalid(f"{aside} is a symbolic link: what is moved out of a sink stays in it. Remove the link")
    plan = _plan_of(aside)
    if plan is None:
        plan = planned_rewind(sink, batch)
        if not plan.entries:
            return
        _check_names(aside, plan)
        (aside / _LOG).mkdir(parents=True, exist_ok=True)
        new = aside / f"{_PLAN}.new"
        new.unlink(missing_ok=True)
        write_durably(new, msgspec.json.encode(plan))
        new.replace(aside / _PLAN)
        sync_directory(aside)
    _check_names(sink, plan)
    _check_names(aside, plan)
    for name in plan.entries:
        _move(sink / _LOG / name, aside / _LOG / name)
    sync_directory(sink / _LOG)
    for name in plan.files:
        _move(sink / name, aside / name)


def planned_rewind(sink: Path, batch: int) -> Rewind:
    """Return what has to be moved for a sink to end with a batch. Raises Invalid if its log does not say that."""
    log = sink / _LOG
    names = [path.name for path in log.iterdir()] if log.is_dir() else []
    latest = latest_batch(names)
    if latest is None or latest <= batch:
        return Rewind(batch=batch, entries=(), files=())
    entries = {name: (log / name).read_text() for name in names if _number(name) is not None}
    kept, written = files_up_to(entries, batch), files_up_to(entries, latest)
    if kept is None or written is None:
        raise Invalid(
            f"{sink} cannot be taken back to batch {batch}: Spark has removed the entries of its log that say what was"
            " written up to there. Choose another path"
        )
    later = [name for name in entries if (_number(name) or 0) > batch]
    plan = Rewind(
        batch=batch,
        entries=tuple(sorted(later, key=lambda name: -(_number(name) or 0))),
        files=tuple(_relative(sink, path) for path in written if path not in kept),
    )
    _check_names(sink, plan)
    return plan


def files_up_to(entries: Mapping[str, str], batch: int) -> dict[str, None] | None:
    """Return the files in a sink's log up to a batch; None if an entry is missing. `entries`: by their file names."""
    whole = (_number(name) or 0 for name in entries if name.endswith(".compact"))
    first = max((number for number in whole if number <= batch), default=0)
    files: dict[str, None] = {}
    for number in range(first, batch + 1):
        text = entries.get(f"{number}.compact") if number == first else None
        text = entries.get(str(number)) if text is None else text
        if text is None:
            return None
        for line in text.splitlines()[1:]:
            files |= dict.fromkeys(_paths(line))
    return files


def _paths(line: str) -> list[str]:
    try:
        found: object = json.loads(line)
    except ValueError:
        return []
    path = cast("dict[str, object]", found).get("path") if isinstance(found, dict) else None
    return [path] if isinstance(path, str) else []


def _relative(sink: Path, url: str) -> str:
    """Return the name of a file in a sink. Raises Invalid for one that is elsewhere: nothing else is ever moved."""
    path = Path(unquote(urlsplit(url).path)) if ":" in url else sink / url
    try:
        return str(path.relative_to(sink))
    except ValueError:
        raise Invalid(f"the log of {sink} names {url}, which is not in it: it was moved. Choose another path") from None


def _check_names(directory: Path, plan: Rewind) -> None:
    """Raise Invalid if a name of a plan leads out of a directory: by `..`, or by a symbolic link above the file."""
    root = directory.resolve()
    names = [Path(_LOG, name) for name in plan.entries] + [Path(name) for name in plan.files]
    wrong = next((name for name in names if name.is_absolute() or not name.parts or ".." in name.parts), None)
    if wrong is None:
        parents = {name.parent: name for name in names}
        outside = (name for parent, name in parents.items() if not (directory / parent).resolve().is_relative_to(root))
        wrong = next(outside, None)
    if wrong is not None:
        raise Invalid(f"{wrong} leads out of {directory}: only files in a sink are moved. Choose another path")


def _number(name: str) -> int | None:
    number = name.removesuffix(".compact")
    return int(number) if number.isdecimal() else None


def _plan_of(aside: Path) -> Rewind | None:
    try:
        return msgspec.json.decode((aside / _PLAN).read_bytes(), type=Rewind)
    except (OSError, msgspec.DecodeError):
        return None


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for name in (f".{source.name}.crc", source.name):
        with suppress(FileNotFoundError):  # it was moved before, or has no checksum
            source.with_name(name).replace(target.with_name(name))
