"""Command lines of people who come from spark-submit."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from flintlock.cli.jobs.run import overrides_of, run
from flintlock.cli.jobs.spark_submit import REMEDIES, setting_as_file, unknown_option
from flintlock.config.options import OPTIONS


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_of_spark_submit_is_known_or_has_a_remedy() -> None:
    """Those that `spark-submit --help` of Spark 4.3 lists; --help, --verbose and --name mean the same here."""
    theirs = [
        "--master", "--remote", "--deploy-mode", "--class", "--name", "--jars", "--packages", "--exclude-packages",
        "--repositories", "--py-files", "--files", "--archives", "--conf", "-c", "--properties-file",
        "--load-spark-defaults", "--driver-memory", "--driver-java-options", "--driver-library-path",
        "--driver-class-path", "--executor-memory", "--proxy-user", "--verbose", "--driver-cores", "--supervise",
        "--kill", "--status", "--total-executor-cores", "--executor-cores", "--num-executors", "--principal",
        "--keytab", "--queue",
    ]  # fmt: skip
    known = options_of(run)
    assert [name for name in theirs if name not in known and unknown_option(name) is None] == []
    assert [name for name in REMEDIES if name in known] == []


def test_a_remedy_names_options_that_there_are() -> None:
    keys = {option.key for option in OPTIONS}
    for remedy in REMEDIES.values():
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*|-D", remedy)) <= options_of(run), remedy
        named = re.findall(r"(?<![\w.])(?:taskmanager|yarn|restart-strategy)\.[\w.-]*\w", remedy)
        assert set(named) <= keys, remedy


def test_only_settings_of_spark_are_taken_for_settings() -> None:
    assert setting_as_file("spark.sql.ansi.enabled=true") is not None
    assert setting_as_file("spark.yaml") is None
    assert setting_as_file("conf/a=b.yaml") is None


@pytest.mark.parametrize("repeated", [False, True])
def test_lists_of_files_have_commas_or_are_repeated(*, repeated: bool) -> None:
    def split(text: str) -> tuple[str, ...]:
        return tuple(text.split(",")) if repeated else (text,)

    overrides = overrides_of(
        parallelism=None, params=(), name=None, labels=(), engine=None, env=(), py_files=split("a.py, b.zip,lib"),
        files=split("x.json,y.csv"), jars=split("a.jar,b.jar"), packages=split("g:a:1,g:b:2"), requirements=None,
        pyenv=None, defines=(),
    )  # fmt: skip
    assert overrides.py_files == (Path("a.py"), Path("b.zip"), Path("lib"))
    assert overrides.files == (Path("x.json"), Path("y.csv"))
    assert overrides.jars == (Path("a.jar"), Path("b.jar"))
    assert overrides.packages == ("g:a:1", "g:b:2")
