"""Simulations without their noise."""

from __future__ import annotations

import logging
import warnings

import structlog


def silence_simulation() -> None:
    """Drop the log of simulated processes, and the warnings about unfinished coroutines of those that die.

    A real process would take its coroutines with it.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)
