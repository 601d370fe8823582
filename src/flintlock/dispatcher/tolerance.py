"""Which errors end the term, and which are only logged: archives, marks and sweeps that the next leader makes good."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.model.errors import Fenced, InvariantBroken

log: FilteringBoundLogger = structlog.get_logger()


def is_fatal_to_term(error: BaseException) -> bool:
    """Tell whether this error, or one within its group, is not a matter of one job.

    Fenced: a newer leader goes on. InvariantBroken: the process is not to be trusted any more.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((Fenced, InvariantBroken)) is not None
    return isinstance(error, Fenced | InvariantBroken)


@contextmanager
def log_and_continue(event: str, **facts: object) -> Generator[None]:
    """Let an error of the body go no further than the log, unless it ends the term."""
    try:
        yield
    except Exception as error:
        if is_fatal_to_term(error):
            raise
        log.warning(event, error=repr(error), **facts)
