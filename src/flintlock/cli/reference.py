"""`flintlock schema` and `config`: what can be written, and what is in force."""

from __future__ import annotations

from pathlib import Path

import click

from flintlock.cli.settings import define_option, json_option, place_options, print_json, read_settings
from flintlock.config.files import LoadedConfiguration, variable_of
from flintlock.config.options import OPTIONS


@click.command()
def schema() -> None:
    """Print the JSON Schema of a job in YAML, for editors and other tools."""
    from flintlock.client.authoring.yaml_form import json_schema

    print_json(json_schema())


@click.command()
@define_option
@json_option
@place_options
def config(defines: tuple[str, ...], as_json: bool, conf: Path | None, state_dir: str | None) -> None:
    """Print the configuration in force and all options, as a flintlock.yaml: what is not set is a comment."""
    settings, directory = read_settings(conf, state_dir, defines)
    if as_json:
        print_json({"file": str(settings.file) if settings.file else None, "state-dir": str(directory),
                    "set": settings.configuration.as_dict(), "options": option_rows(settings)})  # fmt: skip
        return
    click.echo(f"# configuration file: {settings.file or 'none'}\n# state directory: {directory}")
    for line in config_lines(settings):
        click.echo(line)


def config_lines(settings: LoadedConfiguration) -> list[str]:
    """Return every option with its meaning, its value, and where that comes from."""
    values = settings.configuration.as_dict()
    lines: list[str] = []
    for row in option_rows(settings):
        key, set_ = row["key"], row["set-by"]
        lines += ["", f"# {row['description']}", f"# {row['kind']}; scope: {row['scope']}; {row['variable']}"]
        lines.append(f"{key}: {row['value']}  # {set_}" if set_ else f"# {key}: {row['value']}")
    others = values.keys() - {option.key for option in OPTIONS}  # of Spark, and variables of containers
    return [
        *lines,
        *([""] if others else []),
        *(f"{key}: {value}  # {settings.places[key]}" for key, value in values.items() if key in others),
    ]


def option_rows(settings: LoadedConfiguration) -> list[dict[str, str | None]]:
    """Return all options in the order of the reference."""
    values = settings.configuration.as_dict()
    return [
        {
            "key": option.key,
            "value": values.get(option.key, option.default_text),
            "set-by": settings.places.get(option.key),
            "kind": option.kind,
            "scope": option.scope.value,
            "variable": variable_of(option.key),
            "description": option.description,
        }
        for option in OPTIONS
    ]
