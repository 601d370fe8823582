"""Structs of the routes about applications, with Flink's names."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from flintlock.api.base import ApiStruct, CamelCase, KebabCase
from flintlock.api.jobs import ExceptionHistoryEntry, JobsOverviewEntry


class ApplicationState(StrEnum):
    """The state of an application: of its program, or of its only job, and of the jobs that the program has left."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"


class ApplicationOverviewEntry(KebabCase, frozen=True, kw_only=True):
    """One entry of GET /applications/overview. `jobs` counts them by state."""

    id: str
    name: str
    start_time: int
    end_time: int
    duration: int
    status: ApplicationState
    jobs: dict[str, int]


class ApplicationsOverview(ApiStruct, frozen=True, kw_only=True):
    """GET /applications/overview."""

    applications: tuple[ApplicationOverviewEntry, ...]


class ApplicationDetails(KebabCase, frozen=True, kw_only=True):
    """GET /applications/:applicationid."""

    id: str
    name: str
    status: ApplicationState
    start_time: int
    end_time: int
    duration: int
    timestamps: dict[str, int]
    jobs: tuple[JobsOverviewEntry, ...]


class ApplicationExceptionHistory(ApiStruct, frozen=True, kw_only=True):
    """The failures of an application's program, or of its only job, newest first."""

    entries: list[ExceptionHistoryEntry] = field(default_factory=list[ExceptionHistoryEntry])


class ApplicationExceptions(CamelCase, frozen=True, kw_only=True):
    """GET /applications/:applicationid/exceptions."""

    exception_history: ApplicationExceptionHistory
