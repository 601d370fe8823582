"""What former versions stored is read by this one, and means the same."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.unit.ha.stored_records import CORPUS, KINDS, examples, meaning

from flintlock.ha import payloads

STORED = sorted(CORPUS.glob("*.bin"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_record_is_read_and_means_what_it_meant(path: Path) -> None:
    kind = KINDS[path.stem.partition("-")[0]]

    record = kind.decode(path.read_bytes(), "the corpus")

    meant = msgspec.json.decode(path.with_suffix(".json").read_bytes())
    assert lacking(meant, meaning(record)) == []


def test_the_timeout_of_a_job_that_an_older_version_stored_counts_from_its_submission_by_the_wall_clock() -> None:
    old, new = (
        payloads.STORED_JOB.decode((CORPUS / f"stored_job-{name}.bin").read_bytes(), "the corpus")
        for name in ("0.1", "0.1-submitted-at")
    )

    assert (old.submitted_at_ms, old.timed_from_ms) == (0, old.submitted_ms)
    assert new.timed_from_ms == new.submitted_at_ms == 1_500


def test_every_kind_of_record_is_in_the_corpus() -> None:
    assert {path.stem.partition("-")[0] for path in STORED} == KINDS.keys() == examples().keys()


def test_every_record_has_its_meaning_beside_it() -> None:
    assert STORED
    assert {path.stem for path in STORED} == {path.stem for path in CORPUS.glob("*.json")}


def lacking(meant: Any, read: Any, where: str = "") -> list[str]:
    """Return where `read` does not say what `meant` says. It may say more: new fields have defaults."""
    problems: list[str] = []
    if isinstance(meant, dict) and isinstance(read, dict):
        fields = cast("dict[str, Any]", read)
        for key, value in cast("dict[str, Any]", meant).items():
            place = f"{where}.{key}"
            problems += lacking(value, fields[key], place) if key in fields else [f"{place} is gone"]
        return problems
    if isinstance(meant, list) and isinstance(read, list):
        pairs = list(zip_longest(cast("list[Any]", meant), cast("list[Any]", read), fillvalue="nothing"))
        for n, (one, other) in enumerate(pairs):
            problems += lacking(one, other, f"{where}[{n}]")
        return problems
    return [] if meant == read else [f"{where}: {read!r} instead of {meant!r}"]


def test_a_lost_field_and_a_changed_value_are_noticed_and_a_new_field_is_not() -> None:
    meant = {"a": 1, "b": [{"c": 2}]}

    assert lacking(meant, {"a": 1, "b": [{"c": 2, "new": None}]}) == []
    assert lacking(meant, {"b": [{"c": 2}]}) == [".a is gone"]
    assert lacking(meant, {"a": 1, "b": [{"c": 3}]}) == [".b[0].c: 3 instead of 2"]
    assert lacking(meant, {"a": 1, "b": []}) == [".b[0]: 'nothing' instead of {'c': 2}"]
    assert lacking([], [1]) == ["[0]: 1 instead of 'nothing'"]
