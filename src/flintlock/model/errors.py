"""What can go wrong, by whose fault, and whether trying again can help.

A class exists only where some caller branches on it. `public` may reach a client; causes travel by
`raise ... from` and stay in the log. One table at each edge (`rest`, `rpc`, `cli`) maps these to that edge's codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from flintlock.model.ids import JobId
    from flintlock.model.tasks import Failure


class FlintlockError(Exception):
    """Root of all errors that Flintlock raises on purpose."""

    retryable: ClassVar[bool] = False

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


class Refused(FlintlockError):
    """The caller asked for something that cannot be done as asked."""


class Invalid(Refused):
    """What was sent is malformed: several problems, each with the place where it stands."""

    def __init__(self, public: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(public)
        self.problems = problems or (public,)


class NotFound(Refused):
    """The thing asked about is not known here."""


class Conflict(Refused):
    """The thing exists, and its present state forbids what was asked."""


class DuplicateJob(Conflict):
    """The job id is in use. `globally_terminated` says that the job has ended already."""

    globally_terminated: bool = False


class Incompatible(Refused):
    """What was stored or sent comes from a version that this one must not work with: nothing is wrong with it."""


class KeyReused(Refused):
    """An idempotency key came back with another graph."""


class TooLarge(Refused):
    """More was sent than the configured limit allows."""


class Unavailable(FlintlockError):
    """Nobody can answer now; the same call may succeed later. `unreachable` means that the peer refused or is gone."""

    retryable = True
    unreachable: bool = False


class Fenced(FlintlockError):
    """The caller follows, or is, a leader who no longer leads."""

    retryable = True


class JobFailed(FlintlockError):
    """User code, or the Spark work that it asked for, failed: `failure` says how, where that is known."""

    failure: Failure | None = None
    job_id: JobId | None = None


class Corrupt(FlintlockError):
    """Something stored cannot be read back; it is set aside, and the rest goes on."""


class InvariantBroken(FlintlockError):
    """A bug of Flintlock itself: the process that finds one ends rather than guess."""
