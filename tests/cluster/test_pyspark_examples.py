"""Programs of others: examples of PySpark's own distribution, unchanged, with a plain `flintlock run`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

HOME = Path(pyspark.__file__).parent
EXAMPLES = HOME / "examples" / "src" / "main" / "python"
#: Relative paths, caches, pipelines, searches of parameters, UDFs; and one with RDDs, for a driver of its own.
SCRIPTS = (
    ("ml/dct_example.py",),
    ("ml/imputer_example.py",),
    ("ml/standard_scaler_example.py",),
    ("ml/tf_idf_example.py",),
    ("ml/train_validation_split.py",),
    ("sql/arrow.py",),
    ("wordcount.py", "data/mllib/kmeans_data.txt"),
)


def test_pysparks_own_examples_run_unchanged(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(HOME / "data")

    def failure(given: tuple[str, ...]) -> str | None:
        script, *args = given
        ran = flintlock("run", "-m", standing.url, "-q", "-p", "1", EXAMPLES / script, *args, cwd=tmp_path)
        return None if ran.returncode == 0 else f"{script}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"

    with ThreadPoolExecutor(2) as pool:
        failures = [found for found in pool.map(failure, SCRIPTS) if found is not None]
    assert not failures, "\n\n".join(failures)
