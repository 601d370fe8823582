"""A job that fails in user code, to see what that looks like.

    flintlock run examples/fails_in_user_code.py:job
    flintlock run --verbose examples/fails_in_user_code.py:job

The error names the step and the line below that raised it.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import flintlock as fl

job = fl.Job("fails_in_user_code")


@job.step
def orders(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "12.50"), (2, "n/a"), (3, "7.00")], "id INT, price STRING")


def to_cents(price: str) -> int:
    return int(float(price) * 100)  # "n/a" is not a number: this line is at fault


@job.step(inputs=[orders])
def priced(orders: DataFrame) -> DataFrame:
    cents = F.udf(to_cents, "int", useArrow=False)
    return orders.withColumn("cents", cents("price"))


job.result("prices", priced)

if __name__ == "__main__":
    fl.run(job)
