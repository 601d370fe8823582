"""Figures that are compared with bare Spark, interleaved in one run: one of ours, one of theirs, and so on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.plain_revenue import plain_revenue
from bench.servers import bare_connect, cluster
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.spark.engine.jvm import spark_home

PAIRS = 12
WARM_UPS = 4
QUERY = "SELECT id % 7 AS k, count(*) AS n FROM range(100000) GROUP BY 1 ORDER BY 1"
REVENUE = Path(__file__).parent.parent / "examples" / "revenue.py"


def small_query() -> Iterator[Figure]:
    """One small query: submitted as a job, in a new session of a bare warm server, and by spark-submit."""
    job = fl.Job("small", parallelism=1)
    job.result("rows", job.sql("counts", QUERY), limit=20)
    with bare_connect() as bare, cluster() as running:
        client = fl.connect(running.url)

        def ours() -> None:
            handle = client.submit(job)
            handle.wait()
            if len(handle.result("rows").rows()) != 7:
                raise RuntimeError("the job's rows are wrong")

        mine, theirs = interleaved(ours, lambda: _in_new_session(bare))
    quotient, seconds = ratios(mine, theirs), spread(mine)
    submitted = spread([_spark_submit() for _ in range(3)])
    yield Figure(
        name="small-query", what="small query: submission -> rows at the client, of bare Connect in a new session",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.5), flink="129-172 ms without Spark",
        against=f"bare Connect {spread(theirs).median:.3f} s, Flintlock {seconds.median:.3f} s, interleaved",
    )  # fmt: skip
    yield Figure(
        name="small-query-spark-submit", what="the same, times faster than spark-submit",
        value=submitted.median / seconds.median, samples=submitted.samples, unit="x",
        bound=Bound(limit=20, at_least=True), against=f"spark-submit {submitted.median:.1f} s",
    )  # fmt: skip


def million_rows() -> Iterator[Figure]:
    """The million-row pipeline of the examples, as a job graph and as a plain script."""
    with bare_connect() as bare, cluster() as running, tempfile.TemporaryDirectory() as scratch:
        client = fl.connect(running.url)
        job = read_target(f"{REVENUE}:job")
        overrides = Overrides(params={"out": f"{scratch}/ours"})

        def ours() -> None:
            client.submit(job, overrides=overrides).wait()

        mine, theirs = interleaved(ours, lambda: plain_revenue(bare, f"{scratch}/theirs"), pairs=20, warm_ups=8)
    quotient = ratios(mine, theirs)
    yield Figure(
        name="million-rows", what="million-row pipeline as a job graph, of the same code as a plain script",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.05),
        against=f"bare Connect {spread(theirs).median:.2f} s, Flintlock {spread(mine).median:.2f} s, interleaved; "
        "both with 2 shuffle partitions, both materialise the cleaned orders",
    )  # fmt: skip


def hundred_jobs() -> Iterator[Figure]:
    """A hundred small jobs at once on two slots; two clients of a bare server, a new session for each query."""
    mine, others = _many_at_once(100, pairs=10, warm_ups=1)
    quotient = ratios(others, mine)
    yield Figure(
        name="hundred-jobs", what="100 small jobs at once on 2 slots, throughput of bare Connect with 2 clients",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=0.8, at_least=True), flink="7.5 jobs a second one after another",
        against=f"bare Connect {100 / spread(others).median:.1f} a second, Flintlock {100 / spread(mine).median:.1f} "
        "a second, interleaved",
    )  # fmt: skip


def twenty_jobs() -> Iterator[Figure]:
    """Twenty small jobs at once on two slots, until the last has finished."""
    mine, others = _many_at_once(20, pairs=PAIRS, warm_ups=WARM_UPS)
    quotient = ratios(mine, others)
    yield Figure(
        name="twenty-jobs", what="20 jobs submitted at once -> all finished, 2 slots, of bare Connect with 2 clients",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.25), flink="1.0 s without Spark",
        against=f"bare Connect {spread(others).median:.2f} s, Flintlock {spread(mine).median:.2f} s, interleaved",
    )  # fmt: skip


def _many_at_once(count: int, *, pairs: int, warm_ups: int) -> tuple[list[float], list[float]]:
    """Submit many small jobs at once on two slots, and let two clients of a bare server ask as much in turn."""
    job = fl.Job("one-of-many", parallelism=1)
    job.result("rows", job.sql("counts", QUERY), limit=20)
    with bare_connect() as bare, cluster() as running, ProcessPoolExecutor(2) as clients:
        client = fl.connect(running.url)

        def ours() -> None:
            for handle in [client.submit(job) for _ in range(count)]:
                handle.wait()

        def theirs() -> None:
            list(clients.map(_some_sessions, [(bare, count // 2)] * 2))

        return interleaved(ours, theirs, pairs=pairs, warm_ups=warm_ups)


def interleaved(
    ours: Callable[[], None], theirs: Callable[[], None], pairs: int = PAIRS, warm_ups: int = WARM_UPS
) -> tuple[list[float], list[float]]:
    """Run both in turn, each first in every other pair; return the seconds that they took."""
    mine: list[float] = []
    others: list[float] = []
    for number in range(warm_ups + pairs):
        for work, times in ((ours, mine), (theirs, others))[:: 1 if number % 2 else -1]:
            begun = time.perf_counter()
            work()
            if number >= warm_ups:
                times.append(time.perf_counter() - begun)
    return mine, others


def _in_new_session(url: str) -> None:
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder.remote(url).create()
    try:
        if len(session.sql(QUERY).collect()) != 7:
            raise RuntimeError("the rows are wrong")
    finally:
        session.stop()


def _some_sessions(what: tuple[str, int]) -> None:
    url, count = what
    for _ in range(count):
        _in_new_session(url)


def _spark_submit() -> float:
    """Run the query by spark-submit; where Spark's launcher does not work (no full JDK) this fails and says so."""
    script = (
        f"from pyspark.sql import SparkSession\nprint(SparkSession.builder.getOrCreate().sql({QUERY!r}).collect())\n"
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "small.py"
        path.write_text(script)
        begun = time.perf_counter()
        home = spark_home()
        # Connect's client marks the environment of the process that it runs in; spark-submit must not see that.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        environment = {**inherited, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", str(path)]
        subprocess.run(command, check=True, capture_output=True, cwd=scratch, env=environment)
        return time.perf_counter() - begun
