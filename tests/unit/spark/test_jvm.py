"""The JVM's command line, its settings, and the cause of its death."""

import os
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from flintlock.spark.engine import jvm
from flintlock.spark.engine.java import Java
from flintlock.spark.engine.jvm import (
    DriverJvm,
    JvmDied,
    JvmSettings,
    archive_flags,
    cause_of_death,
    java_properties,
    jvm_command,
    note_in_output,
    spark_home,
)

JAVA = Java(home="/java", major=25, origin="JAVA_HOME", has_vector_module=True)


def settings(conf: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> JvmSettings:
    return JvmSettings(
        java=JAVA,
        conf=conf or {},
        scratch_dir="/scratch",
        log_file="/log",
        run_dir="/run",
        python="/python",
        environment=environment or {},
        heap_bytes=512 << 20,
    )


def test_settings_are_not_on_the_command_line() -> None:
    command = jvm_command(settings({"spark.hadoop.fs.s3a.secret.key": "sesame"}))

    assert not any("sesame" in part for part in command)
    assert command[command.index("--properties-file") + 1] == "/scratch/spark.properties"


def test_what_the_launcher_would_do_for_a_driver_is_done() -> None:
    command = jvm_command(
        settings(
            {
                "spark.driver.memory": "3g",
                "spark.driver.extraJavaOptions": "-Da='b c' -XX:+UseSerialGC",
                "spark.driver.extraClassPath": "/extra/*",
            },
            {"HADOOP_CONF_DIR": "/hadoop"},
        )
    )

    assert "-Xmx3g" in command
    assert command.index("-Da=b c") < command.index("-XX:+UseSerialGC") < command.index("-cp")
    assert command[command.index("-cp") + 1] == f"/extra/*:{spark_home()}/jars/*:/hadoop"


def test_the_heap_is_as_large_as_configured() -> None:
    assert "-Xmx512m" in jvm_command(settings())


@pytest.mark.parametrize(
    ("changed", "collected"),
    [
        ({}, ["-XX:+UseParallelGC"]),
        ({"heap_bytes": 8 << 30}, []),
        ({"conf": {"spark.driver.memory": "8g"}}, []),
        ({"conf": {"spark.driver.extraJavaOptions": "-Da=b -XX:+UseZGC"}}, ["-XX:+UseZGC"]),
        ({"conf": {"spark.driver.defaultJavaOptions": "-XX:+UseG1GC"}}, ["-XX:+UseG1GC"]),
    ],
)
def test_small_heaps_are_collected_for_throughput_unless_the_user_chose(
    changed: dict[str, Any], collected: list[str]
) -> None:
    command = jvm_command(msgspec.structs.replace(settings(), **changed))

    assert [part for part in command if part.startswith("-XX:+Use")] == collected


def test_stacks_are_large_unless_the_user_chose() -> None:
    """Java takes the last of several sizes."""
    chosen = {"spark.driver.extraJavaOptions": "-Xss512k"}

    for command, last in ((jvm_command(settings()), "-Xss4m"), (jvm_command(settings(chosen)), "-Xss512k")):
        assert [part for part in command if part.startswith("-Xss")][-1] == last


def test_an_archive_is_used_only_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "classes.jsa"
    wanted = msgspec.structs.replace(settings(), class_archive=str(file))

    assert archive_flags(wanted) == ()
    file.touch()
    assert archive_flags(wanted)[0] == f"-XX:AOTCache={file}"
    older = msgspec.structs.replace(wanted, java=msgspec.structs.replace(JAVA, major=17))
    assert archive_flags(older)[0] == f"-XX:SharedArchiveFile={file}"
    assert archive_flags(msgspec.structs.replace(older, record_archive="/new"))[0] == "-XX:ArchiveClassesAtExit=/new"


def test_properties_escape_what_java_would_read_differently() -> None:
    assert java_properties({"spark.a b": "x\\y\n#=:é😀"}) == "spark.a\\ b=x\\\\y\\u000a#=:\\u00e9\\ud83d\\ude00\n"


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (3, "Terminating due to java.lang.OutOfMemoryError: Java heap space\n", "out of memory (java.lang.OutOfMemory"),
        (52, "ERROR Executor: java.lang.OutOfMemoryError: GC overhead limit\nbye\n", "GC overhead limit)"),
        (-9, "WARN something\n", "killed by SIGKILL"),
        (-11, "", "killed by signal 11"),
        (1, "Error: no such class\n", "exit code 1; the end of"),
    ],
)
def test_a_death_is_reported_with_its_cause(tmp_path: Path, code: int, log: str, expected: str) -> None:
    file = tmp_path / "engine.log"
    file.write_text(log)

    cause = cause_of_death(code, file)

    assert expected in cause
    assert log.strip().rpartition("\n")[2] in cause


def test_only_the_end_of_a_long_log_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text("".join(f"line {n}\n" for n in range(100_000)))

    cause = cause_of_death(1, file)

    assert "line 99999" in cause
    assert len(cause.splitlines()) < 20


JOBS_OUTPUT = "".join(f"what job {n} prints\n" for n in range(100))
REPORT = """#
# A fatal error has been detected by the Java Runtime Environment:
#
#  SIGSEGV (0xb) at pc=0x00007f1c2a0b, pid=4711, tid=4712
#
what a job prints afterwards
"""


@pytest.mark.parametrize(
    ("code", "log", "how"),
    [
        (-9, "", "was killed by SIGKILL (by hand, or by the kernel because memory ran out); its log is"),
        (1, "", "ended with exit code 1; its log is"),
        (3, "Terminating due to java.lang.OutOfMemoryError: Java heap space\n", "OutOfMemoryError: Java heap space)"),
        (
            -6,
            REPORT,
            "and says:\nA fatal error has been detected by the Java Runtime Environment:\nSIGSEGV (0xb) at pc",
        ),
    ],
)
def test_a_death_does_not_show_what_jobs_have_printed(tmp_path: Path, code: int, log: str, how: str) -> None:
    file = tmp_path / "engine.log"
    file.write_text(JOBS_OUTPUT + "job 7: java.lang.OutOfMemoryError: in a job\n" + log + JOBS_OUTPUT)

    cause = cause_of_death(code, file, served_jobs=True)

    assert how in cause
    assert str(file) in cause
    assert "job" not in cause


def test_a_death_before_any_job_shows_only_what_the_same_jvm_has_written(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text(JOBS_OUTPUT)
    before = file.stat().st_size
    with file.open("a") as log:
        log.write("Error: no such class\n")

    assert cause_of_death(1, file, log_begin=before).endswith(f"the end of {file}:\nError: no such class")
    assert cause_of_death(1, file, log_begin=file.stat().st_size) == "the JVM ended with exit code 1"
    file.write_text("it was rotated\n")
    assert cause_of_death(1, file, log_begin=before).endswith("it was rotated")


def test_a_death_without_a_log_is_reported(tmp_path: Path) -> None:
    assert cause_of_death(1, tmp_path / "none") == "the JVM ended with exit code 1"


def test_a_captured_jvm_prints_into_the_output_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the output is limited; in the log itself a driver that prints without end would fill the disk."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho printed >&2\n")
    java.chmod(0o700)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setattr(jvm, "_STDERR", writer)
    captured = msgspec.structs.replace(
        settings(environment=dict(os.environ)),
        java=msgspec.structs.replace(JAVA, home=str(tmp_path)),
        scratch_dir=str(tmp_path / "scratch"),
        log_file=str(tmp_path / "attempt.log"),
        run_dir="",
        captured=True,
    )
    try:
        jvm.start_jvm(captured).stop()
        assert os.read(reader, 100) == b"printed\n"
    finally:
        os.close(reader)
        os.close(writer)
    assert not (tmp_path / "attempt.log").exists()


def test_a_captured_jvm_is_reported_with_all_that_it_has_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output passes through a pipe, which another process empties, before it is in the log."""
    log = tmp_path / "attempt.log"
    reader, writer = os.pipe()
    monkeypatch.setattr(jvm, "_STDERR", writer)
    captured = msgspec.structs.replace(settings(), log_file=str(log), captured=True)
    process = subprocess.Popen(["sh", "-c", "echo 'Error: no such class' >&2; exit 1"], stderr=writer)

    def empty_the_pipe() -> None:
        process.wait()
        while printed := os.read(reader, 8):
            with log.open("ab") as file:
                file.write(printed)

    emptying = Thread(target=empty_the_pipe)
    emptying.start()
    try:
        cause = DriverJvm(process, captured, None).cause_of_death()
    finally:
        os.close(writer)
        emptying.join()
        os.close(reader)

    assert cause.startswith("the JVM ended with exit code 1; the end of")
    assert "Error: no such class" in cause


def test_a_log_that_takes_nothing_more_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(jvm, "_STDERR", writer)
    try:
        assert note_in_output("the end", tmp_path / "full.log", patience_s=0.0) is False
    finally:
        os.close(reader)
        os.close(writer)


def test_a_jvm_that_opens_no_gateway_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "GATEWAY_TIMEOUT_S", 0.0)
    hanging = DriverJvm(
        subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE),
        msgspec.structs.replace(settings(), scratch_dir=str(tmp_path)),
        None,
    )
    try:
        with pytest.raises(JvmDied, match="opened no gateway within"):
            hanging.gateway()
    finally:
        hanging.process.kill()
        hanging.stop()


def test_a_jvm_without_a_directory_refuses_relative_paths() -> None:
    def directories(working_dir: str) -> list[str]:
        command = jvm_command(msgspec.structs.replace(settings(), working_dir=working_dir))
        return [option for option in command if option.startswith("-Duser.dir=")]

    assert directories("") == ["-Duser.dir=/dev/null/no-directory-for-relative-paths"]
    assert directories("/home/of/a/job") == []
