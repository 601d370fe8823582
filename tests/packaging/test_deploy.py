"""The files of `deploy/`: units that systemd accepts and that call the command line as it is, and a safe image.

The Dockerfile is read, checked by hadolint, and built where there is a Docker daemon, which needs a network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.installed_packages import installed
from tests.packaging.test_wheel import run_uv

from flintlock.cli.main import app
from flintlock.config.files import RESERVED
from flintlock.entrypoints.process import EXIT_FAILED, EXIT_FATAL, EXIT_UNUSABLE, EXIT_USAGE
from flintlock.host.processes.supervision import BY_INTENT

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
HARDENED: Final = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "PrivateDevices": "yes", "ProtectKernelModules": "yes", "ProtectKernelTunables": "yes",
    "RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes", "LockPersonality": "yes", "UMask": "0077",
    "StateDirectoryMode": "0700",
}  # fmt: skip


def settings_of(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_calls_a_command_that_exists_with_options_that_it_has(unit: Path) -> None:
    program, name, *options = shlex.split(settings_of(unit)["ExecStart"][0])
    assert program == "/opt/flintlock/bin/flintlock"
    command = app.get_command(app.make_context("flintlock", [name]), name)
    assert command is not None
    context = command.make_context(name, [option.replace("%i", "0") for option in options], resilient_parsing=False)
    assert context.params["index"] == 0
    assert {text.split("=")[0] for text in settings_of(unit)["Environment"]} <= RESERVED


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_restarts_what_the_supervisor_would_restart_and_is_hardened(unit: Path) -> None:
    found = settings_of(unit)
    prevented = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert found["Restart"] == ["on-failure"]  # which leaves 0 alone
    assert prevented | {0} == BY_INTENT == {0, EXIT_USAGE, EXIT_FAILED}
    assert not prevented & {EXIT_UNUSABLE, EXIT_FATAL}
    assert {key: found[key] for key in HARDENED} == {key: [value] for key, value in HARDENED.items()}
    assert found["User"] == ["flintlock"]
    assert ("Delegate" in found) == ("taskmanager" in unit.name)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "flintlock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name.replace("@", "@0")
    copy.write_text(unit.read_text().replace("/opt/flintlock/bin/flintlock", str(program)))

    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )

    # Keys of newer versions, and units that this machine does not have, are no mistakes.
    known = re.compile(
        r"RestartSteps|RestartMaxDelaySec|network-online|flintlock-jobmanager@0|Failed to (connect|create)"
    )
    problems = [
        line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line and not known.search(line)
    ]
    assert problems == []


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


def test_the_image_is_pinned_small_and_runs_as_a_user_without_rights() -> None:
    found = instructions()
    words = [word for word, _ in found]
    (base,) = [rest for word, rest in found if word == "FROM"]
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)  # a version, never `latest`
    assert "ADD" not in words
    (user,) = [rest for word, rest in found if word == "USER"]
    assert int(user.split(":")[0]) > 0
    assert words.index("USER") > max(number for number, word in enumerate(words) if word == "RUN")
    for rest in (rest for word, rest in found if word == "RUN"):
        assert "apt-get install" not in rest or ("--no-install-recommends" in rest and "rm -rf /var/lib/apt" in rest)
        assert "pip install" not in rest or "--no-cache-dir" in rest
        assert "curl" not in rest
    for word, rest in found:
        assert word not in {"ENV", "ARG"} or not re.search("SECRET|TOKEN|PASSWORD", rest, re.IGNORECASE)


def test_hadolint_accepts_the_dockerfile() -> None:
    # DL3008, DL3013: the base image pins the distribution, requirements files pin what is installed from an index.
    program = installed("hadolint") / "bin" / "hadolint"
    ignored = [part for rule in ("DL3008", "DL3013") for part in ("--ignore", rule)]
    done = subprocess.run(
        [str(program), *ignored, str(DEPLOY / "docker" / "Dockerfile")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def docker() -> str:
    """The command, where it reaches a daemon."""
    command = shutil.which("docker")
    if command is None:
        pytest.skip("there is no docker")
    reached = subprocess.run([command, "info"], capture_output=True, text=True, check=False, timeout=60)
    if reached.returncode != 0:
        pytest.skip(f"docker cannot run here: {reached.stderr.strip()}")
    return command


def test_the_image_is_built_and_runs_the_command_as_its_user(docker: str, tmp_path: Path) -> None:
    built = ("--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", str(tmp_path / "dist"))
    run_uv("build", "--wheel", *built)  # into the place of `make dist`
    place = tmp_path / "deploy" / "docker"
    place.mkdir(parents=True)
    shutil.copy(DEPLOY / "docker" / "Dockerfile", place)
    tag = f"flintlock-test-{os.getpid()}"

    def run(*arguments: str, limit_s: float) -> str:
        done = subprocess.run(
            [docker, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=limit_s
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    run("build", "-f", "deploy/docker/Dockerfile", "-t", tag, ".", limit_s=1200)
    try:
        assert "flintlock" in run("run", "--rm", tag, "--version", limit_s=120)
        assert run("run", "--rm", "--entrypoint", "id", tag, "-u", limit_s=120).strip() == "10001"
    finally:
        run("image", "rm", "--force", tag, limit_s=120)


def test_the_image_calls_commands_that_exist() -> None:
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["tini", "--", "flintlock"]
    (command,) = json.loads(found["CMD"])
    assert app.get_command(app.make_context("flintlock", [command]), command) is not None
    assert re.findall(r"FLINTLOCK_\w+", found["ENV"]) == ["FLINTLOCK_STATE_DIR"]
