"""`flintlock completion`: completion of commands, options and jobs in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from flintlock.model.errors import Refused


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(*, shell: str) -> None:
    """Print a script that completes commands, options and jobs.

    bash: eval "$(flintlock completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish: flintlock
    completion fish > ~/.config/fish/completions/flintlock.fish
    """
    from flintlock.cli.main import app

    found = get_completion_class(shell)
    if found is None:
        raise Refused(f"there is no completion for {shell}")
    click.echo(found(app, {}, "flintlock", "_FLINTLOCK_COMPLETE").source())
