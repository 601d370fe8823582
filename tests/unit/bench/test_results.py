from __future__ import annotations

from pathlib import Path

import pytest
from bench import results
from bench.figures import Bound, Figure
from bench.results import Machine, Measured, Results, page
from msgspec import structs

MACHINE = Machine(system="Linux 6", processor="a processor", cores=2, memory_gb=16.0, python="3.11.7", pyspark="4.3.0")


def figure(name: str, value: float = 3.0, measure: str = "") -> Figure:
    return Figure(
        name=name, what=f"time of {name}", value=value, unit="ms", bound=Bound(limit=5), against="a | b",
        measure=measure,
    )  # fmt: skip


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if f"time of {name}" in line)


def test_the_page_names_machine_date_and_bound() -> None:
    text = page(Results(machine=MACHINE, measured=(results.measured(figure("one"), 0.0),)))

    assert "a processor, 2 cores, 16 GB of memory, Linux 6.\nPython 3.11.7, PySpark 4.3.0." in text
    assert row(text, "one").startswith("| time of one | 3 ms |  | 1 | <= 5 | yes |  | a \\| b | 20")
    assert "measured while other work" not in text


def test_the_page_marks_what_was_measured_on_a_busy_machine() -> None:
    busy = Measured(figure=figure("one"), met=True, date="2026-01-01", load=1.5)
    idle = Measured(figure=figure("two", value=9.0), met=False, date="2026-01-01", load=0.1)

    text = page(Results(machine=MACHINE, measured=(busy, idle)))

    assert "time of one \\* |" in row(text, "one")
    assert "\\*" not in row(text, "two")
    assert "| **no** |" in row(text, "two")
    assert "measured while other work used the same cores" in text


def test_a_new_measurement_replaces_the_last_one_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "PAGE", tmp_path / "page.md")
    assert not results.publish()

    results.store([results.measured(figure("b", measure="second"), 0.0)], ["first", "second"])
    results.store([results.measured(figure("a", measure="first"), 0.0)], ["first", "second"])
    results.store([results.measured(figure("b", 4.0, measure="second"), 0.0)], ["first", "second"])

    assert results.publish()
    text = (tmp_path / "page.md").read_text()
    assert text.index("time of a") < text.index("time of b")
    assert "| 4 ms |" in row(text, "b")


def test_a_page_keeps_rows_of_the_same_machine_that_were_not_measured_again() -> None:
    first = Results(machine=MACHINE, measured=(results.measured(figure("a"), 1.5), results.measured(figure("b"), 0.0)))
    again = Results(machine=MACHINE, measured=(results.measured(figure("a", 4.0), 0.0),))

    text = page(again, page(first))

    assert "| 4 ms |" in row(text, "a")
    assert text.count("time of a") == text.count("time of b") == 1
    assert "measured while other work" not in text

    elsewhere = Results(machine=structs.replace(MACHINE, cores=64), measured=again.measured)
    assert "time of b" not in page(elsewhere, page(first))
