"""Accepting jobs: the checks before an id is reserved, and submissions that are repeated under an idempotency key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from msgspec import structs

from flintlock.config.options import PARALLELISM_OVERRIDES, RESTORE_PATH
from flintlock.dispatcher import core
from flintlock.dispatcher.core import JobPhase
from flintlock.dispatcher.job import DispatchedJob, JobBody, JobServices
from flintlock.dispatcher.retention.kept_results import no_longer_kept
from flintlock.dispatcher.services import DispatcherServices
from flintlock.dispatcher.sink_writers import SinkWriters
from flintlock.model.causes import current_cause
from flintlock.model.errors import Conflict, KeyReused, Refused, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import JobSubmission, JobUpgrade, StoredJob, Submitted

#: Returns why a cluster does not accept a job; None: it does. Called without a pause before the job is registered.
Refuse: TypeAlias = Callable[[JobId], Conflict | None]


def accept_all(job_id: JobId) -> Conflict | None:  # noqa: ARG001 - every job
    """Refuse no job."""
    return None


class JobScope(Protocol):
    """The scope in which the jobs of a term run."""

    @property
    def jobs(self) -> Mapping[JobId, DispatchedJob]:
        """The registered jobs: from the reservation of their id to the end of their task."""
        ...

    def check_leading(self) -> None:
        """Raise Unavailable if the term is over."""
        ...

    def begin(self, job: DispatchedJob, body: JobBody) -> asyncio.Task[None]:
        """Register the job and start its task."""
        ...


class PreparesUpgrades(Protocol):
    """Checks jobs that take the place of others."""

    async def prepared(self, graph: JobGraph) -> tuple[JobGraph, JobUpgrade]:
        """Return a graph as it is stored, with what it replaces. Raises Refused if it does not fit."""
        ...


class Submissions:
    """Accepts the jobs of one term."""

    def __init__(
        self,
        services: DispatcherServices,
        shared: JobServices,
        scope: JobScope,
        refuse: Refuse = accept_all,
        *,
        upgrades: PreparesUpgrades,
        sinks: SinkWriters,
    ) -> None:
        self._services: Final = services
        self._shared: Final = shared
        self._graphs: Final = shared.term.stores.graphs
        self._scope: Final = scope
        self._refuse: Final = refuse
        self._upgrades: Final = upgrades
        self._sinks: Final = sinks
        self._resource_manager: Final = shared.term.resource_manager
        self._overrides: Final = services.configuration.get(PARALLELISM_OVERRIDES)
        self._keys: Final[dict[str, asyncio.Future[None]]] = {}  # idempotency keys being decided on

    @property
    def undecided_keys(self) -> tuple[str, ...]:
        """The idempotency keys that are being decided on."""
        return tuple(self._keys)

    async def submit(self, message: JobSubmission) -> Submitted:
        """Persist and start the job; return once it is durable. See DispatcherGateway."""
        begun_s = asyncio.get_running_loop().time()
        try:
            if message.idempotency_key is None:
                submitted = await self._submit(message)
            else:
                key = message.idempotency_key
                digest = core.submission_digest(key, message)
                submitted = await self._submit_once(structs.replace(message, digest=digest), key)
        except Refused:
            if self._services.metrics is not None:
                self._services.metrics.refused()
            raise
        if self._services.metrics is not None:
            self._services.metrics.acknowledged(asyncio.get_running_loop().time() - begun_s)
        return submitted

    async def _submit_once(self, message: JobSubmission, key: str) -> Submitted:
        """Submit under an idempotency key: one at a time for each key; the store decides which one is first."""
        while (other := self._keys.get(key)) is not None:
            await asyncio.wait((other,))  # whatever its outcome, it is stored then
            self._scope.check_leading()
        decided = self._keys[key] = asyncio.get_running_loop().create_future()
        try:
            known = await self._job_of_key(key, message.digest)
            if known is not None:
                return known
            try:
                return await self._submit(message)
            except KeyReused:
                # The same key was being stored for a client that has disconnected meanwhile.
                known = await self._job_of_key(key, message.digest)
                if known is None:
                    raise
                return known
        finally:
            del self._keys[key]
            decided.set_result(None)

    async def _job_of_key(self, key: str, digest: str) -> Submitted | None:
        """Return the job that was submitted with a key. Raises Unavailable while that submission is undecided."""
        known = await self._graphs.key(key)
        if known is not None and self._scope.jobs.get(known.job_id) is None:
            known = await self._graphs.key(key)  # it has ended, or the submission was taken back meanwhile
        if known is None:
            return None
        job = self._scope.jobs.get(known.job_id)
        if job is not None and not job.visible:
            raise Unavailable(f"the submission under the key {key!r} is not decided yet; ask again")
        return Submitted(job_id=core.repeated(key, known.job_id, known.digest, digest), existing=True)

    async def _submit(self, message: JobSubmission) -> Submitted:
        """Check, reserve the id, and wait for the job's own task to make it durable."""
        self._scope.check_leading()
        if message.graph.job_type is JobType.STREAMING and self._services.unshared_checkpoints:
            registered_at = [each.address for each in (await self._resource_manager.task_managers()).task_managers]
            core.check_shared_checkpoints(message.graph, self._services.unshared_checkpoints, registered_at)
            self._scope.check_leading()
        upgrade: JobUpgrade | None = None
        if message.graph.upgrade_of:
            self._check_new(message.graph.job_id)  # first: its own predecessor may have ended for it
            graph = core.accepted_graph(message, self._services.versions, self._overrides)
            graph, upgrade = await self._upgrades.prepared(graph)
            message = structs.replace(message, graph=graph)
            self._scope.check_leading()
        elif message.graph.config.get(RESTORE_PATH.key):
            # Before the id is reserved: it reads files.
            graph = core.accepted_graph(message, self._services.versions, self._overrides)
            await self._services.savepoints.check_restore(graph)
            self._scope.check_leading()
        job_id = message.graph.job_id
        registered = self._check_new(job_id)
        for earlier in message.graph.reuses[:1]:  # without a pause before the job is registered: then they are in use
            kept = self._scope.jobs.get(earlier)
            if kept is None or not kept.keeps_results:
                raise no_longer_kept(earlier)
        graph = core.accepted_graph(message, self._services.versions, self._overrides)
        self._sinks.check(graph)  # as above: two jobs that are submitted together must not both get a sink
        stored = StoredJob(
            graph=graph,
            submitted_ms=self._services.clock_ms(),
            idempotency_key=message.idempotency_key,
            digest=message.digest,
            cause=current_cause() or "",
            upgrade=upgrade,
            submitted_at_ms=self._shared.retention_clock.now_ms(),
        )
        job = DispatchedJob(job_id, self._shared, JobPhase.RESERVED, stored=stored)
        accepted: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        predecessor = None if registered is None else registered.task
        self._sinks.replace(registered)
        task = self._scope.begin(job, partial(job.run_submitted, accepted, predecessor))
        task.add_done_callback(lambda _: answer_unanswered(accepted, "the job was being stored"))
        return await asyncio.shield(accepted)

    def _check_new(self, job_id: JobId) -> DispatchedJob | None:
        """Return the job that had this id, if its end allows that. Raises DuplicateJob, or why no job is accepted."""
        registered = self._scope.jobs.get(job_id)
        refusal = self._refuse(job_id) or core.duplicate(job_id, None if registered is None else registered.phase)
        if refusal is not None:
            raise refusal
        return registered


def answer_unanswered(answer: asyncio.Future[Any], what: str) -> None:
    """Fail an answer that its task left open: the task was cancelled because leadership is lost."""
    if not answer.done():
        answer.set_exception(Unavailable(f"leadership was lost while {what}: it may or may not be there"))
