"""The generated pages say what the code says."""

from docs.__main__ import pages


def test_generated_pages_are_up_to_date() -> None:
    """`make docs` would write what stands there already."""
    stale = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]

    assert stale == [], "run make docs"
