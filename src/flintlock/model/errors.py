"""The errors that Flintlock raises, by cause and by whether a retry can help; and `NoRetry`, which user code raises.

A class exists only where some caller branches on it. `public` may reach a client; causes are chained by
`raise ... from` and stay in the log. One table at each edge (`rest`, `rpc`, `cli`) maps these to that edge's codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Self

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
    """The request cannot be carried out as it is."""


class Invalid(Refused):
    """What was sent is malformed: several problems, each with its place."""

    def __init__(self, public: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(public)
        self.problems = problems or (public,)


class NotFound(Refused):
    """What the request names does not exist here."""


class Conflict(Refused):
    """What the request names exists, and its present state forbids the request."""


class DuplicateJob(Conflict):
    """The job id is in use. `globally_terminated` says that the job has ended already."""

    globally_terminated: bool = False


class Incompatible(Refused):
    """What was stored or sent comes from a version that this one must not work with; it is not damaged."""


class KeyReused(Refused):
    """An idempotency key was sent again with another graph."""


class TooLarge(Refused):
    """More was sent than the configured limit allows."""


class Unauthenticated(Refused):
    """The caller has no credential, or one that is wrong, expired or revoked."""


class Forbidden(Refused):
    """The caller is known, and may not do this; or a web page of another origin sent the request."""


class Unavailable(FlintlockError):
    """The call cannot be served now; it may succeed later. `unreachable`: the peer refused it or has exited."""

    retryable = True
    unreachable: bool = False


class Fenced(FlintlockError):
    """The caller follows, or is, a former leader."""

    retryable = True


class JobFailed(FlintlockError):
    """User code, or a Spark job that it started, failed; `failure` has the details, where they are known."""

    failure: Failure | None = None
    job_id: JobId | None = None
    permanent: bool = False  # whether the error is of a kind that does not pass by itself, where that is known


#: A line that every traceback of a NoRetry ends with. Spark reports errors of its Python workers as text: there this
#: line identifies the classes that inherit from NoRetry.
NO_RETRY_NOTE: Final = "[flintlock: the job is not restarted after this error]"


class NoRetry(Exception):
    """Raised by user code, or inherited by an exception of it: the job fails now, whatever its restart strategy is.

    For what cannot succeed the second time either, such as input that is not valid. It may be raised in steps, in
    programs, and in functions that run in Spark's Python workers.
    """

    if not TYPE_CHECKING:  # signatures of `__init__` in classes that inherit are to be checked without it

        def __new__(cls, *args: object, **_keywords: object) -> Self:
            """Add the note here: a class that inherits may have an `__init__` of its own."""
            error = super().__new__(cls, *args)
            error.add_note(NO_RETRY_NOTE)
            return error


NoRetry.__module__ = "flintlock"  # the name by which its users import it, and which tracebacks show


class Corrupt(FlintlockError):
    """A stored record cannot be read back; it is quarantined, and the others stay in use."""


class InvariantBroken(FlintlockError):
    """A bug of Flintlock itself: the process that detects one exits instead of continuing with a guess."""
