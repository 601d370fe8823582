"""A query, or a command?"""

from __future__ import annotations

import pytest

from flintlock.spark.region.sql_text import command_of


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "  -- INSERT INTO t\n /* DROP */ select * from t",
        "WITH a AS (SELECT 'insert into x') SELECT * FROM a",
        "(SELECT 1) UNION (SELECT 2)",
        "FROM t |> WHERE x > 1",
        "VALUES (1), (2)",
        "SHOW TABLES",
        "SELECT `insert`, delete FROM t",
        "SELECT merge.into FROM merge",
        "WITH a AS (SELECT 1) SELECT max(x) update FROM a",
        "WITH update AS (SELECT 1), merge (x) AS (SELECT 2) SELECT * FROM merge",
        "selec 1",
        "",
    ],
)
def test_queries(query: str) -> None:
    assert command_of(query) is None


@pytest.mark.parametrize(
    ("query", "keyword"),
    [
        ("INSERT INTO t SELECT 1", "INSERT"),
        ("/* x */ create table t (a int)", "CREATE"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "INSERT"),
        ("FROM t INSERT OVERWRITE u SELECT *", "INSERT"),
        ("WITH a AS (SELECT 1) UPDATE t SET x = 1 WHERE x IN (SELECT * FROM a)", "UPDATE"),
        ("WITH a (x) AS (SELECT 1) merge with schema evolution into t USING a ON t.x = a.x", "MERGE"),
        ("WITH a AS (SELECT 1) INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM a", "INSERT"),
        ("SET spark.x = 1", "SET"),
        ("merge into t using u on a = b when matched then delete", "MERGE"),
    ],
)
def test_commands(query: str, keyword: str) -> None:
    assert command_of(query) == keyword
