"""What becomes of each shell block in the documentation: it is followed, by whom, or why it cannot be run here.

`tests/packaging/first_steps.py` follows the first pages with an installed wheel, `test_documented_commands.py` those
of `FOLLOWED` on a running cluster. Blocks are named by page and the beginning of their first line, so that a changed
page is noticed.
"""

from __future__ import annotations

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
    ("docs/dependencies.md", "flintlock run --py-files lib.py --py-files helpers/ revenue."),
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

_PACKAGES: Final = "downloads packages; tests/cluster/test_dependencies.py does what it shows where they can be had"
_OWN_CLUSTER: Final = "starts and stops a cluster of its own"
_SYSTEM: Final = "changes the machine"
NOT_RUN: Final[Mapping[Place, str]] = {
    ("CONTRIBUTING.md", "make check"): "is what runs these tests",
    ("docs/dependencies.md", "flintlock run --requirements requirements.txt score.py:job"): _PACKAGES,
    ("docs/dependencies.md", "flintlock run --pyenv environment.tar.gz score.py:job"): _PACKAGES,
    ("docs/dependencies.md", "flintlock cluster start --conf flintlock.yaml"): f"{_OWN_CLUSTER}, with packages or S3",
    ("docs/dependencies.md", "flintlock run --jars lib/driver.jar,lib/format.jar etl.py:jo"): _PACKAGES,
    ("docs/dependencies.md",
     "flintlock run --engine dedicated -D spark.sql.extensions=com"):
        "the extension is an example",
    ("docs/dependencies.md", "flintlock run numbers.yaml"): _PACKAGES,
    ("docs/dependencies.md", "flintlock run avro.yaml"): _PACKAGES,
    ("docs/dependencies.md", "flintlock run --requirements requirements.txt score.py"): _PACKAGES,
    ("docs/deployment.md", "flintlock run -t per-job job.yaml"): "tests/cluster/test_per_job.py runs both",
    ("docs/deployment.md", "flintlock status latest --state-dir ~/.local/state/flintlock"):
        "tests/cluster/test_per_job.py runs them, with the id of a job",
    ("docs/deployment.md", "flintlock run -t application nightly.py"): "tests/cluster/test_applications.py runs it",
    ("docs/deployment.md", "export HADOOP_CONF_DIR=/etc/hadoop/conf"): "needs YARN; tests/cluster/test_yarn.py has one",
    ("docs/deployment.md", "flintlock run -t yarn-per-job -D yarn.application.queue=nigh"):
        "needs YARN; tests/cluster/test_yarn.py has one",
    ("docs/deployment.md", "useradd --system --home-dir /var/lib/flintlock --shell /usr/"): _SYSTEM,
    ("docs/deployment.md", "make dist"): "needs docker; tests/packaging/test_deploy.py reads the file",
    ("docs/operations.md", "flintlock cluster start --taskmanagers 1 --slots 4"):
        f"{_OWN_CLUSTER}; tests/cluster/test_cluster_commands.py does, too",
    ("docs/security.md", "useradd --system --user-group flintlock-runner"): _SYSTEM,
    ("docs/testing.md", "export FLINTLOCK_STATE_DIR=$(mktemp -d)"):
        f"{_OWN_CLUSTER}; tests/packaging/first_steps.py has the same commands",
    ("docs/upgrading.md", "flintlock cluster stop"): f"{_OWN_CLUSTER}, and installs a package",
}  # fmt: skip


def other_blocks() -> Iterator[tuple[Place, str]]:
    """Yield the shell blocks of all pages but the first ones: their places and their texts."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name not in FIRST_PAGES:
            for block in code_blocks(Path(page), "sh", "bash", "console"):
                yield (name, _first_line(block.text)), block.text


def _first_line(text: str) -> str:
    """Return the beginning of the first line of a block, without a remark."""
    return text.strip().splitlines()[0].partition("  #")[0].strip()[:_NAME_LENGTH]
