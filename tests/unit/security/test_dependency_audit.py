"""A known vulnerability fails the checks; a service that cannot be reached does not."""

from __future__ import annotations

from tests.dependency_audit import LEFT_OUT, verdict


def test_a_vulnerability_fails_and_is_named() -> None:
    report = b"""{"dependencies": [
        {"name": "a", "version": "1", "vulns": []},
        {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}], "fixes": []}"""
    assert verdict(report) == (1, ["b 2: CVE-1, fixed in 3"])


def test_an_unreachable_service_is_said_in_one_line() -> None:
    skipped = b'{"dependencies": [{"name": "a", "skip_reason": "not found"}], "fixes": []}'
    for report in (b"", b"a traceback", skipped):
        assert verdict(report) == (0, [LEFT_OUT])


def test_without_a_vulnerability_nothing_is_said() -> None:
    assert verdict(b'{"dependencies": [{"name": "a", "version": "1", "vulns": []}], "fixes": []}') == (0, [])
