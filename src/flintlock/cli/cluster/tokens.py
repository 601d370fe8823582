"""`flintlock token create|list|revoke|whoami`."""

from __future__ import annotations

from pathlib import Path

import click

from flintlock.cli.settings import cluster_options, connect, json_option, print_json
from flintlock.cli.tables import aligned, moment
from flintlock.model.access.principals import Role


@click.group()
def token() -> None:
    """Make, list and revoke tokens, with which others use the cluster."""


@token.command()
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What it is good for.")
@click.option("--name", required=True, help="Whom it is for; recorded with the jobs that are submitted with it.")
@click.option("--expires", metavar="DURATION", help="How long it is valid, such as 30d; without it, until revoked.")
@json_option
@cluster_options
def create(
    *, role: str, name: str, expires: str | None, as_json: bool, urls: tuple[str, ...], conf: Path | None,
    state_dir: str | None,
) -> None:  # fmt: skip
    """Make a token and print it. It is shown this once: the cluster stores only its hash."""
    with connect(urls, conf, state_dir) as client:
        made = client.create_token(name=name, role=Role(role), expires_in=expires)
    if as_json:
        print_json(made)
        return
    click.echo(made.token)
    until = "until it is revoked" if made.expires is None else f"until {moment(made.expires)}"
    click.echo(f"token {made.id} for {made.name}, role {made.role}, valid {until}", err=True)
    click.echo("keep it in a file that only its user can read, and name that in security.token-file", err=True)


@token.command("list")
@json_option
@cluster_options
def list_tokens(*, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """List the tokens that are valid."""
    with connect(urls, conf, state_dir) as client:
        found = client.tokens()
    if as_json:
        print_json({"tokens": found})
        return
    if not found:
        click.echo("there are no tokens; `flintlock token create` makes one")
        return
    rows = [
        (each.id, each.name, each.role, moment(each.created), "-" if each.expires is None else moment(each.expires))
        for each in found
    ]
    for line in aligned(("ID", "NAME", "ROLE", "CREATED", "EXPIRES"), rows):
        click.echo(line)


@token.command()
@click.argument("token_id", metavar="ID")
@cluster_options
def revoke(*, token_id: str, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Revoke a token. ID is as `flintlock token list` shows it."""
    with connect(urls, conf, state_dir) as client:
        client.revoke_token(token_id)
    click.echo(f"token {token_id} is revoked")


@token.command()
@json_option
@cluster_options
def whoami(*, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Show as whom the cluster knows the caller, and with which role."""
    with connect(urls, conf, state_dir) as client:
        who = client.whoami()
    if as_json:
        print_json(who)
        return
    click.echo(f"{who.name}, role {who.role}")
