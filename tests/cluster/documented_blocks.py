"""What becomes of each shell block in the documentation: it is followed, by whom, or why it cannot be run here.

`tests/packaging/first_steps.py` follows the first pages with an installed wheel, `test_documented_commands.py` those
of `FOLLOWED` on a running cluster and those of `OWN_CLUSTERS` alone, and `test_recipes.py` the page on dependencies.
Blocks are named by page and the beginning of their first line, with a number if a page has it again, so that a changed
page is noticed.

Of the Python blocks, those that are files are used by the blocks around them; `test_documented_python.py` runs the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from tests.packaging.first_steps import PAGES as FIRST_PAGES
from tests.unit.docs.code_blocks import PAGES, ROOT, code_blocks

Place: TypeAlias = tuple[str, str]
"""A page, and the beginning of the first line of a block in it."""

_NAME_LENGTH: Final = 60

FOLLOWED: Final[frozenset[Place]] = frozenset({
    ("docs/dashboard.md", "flintlock dashboard"),
    ("docs/dependencies.md", "flintlock run --py-files lib.py,helpers/ revenue.py:job"),
    ("docs/jobs.md", "flintlock sql 'SELECT day, sum(total) FROM parquet.`/data/re"),
    ("docs/running.md", "flintlock list --label team=core --label nightly"),
    ("docs/security.md", "flintlock token create --role submitter --name airflow --exp"),
    ("docs/security.md", 'curl -H "Authorization: Bearer $(cat airflow.token)" http://'),
    ("docs/security.md", "flintlock dashboard"),
    ("docs/security.md", "(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' "),
    ("docs/security.md", "flintlock certs init --directory certs"),
    ("docs/testing.md", "flintlock info job.yaml"),
    ("docs/troubleshooting.md", "flintlock doctor"),
    ("docs/troubleshooting.md", "flintlock status JOB"),
    ("docs/upgrading.md", "flintlock --version"),
})  # fmt: skip

#: Those that start and stop a cluster: `test_documented_commands.py` runs each in a state directory of its own.
OWN_CLUSTERS: Final[frozenset[Place]] = frozenset(
    {
        ("docs/operations.md", "flintlock cluster start --taskmanagers 1 --slots 4"),
        ("docs/testing.md", "export FLINTLOCK_STATE_DIR=$(mktemp -d)"),
    }
)

#: Of the page on dependencies: `test_recipes.py` runs them, that for S3 where it may download the AWS SDK.
RECIPES: Final[frozenset[str]] = frozenset({
    "flintlock run --requirements requirements.txt score.py:job",
    "flintlock run --pyenv environment.tar.gz score.py:job",
    "flintlock run --jars lib/driver.jar,lib/format.jar etl.py:jo",
    "flintlock run --engine dedicated -D spark.sql.extensions=com",
    "flintlock run numbers.yaml",
    "flintlock cluster start --conf flintlock.yaml #2",
    "flintlock cluster start --conf flintlock.yaml #3",
    "flintlock run avro.yaml",
    "flintlock run --requirements requirements.txt score.py",
})  # fmt: skip

_OWN_CLUSTER: Final = "starts and stops a cluster of its own"
_SYSTEM: Final = "changes the machine"
NOT_RUN: Final[Mapping[Place, str]] = {
    ("CONTRIBUTING.md", "make check"): "is what runs these tests",
    ("docs/dependencies.md", "flintlock cluster start --conf flintlock.yaml"):
        f"{_OWN_CLUSTER}, with a jar that is an example; test_recipes.py runs the same command for S3",
    ("docs/deployment.md", "flintlock run -t per-job job.yaml"): "tests/cluster/test_per_job.py runs both",
    ("docs/deployment.md", "flintlock status latest --state-dir ~/.local/state/flintlock"):
        "tests/cluster/test_per_job.py runs them, with the id of a job",
    ("docs/deployment.md", "flintlock run -t application nightly.py"): "tests/cluster/test_applications.py runs it",
    ("docs/deployment.md", "export HADOOP_CONF_DIR=/etc/hadoop/conf"): "needs YARN; tests/cluster/test_yarn.py has one",
    ("docs/deployment.md", "flintlock run -t yarn-per-job -D yarn.application.queue=nigh"):
        "needs YARN; tests/cluster/test_yarn.py has one",
    ("docs/deployment.md", "useradd --system --home-dir /var/lib/flintlock --shell /usr/"): _SYSTEM,
    ("docs/deployment.md", "make dist"): "needs docker; tests/packaging/test_deploy.py has hadolint check the file",
    ("docs/security.md", "useradd --system --user-group flintlock-runner"): _SYSTEM,
    ("docs/upgrading.md", "flintlock cluster stop"): f"{_OWN_CLUSTER}, and installs a package",
}  # fmt: skip

#: Pages whose Python blocks are run, and the other blocks that are no files.
PYTHON_PAGES: Final = frozenset({"docs/python.md", "docs/testing.md"})
PYTHON_NOT_RUN: Final[Mapping[Place, str]] = {
    ("docs/jobs.md", "class MissingKey(fl.NoRetry): ..."):
        "is a part of a job; tests/cluster/test_failures.py has a whole one",
}  # fmt: skip


def python_blocks() -> Iterator[Place]:
    """Yield the Python blocks that are neither files nor on `PYTHON_PAGES`."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for block in code_blocks(page, "python"):
            if not block.title and name not in PYTHON_PAGES:
                yield name, _first_line(block.text)


def other_blocks() -> Iterator[tuple[Place, str]]:
    """Yield the shell blocks of all pages but the first ones: their places and their texts."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name not in FIRST_PAGES:
            seen: Counter[str] = Counter()
            for block in code_blocks(Path(page), "sh", "bash", "console"):
                first = _first_line(block.text)
                seen[first] += 1
                yield (name, first if seen[first] == 1 else f"{first} #{seen[first]}"), block.text


def _first_line(text: str) -> str:
    """Return the beginning of the first line of a block, without a remark."""
    return text.strip().splitlines()[0].partition("  #")[0].strip()[:_NAME_LENGTH]
