"""What keeps a program from being begun again."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark.sql.connect.proto import (
    SQL,
    Command,
    CommonInlineUserDefinedFunction,
    CreateDataFrameViewCommand,
    Plan,
    Relation,
    SqlCommand,
    WithRelations,
    WriteOperation,
)

from flintlock.spark.region.programs.side_effects import SideEffects
from flintlock.spark.region.sql_text import lasts_beyond_session


@pytest.mark.parametrize(
    ("event", "args", "first"),
    [
        ("open", ("/data/out.csv", "w", 0), "written to '/data/out.csv'"),
        ("open", ("/data/out.csv", None, os.O_WRONLY | os.O_CREAT), "written to '/data/out.csv'"),
        ("open", ("/data/in.csv", "r", os.O_CLOEXEC), None),
        ("open", ("/data/in.csv", None, os.O_RDONLY | os.O_CLOEXEC), None),
        ("open", ("/task/scratch/tmp.csv", "w", 0), None),
        ("open", ("/task/scratch-of-another/tmp.csv", "w", 0), "written to '/task/scratch-of-another/tmp.csv'"),
        ("open", ("/site/__pycache__/m.pyc.123", None, os.O_WRONLY | os.O_CREAT), None),
        ("open", (3, "w", 0), None),
        ("subprocess.Popen", ("curl", None, None, None), "called subprocess.Popen"),
        ("os.remove", ("/data/out.csv", -1), "called os.remove"),
        ("socket.connect", (None, ("db", 5432)), "called socket.connect"),
        ("import", ("json", None, None, None, None), None),
    ],
)
def test_what_changes_something_outside_of_the_task_is_noticed(
    event: str, args: tuple[Any, ...], first: str | None
) -> None:
    effects = SideEffects("/task/scratch")
    effects.observe(event, args)
    assert effects.first == first


def executed(command: Command | None = None, relation: Relation | None = None) -> str | None:
    plan = Plan(command=command) if command is not None else Plan(root=relation)
    effects = SideEffects("/task/scratch")
    effects.note_execution(plan)
    return effects.first


def sql(text: str) -> Command:
    return Command(sql_command=SqlCommand(input=Relation(sql=SQL(query=text))))


def test_what_ends_with_the_session_does_not_keep_a_program_from_being_begun_again() -> None:
    assert executed(Command(create_dataframe_view=CreateDataFrameViewCommand(name="v"))) is None
    assert executed(Command(register_function=CommonInlineUserDefinedFunction(function_name="f"))) is None
    assert executed(sql("SELECT * FROM v")) is None
    assert executed(sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1")) is None


def test_all_other_executed_plans_do() -> None:
    action = "run a Spark action"
    assert executed(relation=Relation(sql=SQL(query="SELECT 1"))) == action  # its rows were requested
    assert executed(sql("INSERT INTO t SELECT 1")) == action
    with_views = Relation(with_relations=WithRelations(root=Relation(sql=SQL(query="CREATE TABLE t AS SELECT 1"))))
    assert executed(Command(sql_command=SqlCommand(input=with_views))) == action
    assert executed(Command(write_operation=WriteOperation(source="parquet"))) == action
    assert executed(Command()) == action
    compressed = SideEffects("/task/scratch")
    compressed.note_execution(Plan(compressed_operation=Plan.CompressedOperation(data=b"x")))
    assert compressed.first == action


@pytest.mark.parametrize(
    ("statement", "lasts"),
    [
        ("SELECT 1", False),
        ("-- all of them\n(SELECT 1) UNION ALL (SELECT 2)", False),
        ("WITH a AS (SELECT 1) SELECT * FROM a", False),
        ("SHOW TABLES", False),
        ("SET spark.sql.ansi.enabled = true", False),
        ("create global temp view v as select 1", False),
        ("CREATE TEMPORARY FUNCTION f AS 'a.B'", False),
        ("CREATE VIEW v AS SELECT 1", True),
        ("CREATE OR REPLACE TABLE temp AS SELECT 1", True),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", True),
        ("FROM a INSERT OVERWRITE t SELECT *", True),
        ("WITH a AS (SELECT 1) UPDATE t SET x = 1", True),
        ("WITH a AS (SELECT 1) MERGE WITH SCHEMA EVOLUTION INTO t USING a ON t.x = a.x", True),
        ("WITH a AS (SELECT 1) INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM a", True),
        ("FROM a INSERT WITH SCHEMA EVOLUTION INTO t SELECT *", True),
        ("WITH a AS (SELECT `update`, insert FROM b) SELECT * FROM a", False),
        ("CACHE TABLE t", True),
        ("CONVERT TO DELTA parquet.`/data`", True),
        ("", True),
    ],
)
def test_statements_whose_effect_ends_with_their_session_are_known(statement: str, *, lasts: bool) -> None:
    assert lasts_beyond_session(statement) is lasts
