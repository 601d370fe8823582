"""`flintlock doctor`: check the installation, and what a cluster on this machine needs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
from msgspec import Struct

from flintlock import __version__
from flintlock.cli.settings import define_option, json_option, place_options, print_json, read_settings
from flintlock.client.connection.versions import own_versions
from flintlock.config.configuration import Configuration
from flintlock.config.extras import install_command, missing_modules
from flintlock.config.files import LoadedConfiguration, state_directory
from flintlock.config.options import REST_ADDRESS, REST_PORT, TM_ENGINE_MEMORY, TM_SLOTS
from flintlock.model.errors import FlintlockError, Invalid

#: What a TaskManager has in memory beside the heap of its engine: the JVM's own, and Python processes.
_BESIDE_HEAP: Final = 1 << 29
_LEAST_DISK: Final = 1 << 30


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
    try:
        settings, directory = read_settings(conf, state_dir, defines)
        configured = _configuration(settings)
    except Invalid as error:  # the rest is checked as if nothing was configured
        settings = LoadedConfiguration(configuration=Configuration({}), places={}, file=None)
        directory = state_directory(settings, state_dir)
        configured = Finding("configuration", False, error.public.replace("\n", "; "))
    findings = [_python()]
    if own_versions().pyspark:
        findings += [_cluster(), _java(), configured, _state(directory), _port(settings, directory)]
        findings += _machine(settings, directory)
    else:
        findings += [_client(), configured]
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
    place = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding("state directory", False, f"{directory} cannot be written: {error.strerror}")
    return Finding("state directory", True, f"{directory}{'' if directory.exists() else ' (not created yet)'}")


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())


def _machine(settings: LoadedConfiguration, directory: Path) -> list[Finding]:
    import psutil

    heap, cores = settings.configuration.get(TM_ENGINE_MEMORY), os.cpu_count() or 1
    slots = settings.configuration.get(TM_SLOTS) or cores
    return [
        Finding("cores", True, f"{cores}; a TaskManager has {slots} slot{'' if slots == 1 else 's'}"),
        memory_finding(psutil.virtual_memory().total, heap),
        disk_finding(directory, shutil.disk_usage(_existing(directory)).free),
    ]


def memory_finding(total: int, heap: int) -> Finding:
    """Report whether the engine of one TaskManager, whose JVM needs more than its heap, has room on this machine."""
    detail = f"{_gib(total)}; the heap of an engine has {_gib(heap)} (taskmanager.engine.memory)"
    needed = heap + _BESIDE_HEAP
    if needed <= total:
        return Finding("memory", True, detail)
    return Finding("memory", False, f"{detail}, and its TaskManager needs {_gib(needed)} in all")


def disk_finding(directory: Path, free: int) -> Finding:
    """Report whether there is room for logs, results and what Spark spills."""
    if free >= _LEAST_DISK:
        return Finding("disk", True, f"{_gib(free)} free for {directory}")
    return Finding("disk", False, f"{_gib(free)} free for {directory}: less than {_gib(_LEAST_DISK)}")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


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
