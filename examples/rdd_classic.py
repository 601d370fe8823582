"""A script of the classic kind: it uses the SparkContext and RDDs, which need a Spark driver of its own.

flintlock run --engine dedicated examples/rdd_classic.py
"""

import random

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("pi").getOrCreate()
sc = spark.sparkContext

PARTS, DARTS = 4, 100_000


def hits(part: int) -> int:
    """Throw darts at the unit square; count those that land inside the quarter circle."""
    dice = random.Random(part)
    return sum(dice.random() ** 2 + dice.random() ** 2 < 1 for _ in range(DARTS))


inside = sc.parallelize(range(PARTS), PARTS).map(hits).sum()
print(f"pi is about {4 * inside / (PARTS * DARTS):.2f}")

spark.stop()
