"""`flintlock`: finds the command, runs it, turns errors into words and exit codes.

0: done. 1: the job failed or was cancelled, or what was asked could not be done. 2: asked wrongly. 3: no cluster
answers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final, NoReturn

import click

from flintlock import __version__
from flintlock.client.errors import JobCanceled
from flintlock.model.errors import FlintlockError, Invalid, JobFailed, Refused, Unavailable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_CLUSTER: Final = 3
EXIT_INTERRUPTED: Final = 130

#: Where each command lives; nothing of it is imported before it is called.
COMMANDS: Final = {
    "run": "flintlock.cli.run:run",
    "info": "flintlock.cli.info:info",
    "list": "flintlock.cli.jobs:list_jobs",
    "status": "flintlock.cli.jobs:status",
    "cancel": "flintlock.cli.jobs:cancel",
    "rescale": "flintlock.cli.jobs:rescale",
    "logs": "flintlock.cli.output:logs",
    "result": "flintlock.cli.output:result",
    "cluster": "flintlock.cli.cluster:cluster",
    "jobmanager": "flintlock.cli.cluster:jobmanager",
    "taskmanager": "flintlock.cli.cluster:taskmanager",
    "init": "flintlock.cli.init:init",
    "doctor": "flintlock.cli.doctor:doctor",
    "schema": "flintlock.cli.reference:schema",
    "config": "flintlock.cli.reference:config",
}
HELP: Final = {
    "run": "Run a job and show it to its end.",
    "info": "Show a job's plan: regions, steps, exchanges, guarantees.",
    "list": "List the jobs of the cluster.",
    "status": "Show one job.",
    "cancel": "Cancel a job.",
    "rescale": "Change how many slots a job may use.",
    "logs": "Print what a job's own code has written.",
    "result": "Print a job's result.",
    "cluster": "Start, stop and look at a cluster on this machine.",
    "jobmanager": "Run a JobManager in the foreground.",
    "taskmanager": "Run a TaskManager in the foreground.",
    "init": "Write a small job to begin with.",
    "doctor": "Check what Flintlock needs on this machine.",
    "schema": "Print the JSON Schema of a job in YAML.",
    "config": "Print the configuration in force, and all options.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Import one command."""
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        module, _, name = home.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which command is nearest to one that does not exist."""
        from difflib import get_close_matches

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flintlock", message="%(prog)s %(version)s")
def app() -> None:
    """Run Spark jobs that survive: Apache Flink's control plane, Apache Spark's data plane."""


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run_app(sys.argv[1:]))


def run_app(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
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
        tell(error)
        return exit_code(error)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone: nothing to tell, nobody to tell it to
        return 0
    return outcome if isinstance(outcome, int) else 0


def exit_code(error: FlintlockError) -> int:
    """Return the exit code that an error stands for."""
    match error:
        case JobFailed() | JobCanceled():
            return EXIT_FAILED
        case Refused():
            return EXIT_USAGE
        case Unavailable():
            return EXIT_NO_CLUSTER
        case _:
            return EXIT_FAILED


def tell(error: FlintlockError) -> None:
    """Say what is wrong, on stderr; several problems one below the other."""
    problems = error.problems if isinstance(error, Invalid) else (error.public,)
    for problem in problems:
        click.echo(click.style("error: ", fg="red", bold=True) + problem, err=True)
