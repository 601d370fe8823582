"""Revenue by country and day: a batch pipeline over a million generated orders.

    flintlock run examples/revenue.py:job
    flintlock run --param out=/tmp/revenue --param orders=5000000 examples/revenue.py:job
    flintlock info examples/revenue.py:job

The cleaned orders are a *blocking* exchange: they are written once, between two regions, and survive a failure of
whatever comes after them. Everything after them is one Spark plan.
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import flintlock as fl

job = fl.Job("revenue", params={"orders": 1_000_000, "least_price": 1.0, "out": "out/revenue"})


# Three inputs. They are generated, so that the example needs no files; job.source(...) would read them:
#     orders = job.source("orders", format="parquet", path="in/orders")


@job.step
def orders(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    """A year of orders: a customer, a product and a quantity each."""
    key = F.col("id")
    return spark.range(params["orders"]).select(
        key.alias("order_id"),
        F.date_add(F.lit("2026-01-01"), (key % 365).cast("int")).alias("day"),
        F.pmod(F.hash(key), F.lit(20_000)).alias("customer_id"),
        F.pmod(F.hash(key * 7), F.lit(500)).alias("product_id"),
        (F.floor(key / 365) % 5).cast("int").alias("quantity"),
    )


@job.step
def customers(spark: SparkSession) -> DataFrame:
    countries = F.array(*[F.lit(name) for name in ("DE", "FR", "IT", "JP", "US")])
    return spark.range(20_000).select(
        F.col("id").alias("customer_id"),
        F.element_at(countries, (F.col("id") % 5 + 1).cast("int")).alias("country"),
    )


@job.step
def products(spark: SparkSession) -> DataFrame:
    return spark.range(500).select(F.col("id").alias("product_id"), (F.col("id") % 97 + 0.5).alias("price"))


# SQL steps see their inputs as views of the same name; parameters are bound as :name.
clean = job.sql(
    "clean",
    """
    SELECT o.order_id, o.day, o.customer_id, p.price * o.quantity AS total
    FROM orders o JOIN products p USING (product_id)
    WHERE o.quantity > 0 AND p.price >= :least_price
    """,
    inputs=[orders, products],
    exchange="blocking",
)

daily = job.sql(
    "daily",
    """
    SELECT c.country, m.month, m.day, round(sum(m.total), 2) AS revenue, count(*) AS orders
    FROM (SELECT *, date_format(day, 'yyyy-MM') AS month FROM clean) m JOIN customers c USING (customer_id)
    GROUP BY c.country, m.month, m.day
    """,
    inputs=[clean, customers],
)


@job.step(inputs=[daily])
def best_days(daily: DataFrame) -> DataFrame:
    """The days with the highest revenue of all."""
    return daily.orderBy(F.desc("revenue"), "country", "day").select("country", "day", "revenue", "orders").limit(10)


# Files appear whole and once, or not at all; a second run replaces them.
job.sink("files", daily, format="parquet", path="${out}", mode="overwrite", partition_by=["month"])
job.result("top", best_days, limit=10)

if __name__ == "__main__":
    fl.run(job)
