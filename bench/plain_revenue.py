"""`examples/revenue.py` as its author would have written it without Flintlock: the same code, in one script."""

from __future__ import annotations

from typing import Any

ORDERS = 1_000_000


def plain_revenue(url: str, out: str) -> None:
    """Run the pipeline in a new session of a Connect server."""
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote(url).create()
    try:
        revenue(spark, out)
    finally:
        spark.stop()


def revenue(spark: Any, out: str) -> None:
    """Run the pipeline in a session; the cleaned orders are written once, then read."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    key = F.col("id")
    orders = spark.range(ORDERS).select(
        key.alias("order_id"),
        F.date_add(F.lit("2026-01-01"), (key % 365).cast("int")).alias("day"),
        F.pmod(F.hash(key), F.lit(20_000)).alias("customer_id"),
        F.pmod(F.hash(key * 7), F.lit(500)).alias("product_id"),
        (F.floor(key / 365) % 5).cast("int").alias("quantity"),
    )
    countries = F.array(*[F.lit(name) for name in ("DE", "FR", "IT", "JP", "US")])
    customers = spark.range(20_000).select(
        key.alias("customer_id"), F.element_at(countries, (key % 5 + 1).cast("int")).alias("country")
    )
    products = spark.range(500).select(key.alias("product_id"), (key % 97 + 0.5).alias("price"))
    for name, frame in (("orders", orders), ("customers", customers), ("products", products)):
        frame.createOrReplaceTempView(name)
    spark.sql(
        """
        SELECT o.order_id, o.day, o.customer_id, p.price * o.quantity AS total
        FROM orders o JOIN products p USING (product_id)
        WHERE o.quantity > 0 AND p.price >= :least_price
        """,
        args={"least_price": 1.0},
    ).write.mode("overwrite").parquet(f"{out}-clean")
    spark.read.parquet(f"{out}-clean").createOrReplaceTempView("clean")
    daily = spark.sql(
        """
        SELECT c.country, m.month, m.day, round(sum(m.total), 2) AS revenue, count(*) AS orders
        FROM (SELECT *, date_format(day, 'yyyy-MM') AS month FROM clean) m JOIN customers c USING (customer_id)
        GROUP BY c.country, m.month, m.day
        """
    )
    daily.write.mode("overwrite").partitionBy("month").parquet(out)
    best = daily.orderBy(F.desc("revenue"), "country", "day").select("country", "day", "revenue", "orders").limit(10)
    if len(best.limit(11).collect()) != 10:
        raise RuntimeError("the rows are wrong")
