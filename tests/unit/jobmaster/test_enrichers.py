"""Failure enrichers: which are loaded, what they may say, and that they decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import EntryPoint

from tests.unit.jobmaster.job_harness import JOB, failure
from tests.unit.jobmaster.test_endpoint import EndpointHarness

from flintlock.jobmaster.enrichers import GROUP, labels_of, load_enrichers
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobOutcome
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, TaskFailed


class Team:
    keys = frozenset({"team"})

    def labels(self, failure: Failure, job_id: JobId, job_name: str) -> Mapping[str, str]:
        return {"team": f"{job_name}-team", "undeclared": str(job_id)}


class AlsoTeam(Team):
    pass


class Raising:
    keys = frozenset({"other"})

    def labels(self, failure: Failure, job_id: JobId, job_name: str) -> Mapping[str, str]:
        raise ValueError(failure.message)


def points(**classes: str) -> list[EntryPoint]:
    return [EntryPoint(name, f"{__name__}:{value}", GROUP) for name, value in classes.items()]


def test_only_configured_enrichers_are_loaded() -> None:
    found = load_enrichers(["b", "b", "missing"], lambda: points(a="Raising", b="Team"))
    assert [type(enricher).__name__ for enricher in found] == ["Team"]


def test_two_that_claim_the_same_label_key_are_both_dropped() -> None:
    found = load_enrichers(["a", "b", "c"], lambda: points(a="Team", b="AlsoTeam", c="Raising"))
    assert [type(enricher).__name__ for enricher in found] == ["Raising"]


def test_one_that_cannot_be_loaded_is_left_out() -> None:
    found = load_enrichers(["a", "b"], lambda: points(a="Nothing", b="Team"))
    assert [type(enricher).__name__ for enricher in found] == ["Team"]


def test_undeclared_labels_are_ignored_and_one_that_raises_adds_nothing() -> None:
    assert labels_of((Raising(), Team()), failure(), JOB, "revenue") == {"team": "revenue-team"}


def test_labels_stand_in_the_history_of_a_job_that_ends_by_the_failure() -> None:
    async def scenario() -> JobOutcome:  # on a real loop: enrichers run in a thread
        harness = EndpointHarness(enrichers=(Team(),))
        async with harness.running() as job:
            while harness.state() is not ExecutionState.DEPLOYING:  # noqa: ASYNC110 (there is no event for it)
                await asyncio.sleep(0)
            await harness.report(TaskFailed(failure=failure()))
            return await job

    snapshot = asyncio.run(scenario()).snapshot
    assert snapshot.status is JobStatus.FAILED
    assert snapshot.exceptions[0].labels == {"team": "revenue-team"}
