"""The blocks of the page on dependencies, run as they stand there, with files as the page supposes them.

Packages of Maven are downloaded into the cache of the test environment, once. Where some cannot be had, the test runs
the blocks that do without them, and is then reported as skipped, with the reason. The AWS SDK has 686 MB: the recipe
for S3 is run with `LARGE_DOWNLOADS=1` only.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.commands import shell
from tests.cluster.documented_blocks import RECIPES, other_blocks
from tests.cluster.object_store import object_store
from tests.cluster.processes import Processes
from tests.cluster.test_dependencies import write_wheel
from tests.unit.docs.code_blocks import ROOT, code_blocks

PAGE: Final = "docs/dependencies.md"
SHOWN_ENDPOINT: Final = "http://127.0.0.1:5055"  # of the object store, on the page
S3: Final = "flintlock cluster start --conf flintlock.yaml #2"
TABLES: Final = "flintlock cluster start --conf flintlock.yaml #3"
OWN_CLUSTERS: Final = {S3, TABLES}
LARGE_DOWNLOADS: Final = bool(os.environ.get("LARGE_DOWNLOADS"))
LIMIT_S: Final = 900.0 if LARGE_DOWNLOADS else 240.0
EMPTY_ARCHIVE: Final = "PK\x05\x06" + "\0" * 18
#: What the engine says of packages that no repository has at present.
UNRESOLVED: Final = "cannot be resolved"
FILES: Final = {
    "etl.py": "import flintlock as fl\njob = fl.Job('etl')\n@job.step\ndef rows(spark):\n    return spark.range(3)\n"
    "job.result('r', rows)\n",
    "score.py": "import flintlock as fl\njob = fl.Job('score')\n@job.step\ndef rows(spark):\n    import scoring\n"
    "    return spark.range(scoring.ROWS)\njob.result('r', rows)\n"
    "if __name__ == '__main__':\n    import scoring\n    print('scored', scoring.ROWS)\n",
    "lib/driver.jar": EMPTY_ARCHIVE,
    "lib/format.jar": EMPTY_ARCHIVE,
    "extensions.jar": EMPTY_ARCHIVE,
    "requirements.txt": "./dist/scoring-1.0-py3-none-any.whl\n",
    "venv/lib/python3.{minor}/site-packages/scoring.py": "ROWS = 8\n",
}


#: What the blocks print, in lower case.
PRINTED: Final = {
    "flintlock run numbers.yaml": "0 0 1 2 2 4 3 6 4 8",
    "flintlock run avro.yaml": "10 45",
    "flintlock run --requirements requirements.txt score.py": "scored 7",
    "flintlock run --pyenv environment.tar.gz score.py:job": "6 7",
}


class Unresolved(Exception):
    """Spark cannot have the packages of a block: no repository, or no network."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the files that the page names and does not show."""
    for name, text in FILES.items():
        path = tmp_path / name.format(minor=sys.version_info.minor)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "dist").mkdir()
    write_wheel(tmp_path / "dist", "1.0", "ROWS = 7\n", "scoring")
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "venv", ".")
    return tmp_path


def test_the_recipes_run_as_they_stand_on_the_page(standing: Processes, directory: Path) -> None:
    done, unresolved = set[str](), dict[str, str]()
    for name, script in recipes(directory):
        if name not in RECIPES or name in OWN_CLUSTERS:
            continue
        done.add(name)
        try:
            printed = run(script, directory, state_dir=standing.state_dir)
        except Unresolved as error:
            unresolved[name] = str(error)
        else:
            assert PRINTED.get(name, "") in printed.lower(), name

    assert done == RECIPES - OWN_CLUSTERS
    assert PRINTED.keys() <= done
    if unresolved:
        pytest.skip(f"all others run; packages of these cannot be had: {unresolved}")


@pytest.mark.skipif(not LARGE_DOWNLOADS, reason="downloads the AWS SDK, 686 MB: LARGE_DOWNLOADS=1 runs it")
def test_the_recipe_for_s3_runs_against_a_real_server(directory: Path) -> None:
    with object_store(directory) as store:
        store.create_bucket("lake")
        run_on_own_cluster(S3, directory, store.url)
        keys = store.keys("lake")

    assert "numbers/_SUCCESS" in keys
    assert any(key.endswith(".parquet") for key in keys)
    assert all(key.startswith("numbers/") for key in keys), keys  # nothing of the publication is left


def test_tables_in_a_database_outlive_the_cluster_and_are_one_for_all_engines(directory: Path) -> None:
    assert run_on_own_cluster(TABLES, directory).endswith(" 6 6")


def run_on_own_cluster(recipe: str, directory: Path, endpoint: str = SHOWN_ENDPOINT) -> str:
    """Run a recipe that starts a cluster of its own; return the words that it prints."""
    ports = {"FLINTLOCK_REST_PORT": "0", "FLINTLOCK_JOBMANAGER_RPC_PORT": "0"}
    ivy = f"spark.jars.ivySettings: {Path(__file__).with_name('ivysettings.xml')}\n"
    script = next(script for name, script in recipes(directory, endpoint) if name == recipe)
    with (directory / "flintlock.yaml").open("a") as settings:
        settings.write(ivy)
    try:
        return run(script, directory, state_dir=directory / "state", **ports)
    except Unresolved as error:
        pytest.skip(str(error))
    finally:
        run("flintlock cluster stop", directory, state_dir=directory / "state")


def recipes(directory: Path, endpoint: str = SHOWN_ENDPOINT) -> Iterator[tuple[str, str]]:
    """Yield the shell blocks of the page; the files that it shows before each of them are there then."""
    shell = {text: name for (page, name), text in other_blocks() if page == PAGE}
    for block in code_blocks(ROOT / PAGE, "sh", "yaml", "text"):
        text = block.text.replace("/tmp/", f"{directory}/")
        if block.title:
            (directory / block.title).write_text(text.replace(SHOWN_ENDPOINT, endpoint))
        elif block.language == "sh":
            yield shell[block.text], text


def run(script: str, directory: Path, *, state_dir: Path, **variables: str) -> str:
    """Run a script as a user does; return the words that it prints. Raises Unresolved."""
    ran = shell(script, cwd=directory, state_dir=state_dir, timeout_s=LIMIT_S, **variables)
    if UNRESOLVED in ran.stderr:
        raise Unresolved(ran.stderr[-500:])
    assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
    return " ".join(ran.stdout.split())
