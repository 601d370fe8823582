"""`flintlock doctor`: check the installation, and what a cluster on this machine needs."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import click
from msgspec import Struct

from flintlock import __version__
from flintlock.cli.settings import define_option, json_option, place_options, print_json, read_settings
from flintlock.client.connection.versions import own_versions
from flintlock.config.extras import install_command, missing_modules
from flintlock.config.files import LoadedConfiguration
from flintlock.config.options import REST_ADDRESS, REST_PORT
from flintlock.model.errors import FlintlockError


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    fine: bool
    detail: str


@click.command()
@define_option
@json_option
@place_options
def doctor(*, defines: tuple[str, ...], as_json: bool, conf: Path | None, state_dir: str | None) -> int:
    """Check what Flintlock needs on this machine; exits with 1 if something is missing.

    An installation without PySpark is a client: what only a cluster needs is not checked there.
    """
    settings, directory = read_settings(conf, state_dir, defines)
    findings = [_python()]
    if own_versions().pyspark:
        findings += [_cluster(), _java(), _configuration(settings), _state(directory), _port(settings, directory)]
    else:
        findings += [_client(), _configuration(settings)]
    if as_json:
        print_json({"findings": findings})
    else:
        for finding in findings:
            mark = click.style("ok  ", fg="green") if finding.fine else click.style("FAIL", fg="red")
            click.echo(f"{mark}  {finding.what.ljust(15)}  {finding.detail}")
    return 0 if all(finding.fine for finding in findings) else 1


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("Python", True, f"{version} ({sys.executable}), Flintlock {__version__}")


def _client() -> Finding:
    """Report an installation without PySpark: complete for a client, and never able to run a cluster."""
    return Finding("installation", True, f"client only; to run clusters here: {install_command('cluster')}")


def _cluster() -> Finding:
    missing = missing_modules("cluster")
    if missing:
        return Finding("installation", False, f"{', '.join(missing)} not installed: {install_command('cluster')}")
    return Finding("installation", True, f"client and cluster, PySpark {own_versions().pyspark}")


def _java() -> Finding:
    from flintlock.spark.engine.java import find_java

    try:
        java = find_java(os.environ)
    except FlintlockError as error:
        return Finding("Java", False, error.public)
    return Finding("Java", True, f"{java.major} at {java.home} (found by {java.origin})")


def _configuration(settings: LoadedConfiguration) -> Finding:
    many = len(settings.configuration.as_dict())
    return Finding("configuration", True, f"{settings.file or 'no file'}, {many} option{'' if many == 1 else 's'} set")


def _state(directory: Path) -> Finding:
    """Try to write where the state directory is, or where it would be made."""
    place = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding("state directory", False, f"{directory} cannot be written: {error.strerror}")
    return Finding("state directory", True, f"{directory}{'' if directory.exists() else ' (not created yet)'}")


def _port(settings: LoadedConfiguration, directory: Path) -> Finding:
    from flintlock.host.processes.pid_files import read_cluster_file

    live = read_cluster_file(directory)
    if live is not None:
        return Finding("REST", True, f"a cluster listens at {live.rest}")
    host, port = settings.configuration.get(REST_ADDRESS), settings.configuration.get(REST_PORT)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("REST", False, f"{host}:{port} cannot be listened on: {error.strerror} (set rest.port)")
    return Finding("REST", True, f"{host}:{port} is free")
