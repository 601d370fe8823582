"""`flintlock certs`: the certificates of a cluster on several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from flintlock.config.extras import require_extra
from flintlock.config.options import TLS_AUTHORITIES, TLS_MEMBER

_DIRECTORY: Final = click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("flintlock-certs"),
    show_default=True,
    help="The directory of the authority.",
)


@click.group()
def certs() -> None:
    """Make the certificates of a cluster on several machines."""
    require_extra("cluster", "flintlock certs")


@certs.command()
@_DIRECTORY
@click.option("--days", type=click.IntRange(1, 36500), default=3650, show_default=True, help="How long it is valid.")
def init(directory: Path, days: int) -> None:
    """Make the authority that issues the certificates of one cluster."""
    from flintlock.security.certificates import AUTHORITY_KEY, make_authority

    made = make_authority(directory, days=days)
    click.echo(f"made {made}; keep {directory / AUTHORITY_KEY} to yourself, best on none of the cluster's machines")
    click.echo(f"next, for each machine: flintlock certs issue HOST --directory {directory}")


@certs.command()
@click.argument("host")
@click.argument("names", nargs=-1)
@_DIRECTORY
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="How long it is valid.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write it; by default a directory named HOST.")
def issue(host: str, names: tuple[str, ...], directory: Path, days: int, out: Path | None) -> None:
    """Issue a certificate for the machine that others reach as HOST, or as any of the further NAMES.

    Issuing it again renews it: processes that use the files continue with the new certificate.
    """
    from flintlock.security.certificates import AUTHORITY, issue

    target = out or directory / host
    member = issue(directory, (host, *names), target, days=days)
    click.echo(f"issued {member}. Copy {target} to {host}, closed to other users, and configure there:")
    click.echo(f"  {TLS_MEMBER.key}: {member.name} (its path)")
    click.echo(f"  {TLS_AUTHORITIES.key}: {AUTHORITY} (its path)")
