"""What an error of Spark is shown with, so that a user knows what to do."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from flintlock.spark.region.errors.failures import failure_of


@pytest.mark.parametrize(("given", "hint"), [("parqet", "\nDid you mean 'parquet'?"), ("com.acme.cobol", "")])
def test_a_mistyped_format_is_reported_with_the_one_that_was_meant(given: str, hint: str) -> None:
    text = f"[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {given}. Make sure the provider name is correct"
    assert failure_of(SparkConnectGrpcException(text)).message == text + hint


def test_a_missing_jdbc_driver_is_reported_with_the_remedy() -> None:
    message = failure_of(SparkConnectGrpcException("(java.sql.SQLException) No suitable driver")).message
    assert message.endswith("send its jar with the job (--jars), or start the cluster with it (spark.jars)")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "Failed to find data source: kafka. See the Structured Streaming + Kafka Integration Guide.",
            "The engine has no connector for Kafka: send that of exactly its version of Spark",
        ),
        (
            "java.lang.NoSuchMethodError: 'void org.apache.spark.sql.kafka010.KafkaSourceOffset.f()'",
            "The connector for Kafka is not the one of the engine's version of Spark",
        ),
        (
            "java.lang.NoClassDefFoundError: Lorg/apache/spark/sql/kafka010/KafkaOffsetReader;",
            "The connector for Kafka is not the one of the engine's version of Spark",
        ),
    ],
)
def test_a_connector_for_kafka_that_is_missing_or_does_not_fit_is_reported_with_the_remedy(
    text: str, hint: str
) -> None:
    message = failure_of(SparkConnectGrpcException(text)).message
    assert message.startswith(f"{text}\n{hint}")


def test_an_error_of_a_topic_has_no_hint_about_connectors() -> None:
    text = "org.apache.spark.sql.kafka010.KafkaIllegalStateException: offsets of topic t were lost"
    assert failure_of(SparkConnectGrpcException(text)).message == text


def test_a_module_that_is_not_there_is_reported_with_the_remedy() -> None:
    remedy = "send your own modules with the job (--py-files), and have packages installed for it (--requirements)"
    for error in (ModuleNotFoundError("No module named 'scores.trees'"), ImportError("No module named 'a'")):
        message = failure_of(error).message
        assert message.startswith(f"{error}\nIt is not installed where the job runs, and was not sent along: ")
        assert message.endswith(remedy)
    assert failure_of(ImportError("cannot import name 'x' from 'y'")).message == "cannot import name 'x' from 'y'"
