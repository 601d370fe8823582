"""Quarantined jobs, as REST shows them. Flink has no such endpoint."""

from __future__ import annotations

from flintlock.api.base import KebabCase


class QuarantineEntry(KebabCase, frozen=True, kw_only=True):
    """A job that is stored and cannot be run. `since` is -1, and `name` empty, where nothing is known of it."""

    jid: str
    name: str
    reason: str
    since: int
    readable: bool
    directories: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()


class QuarantineListing(KebabCase, frozen=True, kw_only=True):
    """GET /quarantine."""

    jobs: tuple[QuarantineEntry, ...]
