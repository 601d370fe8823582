"""Failure enrichers: plug-ins that inspect failures and add labels to them, such as the team to call.

An enricher is an entry point of the group `flintlock.failure_enrichers`; only those that `jobmanager.failure-enrichers`
names are loaded. Each declares the keys of its labels. Two that declare the same key are both dropped, labels that were
not declared are ignored, and one that raises adds nothing: a plug-in never decides what happens to a job.

Enrichers run in the JobManager, in a thread of their own. They are the operator's code, not the user's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.model import log_events
from flintlock.model.ids import JobId
from flintlock.model.tasks import Failure

GROUP: Final = "flintlock.failure_enrichers"
log: FilteringBoundLogger = structlog.get_logger()


class FailureEnricher(Protocol):
    """Inspects failures. Made once, without arguments, and called from one thread at a time for each failure."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the labels that it may add."""
        ...

    def labels(self, failure: Failure, job_id: JobId, job_name: str) -> Mapping[str, str]:
        """Return labels for a failure; may be empty."""
        ...


def load_enrichers(
    names: Iterable[str], found: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP)
) -> tuple[FailureEnricher, ...]:
    """Return the enrichers of these names. One that is unknown or cannot be loaded is skipped and logged."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return ()
    known = {point.name: point for point in found()}
    made: dict[str, FailureEnricher] = {}
    for name in wanted:
        if name not in known:
            log.error(log_events.FAILURE_ENRICHER_UNKNOWN, name=name, known=sorted(known))
            continue
        try:
            made[name] = known[name].load()()
        except Exception as error:  # noqa: BLE001 - a plug-in's own, whatever it is
            log.error(log_events.FAILURE_ENRICHER_UNUSABLE, name=name, reason=repr(error))
    declared = Counter(key for enricher in made.values() for key in enricher.keys)
    disputed = {key for key, count in declared.items() if count > 1}
    for name, enricher in made.items():
        if not disputed.isdisjoint(enricher.keys):
            log.error(log_events.FAILURE_ENRICHER_DROPPED, name=name, keys=sorted(disputed & enricher.keys))
    return tuple(enricher for enricher in made.values() if disputed.isdisjoint(enricher.keys))


def labels_of(enrichers: Sequence[FailureEnricher], failure: Failure, job_id: JobId, job_name: str) -> dict[str, str]:
    """Return the labels that all enrichers add to a failure."""
    labels: dict[str, str] = {}
    for enricher in enrichers:
        try:
            added = enricher.labels(failure, job_id, job_name)
            labels |= {key: str(value) for key, value in added.items() if key in enricher.keys}
        except Exception as error:  # noqa: BLE001 - a plug-in's own, whatever it is
            log.warning(log_events.FAILURE_ENRICHER_FAILED, enricher=type(enricher).__name__, reason=repr(error))
    return labels
