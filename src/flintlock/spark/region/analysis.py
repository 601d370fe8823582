"""The schema of every step, resolved without a Spark job of Flintlock's own: `flintlock info --analyze`.

Blocking exchanges count as pipelined: nothing is written. Spark itself may read: a source without a schema whose
format stores none (JSON, CSV with `inferSchema`) is sampled, as in any Spark program.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from flintlock.model.jobgraph import JobGraph
from flintlock.spark.region.batch import StepFailed
from flintlock.spark.region.errors.failures import failure_of
from flintlock.spark.region.plan import StepFrames
from flintlock.spark.region.schemas import check_output
from flintlock.spark.runner_messages import Analyzed, SchemaColumn, StepSchema


def analyze_schemas(frames: StepFrames, graph: JobGraph, config: Mapping[str, str]) -> Analyzed:
    """Return each step's schema, in topological order up to the first step that fails, with its failure."""
    schemas: list[StepSchema] = []
    case_sensitive = config.get("spark.sql.caseSensitive", "false").lower() == "true"
    for vertex in graph.vertices:
        try:
            schema = frames.output(vertex).schema
            check_output(vertex, schema, case_sensitive=case_sensitive)
        except Exception as error:  # noqa: BLE001 - user code may raise anything, and its failure is the answer
            step, cause = (error.step, error.cause) if isinstance(error, StepFailed) else (vertex.name, error)
            failure = failure_of(cause, step, frames.sources(), in_user_code=frames.in_user_code)
            return Analyzed(schemas=tuple(schemas), failure=failure)
        schemas.append(StepSchema(step=vertex.name, columns=columns_of(schema)))
    return Analyzed(schemas=tuple(schemas))


def columns_of(schema: StructType) -> tuple[SchemaColumn, ...]:
    """Return the columns as Spark names their types."""
    return tuple(
        SchemaColumn(name=field.name, type=field.dataType.simpleString(), nullable=field.nullable)
        for field in schema.fields
    )
