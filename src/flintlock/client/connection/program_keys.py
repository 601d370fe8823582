"""Idempotency keys of the jobs that a program of an application submits: the n-th time it means its n-th job.

A program that runs again, because its TaskManager was lost, submits the same jobs in the same order: those that have
ended answer at once, those that run are followed, and only what it had not submitted yet is new. The numbers belong to
the program's own process. Processes that it starts have none: their order would not be the program's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import Final

from flintlock.model.application import PROGRAM_VARIABLE, program_key
from flintlock.model.ids import JobId

_NUMBERS: Final = count(1)


def next_program_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key of this program's next submission; None if this process is not a program of an application."""
    program, _, pid = (os.environ if environ is None else environ).get(PROGRAM_VARIABLE, "").partition(" ")
    return program_key(JobId(program), next(_NUMBERS)) if pid == str(os.getpid()) else None
