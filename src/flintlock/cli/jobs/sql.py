"""`flintlock sql`: runs queries as jobs, from the command line, a file, a pipe, or a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from flintlock.cli.jobs.output import print_result, result_options
from flintlock.cli.settings import (
    announced_wait,
    cluster_options,
    define_option,
    on_terminal,
    read_settings,
    split_defines,
)
from flintlock.client.authoring.sql_form import DEFAULT_ROWS, SqlJob, is_blank, parameter, split_statements
from flintlock.config.extras import require_extra
from flintlock.config.files import split_assignment
from flintlock.model.errors import FlintlockError, Refused
from flintlock.model.operations import MAX_RESULT_ROWS

if TYPE_CHECKING:
    from flintlock.client.display.console import Display

_PROMPT: Final = "sql> "
_CONTINUED: Final = "  -> "
_HELP: Final = "Statements end with a semicolon, and each is a job of its own. exit, quit or Ctrl-D leaves."


@click.command()
@click.argument("query", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="Read statements from a file.")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter (:key); repeatable.")
@click.option("--limit", type=click.IntRange(1, MAX_RESULT_ROWS), default=DEFAULT_ROWS, metavar="N",
              help=f"Return at most N rows (default {DEFAULT_ROWS:,}).")  # fmt: skip
@click.option("--name", metavar="NAME", help="Set the name of the jobs.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Set a label; repeatable.")
@click.option("--local", is_flag=True, help="Run on an embedded cluster.")
@define_option
@result_options
@cluster_options
def sql(
    *,
    query: str | None, file: Path | None, params: tuple[str, ...], limit: int, name: str | None,
    labels: tuple[str, ...], local: bool, defines: tuple[str, ...], form: str | None, output: Path | None,
    urls: tuple[str, ...], conf: Path | None, state_dir: str | None,
) -> int:  # fmt: skip
    """Run SQL and print the rows.

    QUERY is one statement or several, separated by semicolons. Without one, statements are read from standard input: on
    a terminal at a prompt, until Ctrl-D. Each statement is a job of its own, so that settings and temporary views do
    not last.
    """
    from flintlock.client.authoring.package import Overrides
    from flintlock.client.clusters.discovery import cluster_or_embedded, connected_cluster
    from flintlock.client.running import run_query

    if query is not None and file is not None:
        raise Refused("give either a query or --file")
    values = {key: parameter(text) for key, text in (split_assignment(item, "--param") for item in params)}
    job_config, cluster_defines = split_defines(defines)
    overrides = Overrides(
        name=name, config=job_config, labels=dict(split_assignment(text, "--label") for text in labels)
    )
    text = _text_of(query, file)
    statements = [] if text is None else _statements(text)
    _check_output(statements, form, output)
    settings, directory = read_settings(conf, state_dir, defines)
    cluster = None if local else cluster_or_embedded(settings, urls, directory, announced_wait())
    if cluster is None:
        require_extra("cluster", "--local" if local else "no cluster runs, -m names none, and an embedded one")
    with connected_cluster(settings, cluster, cluster_defines) as connection:

        def run(statement: str) -> None:
            job = SqlJob(statement, params=values, limit=limit)
            print_result(run_query(connection, job, _display(), overrides), form, output, title=False)

        if text is None:
            return Prompt(run, input).loop()
        for statement in statements:
            run(statement)
    return 0


def _text_of(query: str | None, file: Path | None) -> str | None:
    """Return what is to be run; None if it is typed at a prompt."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise Refused(f"{str(file)!r} cannot be read: {error}") from error
    if query is None and on_terminal() and sys.stdout.isatty():
        return None
    return sys.stdin.read() if query is None else query


def _statements(text: str) -> list[str]:
    complete, rest = split_statements(text)
    statements = [*complete, *([] if is_blank(rest) else [rest])]
    if not statements:
        raise Refused("there is no statement to run")
    return statements


def _check_output(statements: Sequence[str], form: str | None, output: Path | None) -> None:
    """Raise Refused, before anything runs, where the rows of one statement would replace or follow those of another."""
    from flintlock.client.display.result_files import ResultFormat, format_of

    several = f"there are {len(statements)} statements" if statements else "at the prompt each statement has rows"
    if output is not None:
        if form is None:
            format_of(output)
        if len(statements) != 1:
            raise Refused(f"-o writes the rows of one statement to a file, and {several}: give one, or leave -o out")
    elif form is not None and ResultFormat(form).binary and len(statements) > 1:
        raise Refused(f"--format {form} is a file with the rows of one statement, and {several}: give one")


def _display() -> Display:
    from flintlock.client.display.console import LiveDisplay, PlainDisplay, error_console

    console = error_console()
    if console.is_terminal:
        return LiveDisplay(console, sys.stderr, transient=True)
    return PlainDisplay(sys.stderr, sys.stderr, transient=True)


class Prompt:
    """Reads statements, one after another, and runs each as soon as a semicolon ends it."""

    def __init__(self, run: Callable[[str], None], read: Callable[[str], str]) -> None:
        self._run: Final = run
        self._read: Final = read

    def loop(self) -> int:
        """Read and run until the user leaves. An error, or Ctrl-C, ends the statement only."""
        with suppress(ImportError):
            import_module("readline")  # input() edits lines with it, and remembers them

        click.echo(_HELP, err=True)
        typed = ""
        while True:
            try:
                line = self._read(_CONTINUED if typed else _PROMPT)
            except EOFError:
                click.echo(err=True)
                return 0
            except KeyboardInterrupt:
                click.echo(err=True)
                typed = ""
                continue
            if not typed and line.strip().lower().rstrip(";") in ("exit", "quit", "\\q"):
                return 0
            statements, typed = split_statements(f"{typed}\n{line}" if typed else line)
            if is_blank(typed):
                typed = ""
            for statement in statements:
                if not self._try(statement):
                    break

    def _try(self, statement: str) -> bool:
        from flintlock.cli.main import print_error

        try:
            self._run(statement)
        except FlintlockError as error:
            print_error(error)
            return False
        except KeyboardInterrupt:
            click.echo("cancelled", err=True)
            return False
        return True
