"""A step with Python UDFs: they run in Spark's own Python workers, and take the helpers of this file along.

flintlock run examples/udf_step.py:job
flintlock run --param least=5 examples/udf_step.py:job
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import flintlock as fl

VOWELS = "aeiou"

job = fl.Job("words", params={"least": 3})


@job.step
def words(spark: SparkSession) -> DataFrame:
    text = "a flintlock turns flint into sparks and sparks into fire"
    return spark.createDataFrame([(word,) for word in text.split()], "word STRING")


def count_vowels(word: str) -> int:
    """A helper: plain Python, found by the UDF wherever it runs."""
    return sum(letter in VOWELS for letter in word)


def reverse(word: str) -> str:
    return word[::-1]


@job.step(inputs=[words])
def measured(words: DataFrame, params: dict[str, Any]) -> DataFrame:
    vowels = F.udf(count_vowels, "int", useArrow=False)  # one row after the other
    backwards = F.udf(reverse, "string", useArrow=True)  # rows travel in Arrow batches
    return (
        words.where(F.length("word") >= params["least"])
        .select("word", vowels("word").alias("vowels"), backwards("word").alias("backwards"))
        .distinct()
        .orderBy("word")
    )


job.result("measured_words", measured)

if __name__ == "__main__":
    fl.run(job)
