"""The rows of the route table are found by path, and hold every fact about a route."""

from __future__ import annotations

import re

import pytest

from flintlock.rest.server.route import Route, ServedBy
from flintlock.rest.server.routes import ROUTES, TABLE


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_every_row_is_found_by_a_path_of_its_form(row: Route) -> None:
    path = re.sub(r"{\w+}", "e" * 32, row.path)

    assert TABLE.find(row.method, path) is row
    if row.method == "GET":
        assert TABLE.find("HEAD", path) is row


def test_a_method_that_a_path_does_not_have_is_served_where_the_path_is() -> None:
    found = TABLE.find("DELETE", "/healthz")

    assert found is not None
    assert found.served_by is ServedBy.ANY


@pytest.mark.parametrize("path", ["", "//", "/job", "/jobs/", "/jobs/a/b", "/jobs/metrics/a", "/healthz/a"])
def test_an_unknown_path_has_no_row(path: str) -> None:
    assert TABLE.find("GET", path) is None


def test_a_get_changes_nothing() -> None:
    """Standbys repeat and cache GET, and a crawler may follow it: what changes state has another method."""
    changing = ("cancel", "stop", "delete", "submit", "run")

    assert not [row.path for row in ROUTES if row.method == "GET" and any(verb in row.path for verb in changing)]


def test_what_is_cached_needs_no_parameters_and_has_no_end_to_wait_for() -> None:
    """A cached response is found by its path alone; a request with parameters is not answered from the cache."""
    for row in ROUTES:
        if row.cache_s:
            needed = [parameter for parameter in row.parameters if parameter.required]
            assert (row.method, needed, row.streams, row.max_wait_s, "{" in row.path) == ("GET", [], False, 0, False)
