"""Which job has taken the place of which, as listings say it."""

from __future__ import annotations

from msgspec import structs
from tests.unit.model.test_shared_steps import snapshot

from flintlock.api.job_lines import encoded_line, overview_entry, summary_of
from flintlock.cli.jobs.listing import job_lines
from flintlock.model.jobs import JobSnapshot

OLD, NEW = "0123456789abcdef" + "f" * 16, "fedcba9876543210" + "0" * 16


def jobs() -> tuple[JobSnapshot, JobSnapshot]:
    """A job that was upgraded, and the one that has taken its place."""
    job = snapshot()
    old = structs.replace(job, graph=structs.replace(job.graph, job_id=OLD), successor=NEW)
    new = structs.replace(job, graph=structs.replace(job.graph, job_id=NEW, config={"execution.upgrade-of": OLD}))
    return old, new


def test_each_line_names_the_other_job_also_after_the_end() -> None:
    for job, links in zip(jobs(), [("", NEW), (OLD, "")], strict=True):
        summary = job.summary()
        entry, again = overview_entry(summary, 10), summary_of(encoded_line(summary, 10))
        assert (entry.upgrade_of, entry.successor) == links
        assert (again.upgrade_of, again.successor) == links


def test_a_job_that_takes_no_place_has_no_such_fields() -> None:
    line = encoded_line(snapshot().summary(), 10)
    assert b"upgrade-of" not in line
    assert b"successor" not in line


def test_the_list_has_columns_for_them_where_there_are_any() -> None:
    shown = "\n".join(job_lines([overview_entry(job.summary(), 10) for job in jobs()], {}))
    plain = "\n".join(job_lines([overview_entry(snapshot().summary(), 10)], {}))

    assert "UPGRADE OF" in shown
    assert "SUCCEEDED BY" in shown
    assert shown.count(OLD[:8]) == shown.count(NEW[:8]) == 2
    assert "UPGRADE OF" not in plain
