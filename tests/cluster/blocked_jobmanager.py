"""A JobManager that a job ends: `FATAL_JOB=name:block` for one that never returns from it, `name:break` for an error.

The process is the real one. The place of a bug is taken in the one function that plans a job's graph for its JobMaster:
there it loops without an end on the event loop, or finds that an invariant of the process does not hold.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import uvloop

from flintlock.entrypoints.jobmanager import serve
from flintlock.entrypoints.process import start
from flintlock.jobmaster import endpoint
from flintlock.model.errors import InvariantBroken
from flintlock.model.jobgraph import JobGraph

NAME, _, HOW = os.environ["FATAL_JOB"].partition(":")
_plan_of: Final = endpoint.plan_of


def plan_or_end(graph: JobGraph, *rest: Any) -> Any:
    """Plan a job, unless it is the one that ends this process."""
    while graph.name == NAME:
        if HOW == "break":
            raise InvariantBroken("the plan of this job contradicts itself")
    return _plan_of(graph, *rest)


endpoint.plan_of = plan_or_end

if __name__ == "__main__":
    sys.exit(start("jobmanager", serve, uvloop.new_event_loop))
