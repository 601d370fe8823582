"""Columns are aligned by what a terminal shows, not by the number of characters."""

from __future__ import annotations

import pytest

from flintlock.api.jobs import ResultColumn, ResultTable
from flintlock.cli.tables import aligned
from flintlock.client.display.console import table_text
from flintlock.client.display.text_width import text_width


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("daily", 5),
        ("größe", 5),
        ("日次集計", 8),
        ("한국어", 6),
        ("\uff46\uff55\uff4c\uff4c", 8),
        ("e\u0301te\u0301", 3),
        ("🚀", 2),
        ("", 0),
    ],
)
def test_wide_characters_take_two_columns_and_combining_ones_none(text: str, width: int) -> None:
    assert text_width(text) == width


def test_a_column_after_wide_names_begins_at_one_place() -> None:
    lines = aligned(["NAME", "STATE"], [["日次集計", "RUNNING"], ["daily", "FINISHED"]])
    assert [
        text_width(line[: line.index(state)]) for line, state in zip(lines, ("STATE", "RUN", "FIN"), strict=True)
    ] == [
        10,
        10,
        10,
    ]


def test_results_with_wide_values_are_aligned_numbers_to_the_right() -> None:
    columns = (ResultColumn(name="名前", type="string"), ResultColumn(name="n", type="int"))
    table = ResultTable(name="r", columns=columns, rows=(("東京", 7), ("x", 12)))
    assert table_text(table).splitlines() == ["名前   n", "----  --", "東京   7", "x     12"]
