"""A manifest notices every file that is missing, truncated, replaced or added, and stays small."""

from __future__ import annotations

import msgspec
import pytest

from flintlock.model.files.manifests import MAX_LISTED, difference, manifest_of

FILES = {f"part-{number}": 10 + number for number in range(4)}


def test_the_files_that_were_written_are_no_difference() -> None:
    manifest = manifest_of(FILES, 100)

    assert (manifest.count, manifest.bytes, manifest.rows) == (4, 46, 100)
    assert difference(manifest, dict(reversed(FILES.items()))) is None


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({**FILES, "part-2": 0}, "its file part-2 has 0 of 12 bytes"),
        ({name: FILES[name] for name in ("part-0", "part-1", "part-3")}, "its file part-2 is missing (3 of 4 files"),
        ({}, "its file part-0 is missing (0 of 4 files"),
        ({**FILES, "part-4": 1}, "4 files of 46 bytes were written, and 5 files of 47 bytes are there"),
        ({**{n: s for n, s in FILES.items() if n != "part-2"}, "other": 12}, "its file part-2 is missing"),
    ],
)
def test_what_is_missing_truncated_replaced_or_added_is_named(files: dict[str, int], found: str) -> None:
    assert found in (difference(manifest_of(FILES, 100), files) or "")


def test_a_manifest_of_very_many_files_is_small_and_compares_all_the_same() -> None:
    files = {f"part-{number:05}": 1000 for number in range(100_000)}
    manifest = manifest_of(files, 1)

    assert len(files) > MAX_LISTED
    assert len(msgspec.json.encode(manifest)) < 200
    assert difference(manifest, files) is None
    del files["part-05000"]
    assert difference(manifest, files) == (
        "100000 files of 100000000 bytes were written, and 99999 files of 99999000 bytes are there"
    )
