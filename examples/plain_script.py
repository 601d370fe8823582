"""An ordinary PySpark script: nothing in it knows Flintlock.

    flintlock run examples/plain_script.py 1000
    python examples/plain_script.py 1000            # the same without Flintlock

Its session is that of the cluster's engine. What it prints is its output; its exit code decides whether it succeeded.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 100

spark = SparkSession.builder.appName("plain script").getOrCreate()

numbers = spark.range(how_many).withColumn("even", F.col("id") % 2 == 0)
for row in numbers.groupBy("even").agg(F.sum("id").alias("total")).orderBy("even").collect():
    print(f"even={row.even}: {row.total}")

spark.stop()
