"""An engine with executors on a Spark standalone cluster, measured against what runs there without Flintlock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.commands import flintlock
from tests.cluster.spark_standalone import running_standalone, settings_of

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.plain_revenue import plain_revenue
from bench.servers import cluster
from bench.spark import REVENUE, interleaved
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import spark_home

LEASE_S: Final = 50.0
PAIRS: Final = 12
SUBMITTED: Final = 5
CORES: Final = 2  # of the application, ours or that of spark-submit; the two workers have twice as many
#: A program that says where its engine is.
WHERE: Final = "import os\nprint(os.environ['SPARK_REMOTE'])\n"
SCRIPT: Final = """\
import sys
from bench.plain_revenue import revenue
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
revenue(spark, sys.argv[1])
spark.stop()
"""


def standalone() -> Iterator[Figure]:
    """The million-row pipeline: as a job, as a plain script on the same engine, and by spark-submit in client mode."""
    if not find_java(os.environ).has_vector_module:
        raise RuntimeError("executors need a Java with the module jdk.incubator.vector; set JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        home = Path(scratch)
        with (
            running_standalone(home / "spark") as spark,
            cluster(slots=CORES, settings=settings_of(spark.url, LEASE_S)) as running,
            fl.connect(running.url) as client,
        ):
            job, overrides = read_target(f"{REVENUE}:job"), Overrides(params={"out": f"{home}/ours"})
            engine = _address_of_the_engine(running.url, home)

            def ours() -> None:
                client.submit(job, overrides=overrides).wait()

            mine, theirs = interleaved(ours, lambda: plain_revenue(engine, f"{home}/theirs"), PAIRS, warm_ups=6)
            cold: list[float] = []
            warm: list[float] = []
            for _ in range(SUBMITTED):
                cold.append(_spark_submit(spark.url, home))
                begun = time.perf_counter()
                ours()
                warm.append(time.perf_counter() - begun)
    quotient = ratios(mine, theirs)
    yield Figure(
        name="standalone-rows",
        what="million-row pipeline on a standalone cluster, of a plain script on the same engine",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.05),
        against=f"plain script {spread(theirs).median:.2f} s, Flintlock {spread(mine).median:.2f} s, interleaved; "
        "two workers, both materialise the cleaned orders",
    )  # fmt: skip
    faster = ratios(cold, warm)
    yield Figure(
        name="standalone-spark-submit", what="the same, times faster than spark-submit --deploy-mode client",
        value=faster.median, low=faster.low, high=faster.high, samples=faster.samples, unit="x",
        bound=Bound(limit=4, at_least=True),
        against=f"spark-submit {spread(cold).median:.1f} s, Flintlock {spread(warm).median:.2f} s, in turn",
    )  # fmt: skip


def _address_of_the_engine(url: str, home: Path) -> str:
    """Return where programs reach the engine of the cluster; each of them is given a session of its own there."""
    (home / "where.py").write_text(WHERE)
    done = flintlock("run", "-m", url, "where.py", cwd=home)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return next(line for line in done.stdout.splitlines() if line.startswith("sc://"))


def _spark_submit(master: str, home: Path) -> float:
    """Run the pipeline by spark-submit, with executors as large as ours; return the seconds."""
    (home / "revenue.py").write_text(SCRIPT)
    settings = [item for item in settings_of(master, LEASE_S) if item.startswith("spark.") and "master" not in item]
    flags = [part for item in (*settings, f"spark.cores.max={CORES}") for part in ("--conf", item)]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment = {
        **inherited,
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": find_java(os.environ).home,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    submit = str(spark_home() / "bin" / "spark-submit")
    command = [submit, "--master", master, "--deploy-mode", "client", *flags, str(home / "revenue.py")]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, f"{home}/submitted"], check=False, capture_output=True, text=True, env=environment, cwd=home
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - begun
