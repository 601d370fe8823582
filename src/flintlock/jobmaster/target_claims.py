"""Which job writes to which path: of two jobs whose sinks require an empty target, one gets it.

A sink with the mode `errorifexists` or `ignore` depends on its target being empty when it is published, which may be
hours after the attempt has looked. So a job claims the targets of a region as it records that an attempt is deployed,
before that attempt looks, and has them until the job has ended. An attempt whose target another job has does not write
to it: it fails, or ignores the sink. Which sinks these are is in the record of the deployment: so a new leader knows
which job has a target before it deploys anything.

Every staged sink claims its target, and one that requires an empty target is refused if another job has it. A sink that
appends or overwrites is never refused.

Rejected: a file in the target that is created exclusively. It excludes no other job on an object store, a lost cluster
leaves it behind, and taking over what is left behind cannot be done exclusively either. Checking again when files are
published: two publications that begin at once would both find nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from flintlock.model.files.targets import comparable
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobVertex
from flintlock.model.operations import Sink


class TargetClaims:
    """The targets of all jobs of one term of leadership."""

    def __init__(self) -> None:
        self._jobs: Final[dict[str, dict[JobId, None]]] = {}  # by target; the first has claimed it first
        self._targets: Final[dict[JobId, set[str]]] = {}  # the same, by job

    def claim(self, job_id: JobId, sinks: Iterable[JobVertex]) -> dict[StepName, JobId]:
        """Claim the targets of staged sinks; return those that the job does not get, with the jobs that have them."""
        taken: dict[StepName, JobId] = {}
        for vertex in sinks:
            target = _target_of(vertex)
            if target is None:
                continue
            others = [other for other in self._jobs.get(target, ()) if other != job_id]
            if others and isinstance(vertex.operation, Sink) and vertex.operation.mode.requires_empty_target:
                taken[vertex.name] = others[0]
            else:
                self._add(job_id, target)
        return taken

    def restore(self, job_id: JobId, sinks: Iterable[JobVertex], taken: Mapping[StepName, JobId]) -> None:
        """Give a job what it had in an earlier term: its targets, except those that were taken."""
        for vertex in sinks:
            target = _target_of(vertex)
            if target is not None and vertex.name not in taken:
                self._add(job_id, target)

    def release(self, job_id: JobId) -> None:
        """Release all targets of a job that has ended. Idempotent."""
        for target in self._targets.pop(job_id, ()):
            del self._jobs[target][job_id]
            if not self._jobs[target]:
                del self._jobs[target]

    def _add(self, job_id: JobId, target: str) -> None:
        self._jobs.setdefault(target, {})[job_id] = None
        self._targets.setdefault(job_id, set()).add(target)


def _target_of(vertex: JobVertex) -> str | None:
    path = vertex.operation.target
    return None if path is None else comparable(path)
