"""What the Dispatcher counts."""

from __future__ import annotations

from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, empty, outcome_of, submission, until

from flintlock.model.errors import DuplicateJob
from flintlock.testing.virtual_time import virtual_time


@virtual_time
async def test_submissions_their_time_refusals_ends_and_recoveries_are_counted() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A))), DuplicateJob)
        runner.finish()
        await until(
            lambda: harness.registry.get_sample_value("flintlock_jobs_ended_total", {"status": "FINISHED"}) == 1
        )
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 3)
        harness.runner(B).finish()
        await empty(dispatcher)

    value = harness.registry.get_sample_value
    assert value("flintlock_submission_seconds_count") == 2
    assert value("flintlock_submissions_refused_total") == 1
    assert value("flintlock_jobs_recovered_total") == 1
    assert value("flintlock_jobs_ended_total", {"status": "FINISHED"}) == 2
