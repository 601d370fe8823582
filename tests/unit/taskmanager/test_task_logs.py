"""Pages of the jobs whose output is on a machine."""

from __future__ import annotations

from pathlib import Path

from flintlock.model.ids import JobId
from flintlock.taskmanager.task_logs import LoggedJobPages


def _jobs(directory: Path, numbers: range) -> list[JobId]:
    jobs = [JobId(f"{number:032x}") for number in numbers]
    for job_id in jobs:
        (directory / job_id).mkdir()
    return jobs


def _walk(pages: LoggedJobPages, limit: int) -> list[tuple[JobId, ...]]:
    found = [pages.page("", limit)]
    while found[-1]:
        found.append(pages.page(found[-1][-1], limit))
    return found[:-1]


def test_pages_contain_every_job_once_by_id(tmp_path: Path) -> None:
    jobs = _jobs(tmp_path, range(5000))
    (tmp_path / "lost+found").mkdir()

    for listed_at_once in (300, 1000, 1700, 5000, 9000):
        pages = _walk(LoggedJobPages(tmp_path, listed_at_once), limit=1000)
        assert [job_id for page in pages for job_id in page] == jobs
        assert max(len(page) for page in pages) == min(1000, listed_at_once)


def test_directory_is_listed_once_for_many_pages(tmp_path: Path) -> None:
    """One listing of a million directories for each thousand of them would take hours: what is new meanwhile waits."""
    _jobs(tmp_path, range(0, 100, 2))
    pages = LoggedJobPages(tmp_path, listed_at_once=40)
    first = pages.page("", 10)
    _jobs(tmp_path, range(1, 100, 2))

    second = pages.page(first[-1], 10)
    assert second == tuple(JobId(f"{number:032x}") for number in range(20, 40, 2))
    assert pages.page(first[-1], 10) == second  # the answer was lost
    behind = pages.page(JobId(f"{78:032x}"), 10)  # behind what was listed: another part of the directory is
    assert behind == tuple(JobId(f"{number:032x}") for number in range(79, 89))


def test_walk_begins_with_what_is_there_now(tmp_path: Path) -> None:
    pages = LoggedJobPages(tmp_path)
    assert pages.page("", 10) == ()
    jobs = _jobs(tmp_path, range(20))
    assert pages.page("", 10) == tuple(jobs[:10])
    (tmp_path / jobs[0]).rmdir()
    assert pages.page("", 10) == tuple(jobs[1:11])


def test_missing_directory_has_no_pages(tmp_path: Path) -> None:
    assert LoggedJobPages(tmp_path / "jobs").page("", 10) == ()
