"""SQL as a job, and text taken apart into statements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.sql_form import SqlJob, is_blank, parameter, split_statements
from flintlock.model.errors import Invalid
from flintlock.model.operations import Result, Sql

PIECES = ("SELECT 1", " 'a;b' ", ' "c;d" ', " `e;f` ", " -- g;h\n", " /* i;j */ ", " 'it''s;' ", r" 'k\';l' ")


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2", ["SELECT 1"], "SELECT 2"),
        ("SELECT ';' AS x; SELECT 2;", ["SELECT ';' AS x", "SELECT 2"], ""),
        ("SELECT 1 -- one; two\n;", ["SELECT 1 -- one; two"], ""),
        ("/* ; */ SELECT 1;;; -- end;\n;", ["/* ; */ SELECT 1"], ""),
        ("SELECT 'open;", [], "SELECT 'open;"),
        ("SELECT `a``;b`;", ["SELECT `a``;b`"], ""),
        ("", [], ""),
    ],
)
def test_semicolons_outside_of_quotes_and_comments_end_statements(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)


@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1).map(lambda pieces: "x" + "".join(pieces)), max_size=5))
def test_statements_that_are_joined_are_found_again(statements: list[str]) -> None:
    found, rest = split_statements(";".join([*statements, ""]))
    assert (found, rest) == ([statement.strip() for statement in statements], "")


@given(st.text(alphabet="'\"`;-/*\\ \nab"))
def test_any_text_can_be_taken_apart(text: str) -> None:
    """Nothing is lost but blanks, semicolons and comments, and what is left ends no statement."""
    statements, rest = split_statements(text)
    assert split_statements(rest)[0] == []
    assert all(statement in text for statement in [*statements, rest])


def test_what_has_only_comments_is_blank() -> None:
    assert is_blank(" -- a\n /* b */ ")
    assert not is_blank("-- a\nSELECT 1")
    assert not is_blank("'--'")


def test_a_query_is_a_job_with_one_result() -> None:
    job = SqlJob("SELECT :n AS n", params={"n": 3}, limit=7)
    graph = job.package(Overrides(name="ad-hoc", labels={"by": "me"})).graph

    assert (graph.name, graph.labels, graph.params) == ("ad-hoc", {"by": "me"}, {"n": 3})
    assert [vertex.operation for vertex in graph.vertices] == [Sql(query="SELECT :n AS n"), Result(limit=7)]
    assert not job.pickles
    with pytest.raises(Invalid):
        SqlJob("SELECT 1", limit=0).package()


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-1", -1), ("007", "007"), ("1.5", 1.5), ("TRUE", True), ("null", None), ("2026-01-01", "2026-01-01")],
)
def test_parameters_of_a_query_have_the_type_that_they_look_like(text: str, value: object) -> None:
    assert parameter(text) == value
