"""What to do about an error of Spark, where its message does not say that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from flintlock.model.checking.suggestions import did_you_mean
from flintlock.spark.engine.jvm import NO_DIRECTORY_ROOT
from flintlock.spark.region.errors.spark_errors import SparkError

_UNKNOWN_FORMAT: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (?P<format>\S+)\. ")
_FORMATS: Final = ("avro", "binaryFile", "csv", "jdbc", "json", "orc", "parquet", "text", "xml")
_NO_KAFKA: Final = "Structured Streaming + Kafka Integration Guide"
_NO_MODULE: Final = re.compile(r"No module named '[^'\n]+'(; '[^'\n]+' is not a package)?")
_KAFKA_CLASSES: Final = "sql.kafka010"
#: What the JVM raises where classes of two versions meet.
_LINKAGE_ERRORS: Final = (
    "NoSuchMethodError",
    "AbstractMethodError",
    "NoClassDefFoundError",
    "IncompatibleClassChangeError",
)


def with_import_hint(message: str) -> str:
    """Return the message of an exception with what to do, if that is about a module that is not there."""
    if _NO_MODULE.fullmatch(message) is None:
        return message
    return (
        f"{message}\nIt is not installed where the job runs, and was not sent along: send your own modules with the job"
        " (--py-files), and have packages installed for it (--requirements)"
    )


def hints(spark: SparkError, message: str) -> Iterator[str]:
    """Yield what to do about an error, a sentence each."""
    if spark.is_spark and f"file:{NO_DIRECTORY_ROOT}" in message:
        yield "A relative path has no directory in an engine: give an absolute one"
    if not spark.from_server:
        return
    if (unknown := _UNKNOWN_FORMAT.search(message)) is not None and (hint := did_you_mean(unknown["format"], _FORMATS)):
        yield f"{hint[0].upper()}{hint[1:]}"
    if "No suitable driver" in message:
        yield (
            "The engine has no JDBC driver for this URL: send its jar with the job (--jars), "
            "or start the cluster with it (spark.jars)"
        )
    if _NO_KAFKA in message:
        yield (
            "The engine has no connector for Kafka: send that of exactly its version of Spark with the job (--packages"
            " org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION), or start the cluster with it (spark.jars.packages)"
        )
    if _KAFKA_CLASSES in message.replace("/", ".") and any(error in message for error in _LINKAGE_ERRORS):
        yield "The connector for Kafka is not the one of the engine's version of Spark: exactly that one is needed"
