"""Where settings come from: defaults < flintlock.yaml < environment < `-D` and flags.

Every process reads its configuration with `load`, so all of them agree on the precedence and on error messages.
Unknown and ill-typed settings are reported all at once, each with the file and line, variable or flag that sets it; a
variable `FLINTLOCK_…` that is no setting may be another program's, and is ignored with a warning.
This module imports nothing heavy: a JobManager's start waits for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from flintlock.config.configuration import Configuration, Scope, config_problems
from flintlock.config.options import CLUSTER_ID, OPTIONS
from flintlock.model.application import APPLICATION_REST_VARIABLE, APPLICATION_VARIABLE, PROGRAM_VARIABLE
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.errors import Invalid

FILE_NAME: Final = "flintlock.yaml"
PREFIX: Final = "FLINTLOCK_"
#: Variables that are not options: where things are, rather than how they behave.
RESERVED: Final = frozenset(
    {
        "FLINTLOCK_CONF",
        "FLINTLOCK_STATE_DIR",
        "FLINTLOCK_JAVA_HOME",
        APPLICATION_VARIABLE,
        APPLICATION_REST_VARIABLE,
        PROGRAM_VARIABLE,
    }
)

#: How alike a foreign variable has to be to one of ours to be taken for a mistyped one: all have the prefix in common.
_SIMILAR: Final = 0.85

_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")
_SERVICE_PORT: Final = re.compile(r"_PORT(_\d+_(TCP|UDP|SCTP))?$")
_SERVICE_PART: Final = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)$")


class LoadedConfiguration(Struct, frozen=True, kw_only=True):
    """A configuration, and for each key that was set the place that set it."""

    configuration: Configuration
    places: dict[str, str]
    file: Path | None = None
    warnings: tuple[str, ...] = ()  # about variables that are ignored


def load(
    overrides: Iterable[str] = (),
    *,
    conf: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> LoadedConfiguration:
    """Return the settings in force.

    `overrides` are `key=value` as given with `-D`; `conf` names the file, else FLINTLOCK_CONF does, else it is looked
    for in `directory` (the current one) and in `$XDG_CONFIG_HOME/flintlock`. Raises Invalid with every problem.
    """
    variables = os.environ if environ is None else environ
    file = find_file(conf, variables, directory or Path.cwd())
    problems: list[str] = []
    warnings: list[str] = []
    values: dict[str, str] = {}
    places: dict[str, str] = {}

    def take(found: dict[str, tuple[str, str]]) -> None:
        texts = {key: text for key, (text, _) in found.items()}
        for key, message in config_problems(texts, OPTIONS, Scope.CLUSTER):
            problems.append(f"{found[key][1]}: {key!r}: {message}")
        values.update(texts)
        places.update({key: place for key, (_, place) in found.items()})

    if file is not None:
        take(_from_file(file, problems))
    take(_from_environment(variables, warnings))
    take(_from_flags(overrides, problems))
    if problems:
        raise Invalid("\n".join(problems), problems=tuple(problems))
    return LoadedConfiguration(configuration=Configuration(values), places=places, file=file, warnings=tuple(warnings))


def find_file(conf: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """Return the configuration file, absolute; None if there is none. Raises Invalid if the one named is missing."""
    named = conf or (Path(environ["FLINTLOCK_CONF"]) if environ.get("FLINTLOCK_CONF") else None)
    if named is not None:
        if not (directory / named).is_file():
            raise Invalid(f"there is no configuration file {str(named)!r}")
        return (directory / named).resolve()
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    for candidate in (directory / FILE_NAME, home / "flintlock" / FILE_NAME):
        if candidate.is_file():
            return candidate.resolve()
    return None


def state_directory(
    settings: LoadedConfiguration, given: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> Path:
    """Return the cluster's state directory, absolute: as given, or `$XDG_STATE_HOME/flintlock/<cluster id>`.

    A program of an application has that of its own cluster.
    """
    variables = os.environ if environ is None else environ
    named = given or variables.get(APPLICATION_VARIABLE) or variables.get("FLINTLOCK_STATE_DIR")
    if named:
        return Path(named).expanduser().resolve()
    home = variables.get("XDG_STATE_HOME") or str(Path(variables.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(home) / "flintlock" / settings.configuration.get(CLUSTER_ID)


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of what a user's clusters can create again: `$XDG_CACHE_HOME/flintlock`."""
    variables = os.environ if environ is None else environ
    home = variables.get("XDG_CACHE_HOME") or str(Path(variables.get("HOME", "~")).expanduser() / ".cache")
    return Path(home) / "flintlock"


def variable_of(key: str) -> str:
    """Return the environment variable that sets an option."""
    return PREFIX + key.upper().replace(".", "_").replace("-", "_")


def environment_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options that environment variables set, by key."""
    found = _from_environment(os.environ if environ is None else environ, [])
    return {key: value for key, (value, _) in found.items()}


def split_assignment(text: str, flag: str) -> tuple[str, str]:
    """Split `key=value`. Raises Invalid that shows what was given."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Invalid(f"{flag} {text}: must have the form key=value")
    return key.strip(), value


def _from_file(file: Path, problems: list[str]) -> dict[str, tuple[str, str]]:
    from flintlock.config.yaml_document import read_yaml

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file}: cannot be read: {error}")
        return {}
    if not text.strip() or all(line.lstrip().startswith("#") for line in text.splitlines() if line.strip()):
        return {}
    document = read_yaml(text)
    problems += [f"{file}:{item.mark.line}:{item.mark.column}: {item.message}" for item in document.problems]
    found: dict[str, tuple[str, str]] = {}

    def walk(value: object, path: tuple[str, ...]) -> None:
        mark = document.mark(path)
        place = f"{file}:{mark.line}:{mark.column}"
        key = ".".join(path)
        if isinstance(value, dict):
            for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                walk(item, (*path, str(name)))  # pyright: ignore[reportUnknownArgumentType]
        elif value is None or isinstance(value, list) or not path:
            problems.append(f"{place}: {key!r}: needs one value")
        elif key in found:
            problems.append(f"{place}: {key!r}: is set already, at {found[key][1]}")
        else:
            found[key] = (("true" if value else "false") if isinstance(value, bool) else str(value), place)

    if not document.problems:
        walk(document.content, ())
    return found


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, tuple[str, str]]:
    """Return the options that variables set. A variable of another program stops nothing: it is ignored."""
    keys = {variable_of(option.key): option.key for option in OPTIONS}
    found: dict[str, tuple[str, str]] = {}
    suggestions = Suggestions()
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or _is_service_link(name, environ[name]):
            continue
        if name in keys:
            found[keys[name]] = (environ[name], name)
        elif name.startswith(PREFIX + "SPARK_"):
            warnings.append(f"{name} is ignored: Spark's settings are set in {FILE_NAME} or with -D")
        else:
            known = suggestions.suggestion(name, [*keys, *RESERVED], _SIMILAR)
            warnings.append(f"{name} is ignored: it sets no option" + known)
    return found


def _is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes has set the variable, as it does in each pod for a Service whose name begins so.

    `FLINTLOCK_REST_PORT` is one for a Service `flintlock-rest`, and the option `rest.port`: the values tell them apart.
    """
    if _SERVICE_ADDRESS.match(value) and _SERVICE_PORT.search(name):
        return True
    return _SERVICE_PART.search(name) is not None


def _from_flags(overrides: Iterable[str], problems: list[str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for text in overrides:
        try:
            key, value = split_assignment(text, "-D")
        except Invalid as error:
            problems.append(error.public)
        else:
            found[key] = (value, f"-D {text}")
    return found
