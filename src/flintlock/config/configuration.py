"""Configuration: options declared once, typed, with default and description; values checked when they are set.

A `Configuration` is an immutable set of texts, as they stand in files and on command lines; an option reads its own
value out of it. `spark.*` belongs to Spark and is passed on as it is, and `containerized.*.env.*` are variables of
processes in containers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.quantities import (
    MemoryUpTo,
    duration_s,
    duration_text,
    memory_bytes,
    memory_text,
    positive_duration_s,
)

T = TypeVar("T")
#: Before the names of environment variables of processes in containers of YARN: of JobManagers, and of TaskManagers.
MASTER_VARIABLES: Final = "containerized.master.env."
WORKER_VARIABLES: Final = "containerized.taskmanager.env."
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_DURATIONS: Final[tuple[Callable[[str], object], ...]] = (duration_s, positive_duration_s)


class Scope(StrEnum):
    """Where an option may be set."""

    CLUSTER = "cluster"
    JOB = "job"  # may also be set in a job's own configuration, which takes precedence over the cluster's


class Option(Struct, Generic[T], frozen=True, kw_only=True):
    """One setting: its key, how its text is read, and what it means."""

    key: str
    parse: Callable[[str], T]
    kind: str
    default: T
    description: str
    scope: Scope = Scope.CLUSTER
    unset: str = ""  # what applies while the option is not set, where that is more than the default value

    @property
    def default_text(self) -> str:
        """The default as a user would write it, or what applies instead of one."""
        if self.unset:
            return self.unset
        match self.default:
            case bool(value):
                return "true" if value else "false"
            case float(value) if self.parse in _DURATIONS:
                return duration_text(value)
            case int(value) if self.parse is memory_bytes or isinstance(self.parse, MemoryUpTo):
                return memory_text(value)
            case value:
                return str(value)


class Configuration:
    """Texts by key. It checks nothing: `config_problems` finds unknown keys and ill-typed values before it is made."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values: Final = dict(values or {})

    def get(self, option: Option[T]) -> T:
        """Return the option's value, or its default."""
        text = self._values.get(option.key)
        return option.default if text is None else option.parse(text)

    def has(self, option: Option[Any]) -> bool:
        """Return whether the option was set."""
        return option.key in self._values

    def over(self, values: Mapping[str, str]) -> Configuration:
        """Return this configuration with `values` on top."""
        return Configuration({**self._values, **values})

    def spark(self) -> dict[str, str]:
        """Return what belongs to Spark."""
        return {key: value for key, value in self._values.items() if key.startswith("spark.")}

    def variables(self, prefix: str) -> dict[str, str]:
        """Return the environment variables that are set by keys with this prefix."""
        return {key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)}

    def as_dict(self) -> dict[str, str]:
        """Return all values that were set, as texts."""
        return dict(self._values)


def config_problems(values: Mapping[str, str], options: Iterable[Option[Any]], scope: Scope) -> list[tuple[str, str]]:
    """Return (key, what is wrong) for every key that is unknown, out of place or ill-typed."""
    if not values:
        return []
    known = {option.key: option for option in options}
    suggestions = Suggestions()
    problems: list[tuple[str, str]] = []
    for key, text in values.items():
        option = known.get(key)
        if key.startswith("spark."):
            if any(character.isspace() for character in key):
                problems.append((key, "has white space in its name: Spark would not know it"))
            continue
        if key.startswith((MASTER_VARIABLES, WORKER_VARIABLES)):
            problems += [(key, problem)] if (problem := _variable_problem(key, scope)) else []
        elif option is None:
            problems.append((key, "unknown option" + suggestions.suggestion(key, known, cutoff=0.5)))
        elif scope is Scope.JOB and option.scope is not Scope.JOB:
            problems.append((key, "is an option of the cluster: a job cannot set it"))
        else:
            try:
                option.parse(text)
            except ValueError as error:
                problems.append((key, f"{error} (the option takes {option.kind})"))
    return problems


def _variable_problem(key: str, scope: Scope) -> str | None:
    name = key.removeprefix(MASTER_VARIABLES).removeprefix(WORKER_VARIABLES)
    if scope is Scope.JOB:
        return "is an option of the cluster: a job cannot set it"
    if name.startswith("FLINTLOCK_"):
        return "sets nothing: the variables of Flintlock itself are read before; set the option"
    return None if _VARIABLE.fullmatch(name) else f"{name!r} is not the name of an environment variable"


def boolean(text: str) -> bool:
    """Read `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"


def integer(least: int, most: int = 1 << 31) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"{value} is not from {least} to {most}")
        return value

    return parse


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return a reader of finite numbers within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise ValueError(f"{text!r} is not a number")
        if value < least:
            raise ValueError(f"{value} is less than {least}")
        if value > most:
            raise ValueError(f"{value} is more than {most}")
        return value

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader of one of a few names."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def file_name(text: str) -> str:
    """Read a name that can also name a file or a node."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", text) is None:
        raise ValueError(f"{text!r} is not a name of letters, digits, '.', '-' and '_'")
    return text


def znode_path(text: str) -> str:
    """Read an absolute path of ZooKeeper."""
    if re.fullmatch(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+", text) is None:
        raise ValueError(f"{text!r} is not a path such as '/flintlock'")
    return text


def names(text: str) -> tuple[str, ...]:
    """Read names with commas or semicolons between them."""
    return tuple(name for part in re.split("[,;]", text) if (name := part.strip()))


def parallelisms(text: str) -> dict[str, int]:
    """Read pairs of a step's id and its parallelism (`id:2,id:4`)."""
    pairs: dict[str, int] = {}
    for item in names(text):
        step, colon, count = item.rpartition(":")
        if not colon or not step.strip() or not count.strip().isdecimal() or int(count) < 1:
            raise ValueError(f"{item!r} is not a step's id and its parallelism, such as 'id:2'")
        pairs[step.strip()] = int(count)
    return pairs
