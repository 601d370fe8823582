"""Every check of a job that needs no Spark. Client and server both use it, so both report the same."""

from __future__ import annotations

from flintlock.config.configuration import Scope, config_problems
from flintlock.config.options import OPTIONS
from flintlock.model.checking.graphcheck import problems_of, submission_problems
from flintlock.model.checking.problems import Problem
from flintlock.model.jobgraph import JobGraph


def job_problems(graph: JobGraph) -> list[Problem]:
    """Return everything that is wrong with a job: its steps, how they are connected, and its configuration."""
    settings = config_problems(graph.config, OPTIONS, Scope.JOB)
    return [
        *problems_of(graph),
        *submission_problems(graph),
        *(Problem(field=f"config.{key}", message=message) for key, message in settings),
    ]
