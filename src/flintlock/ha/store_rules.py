"""What every implementation of the stores decides alike, with the same error messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from flintlock.model.errors import Conflict, DuplicateJob, Fenced, KeyReused, NotFound
from flintlock.model.ids import FencingToken, JobId

T = TypeVar("T")

SLICE: Final = 500
"""The records that a store reads, decodes or removes in one go: none of that may take long."""


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in tuples of this size; the last may be shorter."""
    remaining = iter(items)
    while batch := tuple(islice(remaining, size)):
        yield batch


def fence(stored: FencingToken, token: FencingToken) -> FencingToken:
    """Return the token to store with a write under `token`. Raises Fenced if a newer term has written."""
    if token.epoch < stored.epoch:
        raise Fenced(f"epoch {token.epoch} no longer leads: epoch {stored.epoch} has begun")
    if token.epoch == stored.epoch and token.session != stored.session:
        raise Fenced(f"this session does not lead: epoch {token.epoch} belongs to another one")
    return token


def duplicate_job(job_id: JobId, *, ended: bool) -> DuplicateJob:
    """Return the error for an id that is in use."""
    how = "has ended already" if ended else "exists already"
    error = DuplicateJob(f"job {job_id} {how}: its id cannot be used again")
    error.globally_terminated = ended
    return error


def key_reused(key: str, owner: JobId) -> KeyReused:
    """Return the error for a key that stands for another job."""
    return KeyReused(f"the idempotency key {key!r} stands for job {owner}")


def not_quarantined(job_id: JobId) -> NotFound:
    """Return the error for a job that is not in quarantine."""
    return NotFound(f"job {job_id} is not quarantined")


def still_cleaned_up(job_id: JobId) -> Conflict:
    """Return the error for a quarantined job whose cleanup is not done."""
    return Conflict(f"job {job_id} is being cleaned up; try again when that is done")


def no_job_for_operations(job_id: JobId) -> NotFound:
    """Return the error for operations of a job that is not stored."""
    return NotFound(f"no graph and no result is stored for job {job_id}: it can have no operations")
