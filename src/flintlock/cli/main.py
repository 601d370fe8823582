"""`flintlock`: finds the command, runs it, and turns errors into messages and exit codes.

0: success. 1: the job failed or was cancelled, or the command failed. 2: wrong usage. 3: no cluster responds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Final, NamedTuple, NoReturn

import click

from flintlock import __version__
from flintlock.client.errors import JobCanceled
from flintlock.model.checking.suggestions import suggestion
from flintlock.model.errors import FlintlockError, Invalid, JobFailed, Refused, Unavailable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_CLUSTER: Final = 3
EXIT_INTERRUPTED: Final = 130


class CommandRow(NamedTuple):
    """Where a command is defined, and its line in the list of commands."""

    home: str  # module below flintlock.cli, and name
    help: str


#: The commands. None of them is imported before it is called, nor to list them.
COMMANDS: Final[Mapping[str, CommandRow]] = {
    "run": CommandRow(home="jobs.run:run", help="Run a job and show its progress until it ends."),
    "sql": CommandRow(home="jobs.sql:sql", help="Run SQL and print the rows; without a query, at a prompt."),
    "info": CommandRow(home="jobs.info:info", help="Show a job's plan: regions, steps and guarantees."),
    "list": CommandRow(home="jobs.listing:list_jobs", help="List the jobs of the cluster."),
    "status": CommandRow(home="jobs.control:status", help="Show one job."),
    "top": CommandRow(home="jobs.top:top", help="Show how a job's streaming queries are doing, live."),
    "rerun": CommandRow(home="jobs.rerun:rerun", help="Run a job again, with other parameters if you like."),
    "wait": CommandRow(home="jobs.listing:wait", help="Wait until jobs have ended."),
    "cancel": CommandRow(home="jobs.control:cancel", help="Cancel a job."),
    "rescale": CommandRow(home="jobs.control:rescale", help="Change how many slots a job may use."),
    "savepoint": CommandRow(home="jobs.savepoints:savepoint", help="Save where a streaming job is."),
    "upgrade": CommandRow(
        home="jobs.savepoints:upgrade", help="Replace a streaming job by another one, from where it is."
    ),
    "stop": CommandRow(home="jobs.savepoints:stop", help="End a streaming job with a savepoint."),
    "logs": CommandRow(home="jobs.output:logs", help="Print the output of a job's code."),
    "threads": CommandRow(home="jobs.output:threads", help="Print what a job's running code does now."),
    "result": CommandRow(home="jobs.output:result", help="Print a job's result."),
    "quarantine": CommandRow(home="jobs.quarantine:quarantine", help="Inspect, put back or drop broken jobs."),
    "dashboard": CommandRow(home="cluster.browser:dashboard", help="Open the cluster in a browser, logged in."),
    "spark-ui": CommandRow(home="cluster.browser:spark_ui", help="Open Spark's UI of an engine in a browser."),
    "token": CommandRow(home="cluster.tokens:token", help="Make, list and revoke tokens for other users."),
    "cluster": CommandRow(home="cluster.lifecycle:cluster", help="Start, stop and inspect a local cluster."),
    "session": CommandRow(home="cluster.session:session", help="Start, stop and use a cluster on YARN."),
    "jobmanager": CommandRow(home="cluster.lifecycle:jobmanager", help="Run a JobManager in the foreground."),
    "taskmanager": CommandRow(home="cluster.lifecycle:taskmanager", help="Run a TaskManager in the foreground."),
    "certs": CommandRow(home="cluster.certs:certs", help="Make certificates for a cluster on several machines."),
    "init": CommandRow(home="init:init", help="Write a small example job."),
    "doctor": CommandRow(home="cluster.doctor:doctor", help="Check what Flintlock needs on this machine."),
    "schema": CommandRow(home="reference:schema", help="Print the JSON Schema of a job in YAML."),
    "completion": CommandRow(home="completion:completion", help="Print a script for shell completion."),
    "config": CommandRow(home="reference:config", help="Print the effective configuration."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Import one command."""
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        module, _, name = row.home.partition(":")
        command: click.Command = getattr(import_module(f"flintlock.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest command for one that does not exist."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}" + suggestion(args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flintlock", message="%(prog)s %(version)s")
def app() -> None:
    """Run Spark jobs that survive: Apache Flink's control plane, Apache Spark's data plane."""


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run_app(sys.argv[1:]))


def run_app(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed on stderr."""
    try:
        outcome: object = app.main(arguments, prog_name="flintlock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except FlintlockError as error:
        print_error(error)
        return exit_code(error)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has exited: a message would have no reader either
        return 0
    return outcome if isinstance(outcome, int) else 0


def exit_code(error: FlintlockError) -> int:
    """Return the exit code of an error."""
    match error:
        case JobFailed() | JobCanceled():
            return EXIT_FAILED
        case Refused():
            return EXIT_USAGE
        case Unavailable():
            return EXIT_NO_CLUSTER
        case _:
            return EXIT_FAILED


def print_error(error: FlintlockError) -> None:
    """Print what is wrong on stderr, one problem per line."""
    problems = error.problems if isinstance(error, Invalid) else (error.public,)
    for problem in problems:
        click.echo(click.style("error: ", fg="red", bold=True) + problem, err=True)
