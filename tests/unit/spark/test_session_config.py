"""What a session is set to."""

from __future__ import annotations

from msgspec import structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.ids import AttemptId, JobId, RegionId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.regions import Region
from flintlock.model.streaming.checkpoints import StateRescale
from flintlock.model.tasks import DeployTask
from flintlock.spark.region.backend import session_url
from flintlock.spark.region.session_config import session_config

JOB = JobId("ab" * 16)
KEY = SparkSessionKey(user_id="flintlock-1", session_id="9f0c9c1e-0000-4000-8000-000000000000")


def task(*slots: int, parallelism: int | None = None, config: dict[str, str] | None = None) -> DeployTask:
    return DeployTask(
        attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=0),
        graph=JobGraph(job_id=JOB, name="j", config=config or {}, parallelism=parallelism),
        slots=slots or (0, 3, 4),
        region=Region(id=RegionId(0), steps=()),
    )


def test_utc_and_a_partition_for_each_slot() -> None:
    assert session_config(task(), 8) == {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "3",
    }


def test_a_task_whose_parallelism_nobody_set_uses_the_whole_engine() -> None:
    """One slot admits it; a slot does not limit it."""
    partitions = "spark.sql.shuffle.partitions"
    assert session_config(task(0), 8)[partitions] == "8"
    assert session_config(task(0, parallelism=1), 8)[partitions] == "1"
    assert session_config(task(0, config={"parallelism.default": "1"}), 8)[partitions] == "1"
    assert session_config(task(0, 1), 8)[partitions] == "2"


def test_a_streaming_query_has_the_partitions_of_its_job_whatever_slots_it_has() -> None:
    """It takes one slot, and its state has as many partitions wherever it runs next; a rescale changes that."""
    partitions = "spark.sql.shuffle.partitions"
    one = task(0, parallelism=4)
    stream = structs.replace(one, graph=structs.replace(one.graph, job_type=JobType.STREAMING))
    assert session_config(stream, 8)[partitions] == "4"
    rescaled = structs.replace(stream, rescale=StateRescale(trigger_id=TriggerId("1" * 32), partitions=3))
    assert session_config(rescaled, 8)[partitions] == "3"
    region = structs.replace(stream, region=structs.replace(stream.region, parallelism=2), slots=(0, 1))
    assert session_config(region, 8)[partitions] == "2"
    unset = structs.replace(stream, graph=structs.replace(stream.graph, parallelism=None))
    assert session_config(unset, 8)[partitions] == "8"


def test_the_jobs_own_settings_replace_the_defaults() -> None:
    config = session_config(
        task(config={"spark.sql.session.timeZone": "Europe/Vienna", "spark.x": "1", "parallelism.default": "7"}), 8
    )
    assert config["spark.sql.session.timeZone"] == "Europe/Vienna"
    assert config["spark.x"] == "1"
    assert "parallelism.default" not in config


def test_a_sessions_address_keeps_the_engines_parameters() -> None:
    end = f"session_id={KEY.session_id};user_id=flintlock-1"
    assert session_url("sc://127.0.0.1:1", KEY) == f"sc://127.0.0.1:1/;{end}"
    assert session_url("sc://127.0.0.1:1/", KEY) == f"sc://127.0.0.1:1/;{end}"
    assert session_url("sc://localhost:1/;token=a", KEY) == f"sc://localhost:1/;token=a;{end}"
