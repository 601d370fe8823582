"""Upgrades during faults: jobs take the place of streaming jobs, and every promise about that is checked.

Promised is: a graph that does not fit is refused, and nothing has happened. A job that is accepted has the name of its
predecessor, and the two name each other. It starts when its predecessor has ended, with the batch after the last one
of that: no two jobs ever write to a sink at one time, and no batch is missing or written by the wrong one. If it fails
before its first batch, the former graph runs again, as a third job; so there is always one of them that runs, until
the user ends it. An upgrade that is sent again is the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from msgspec import Struct, structs

from flintlock.config.options import UPGRADE_OF
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import FlintlockError, InvariantBroken, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobQuery, JobSnapshot, JobSubmission
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_spark import FakeSpark
from flintlock.testing.fakes.fake_streams import sink_of, written_by
from flintlock.testing.simulation.users.streaming import StreamingUser
from flintlock.testing.simulation.workload import UNLIMITED, ObservedJob, with_id

#: How many of the streaming jobs are upgraded.
UPGRADED: Final = 0.4
_FAILING: Final = 0.3  # how many of the new graphs fail at once
_CANCELLED: Final = 0.15  # how many of the new jobs are cancelled soon
_MOST: Final = 2  # upgrades of one job, one after another


class Upgrade(Struct):
    """One job that was to take the place of another one, and the one that runs again in its place."""

    former: ObservedJob
    former_user: StreamingUser
    new: ObservedJob
    new_user: StreamingUser | None = None  # None: it was refused
    back: ObservedJob | None = None


class UpgradingUser:
    """Upgrades one streaming job, in some cases its successor too, and uses each of them to its end."""

    def __init__(
        self,
        random: Random,
        spark: FakeSpark,
        *,
        use: Callable[[ObservedJob, float | None], Awaitable[None]],
        user_of: Callable[[ObservedJob], StreamingUser],
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        self.violations: Final[list[str]] = []
        self.upgrades: Final[list[Upgrade]] = []
        self._random: Final = random
        self._spark: Final = spark
        self._use: Final = use
        self._user_of: Final = user_of
        self._gateway: Final = gateway
        self._try_another: Final = try_another
        self._record: Final = record

    @property
    def job_ids(self) -> set[JobId]:
        """The jobs that were acknowledged to this user, or run for it."""
        jobs = [job for upgrade in self.upgrades for job in (upgrade.new, upgrade.back) if job is not None]
        return {job.acknowledged for job in jobs if job.acknowledged is not None}

    async def run(self, former: ObservedJob, user: StreamingUser) -> None:
        """Upgrade a job; return when all jobs have ended that came of that."""
        await asyncio.sleep(self._random.uniform(0.0, 8.0))
        number = len(self.upgrades)
        upgrade = Upgrade(former=former, former_user=user, new=self._draw(former, number))
        self.upgrades.append(upgrade)
        user.is_upgraded = True
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._random.choice([1, 1, 2])):  # two processes of one user, with one key
                tasks.create_task(self._submit(upgrade.new), name="upgrade")
        if upgrade.new.acknowledged is None:
            return
        cancel_s = self._random.uniform(0.0, 8.0) if self._random.random() < _CANCELLED else None
        upgrade.new_user = self._user_of(upgrade.new)
        async with asyncio.TaskGroup() as tasks:
            if number + 1 < _MOST and self._random.random() < 0.5:
                tasks.create_task(self.run(upgrade.new, upgrade.new_user), name="upgrade-again")
            await self._use(upgrade.new, cancel_s)
        ended = await self._read(upgrade.new)
        if ended is not None and ended.status is JobStatus.FAILED and ended.successor:
            back = structs.replace(
                former, key=f"{upgrade.new.key}-back", acknowledged=JobId(ended.successor), statuses=[], ended=False,
                graph=with_id(former.graph, JobId(ended.successor)), cancel_sent=False, forced=False,
                cancelled_ids=set(),
            )  # fmt: skip
            upgrade.back = back
            self._user_of(back)
            await self._use(back, None)

    async def problems(self, *, only_leaders_fail: bool) -> list[str]:
        """Return what is wrong with all jobs, which have ended."""
        found: list[str] = []
        for upgrade in self.upgrades:
            former, new = await self._read(upgrade.former), await self._read(upgrade.new)
            if upgrade.new_user is None or former is None or new is None:
                continue
            back = None if upgrade.back is None else await self._read(upgrade.back)
            found += self._link_problems(upgrade, former, new, back)
            found += self._order_problems(upgrade)
            found += upgrade.new_user.problems(new, only_leaders_fail=only_leaders_fail and not _is_failed(new))
            if upgrade.back is not None and back is not None:
                found += self._user_of(upgrade.back).problems(back, only_leaders_fail=only_leaders_fail)
        return found

    def _draw(self, former: ObservedJob, number: int) -> ObservedJob:
        job_id = JobId(f"{self._random.getrandbits(128):032x}")
        graph = with_id(former.graph, job_id)
        # The id by which its predecessor was acknowledged: another process of the same user may have submitted that.
        config = {**graph.config, UPGRADE_OF.key: str(former.acknowledged)}
        if self._random.random() < _FAILING:
            self._spark.failing_streams.add(job_id)
        graph = structs.replace(graph, name="the name of the former job is kept", config=config)
        return ObservedJob(key=f"{former.key}-upgrade-{number}", graph=graph, retries=former.retries)

    async def _submit(self, new: ObservedJob) -> None:
        """Submit a job until it is acknowledged or refused."""
        submission = JobSubmission(graph=new.graph, idempotency_key=new.key, digest=new.key)
        while True:
            try:
                answer = await self._gateway().submit_job(submission)
            except InvariantBroken as error:
                self.violations.append(f"{new.key}: submission met a bug: {error.public}")
                return
            except FlintlockError as error:
                if not error.retryable:
                    self._record(f"{new.key} refused: {error.public}")
                    return
                self._try_another()
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            if new.acknowledged not in (None, answer.job_id):
                self.violations.append(f"{new.key} is two jobs: {new.acknowledged} and {answer.job_id}")
            new.acknowledged = answer.job_id
            self._record(f"{new.key} acknowledged as {answer.job_id}")
            return

    async def _read(self, observed: ObservedJob) -> JobSnapshot | None:
        """Return a job as the present leader knows it; None if it is not known, or not any more."""
        while observed.acknowledged is not None:
            try:
                return await self._gateway().job(JobQuery(job_id=observed.acknowledged))
            except Unavailable:
                self._try_another()
                await asyncio.sleep(0.5)
            except FlintlockError:
                return None
        return None

    def _link_problems(
        self, upgrade: Upgrade, former: JobSnapshot, new: JobSnapshot, back: JobSnapshot | None
    ) -> list[str]:
        """Check who names whom, and that one of the jobs ran until the user ended it."""
        key, problems = upgrade.new.key, list[str]()
        predecessor, successor = str(upgrade.former.acknowledged), str(upgrade.new.acknowledged)
        took_over = former.status is JobStatus.FINISHED and former.successor == successor
        if new.graph.name != former.graph.name or new.graph.upgrade_of != predecessor:
            problems.append(f"{key} is {new.graph.name} instead of {former.graph.name}, of {new.graph.upgrade_of}")
        if self._written(upgrade.new) and not took_over:
            problems.append(f"{key} has batches, and its predecessor is {former.status} with {former.successor!r}")
        if back is not None and (
            back.graph.rerun_of != predecessor or back.graph.name != former.graph.name or self._written(upgrade.new)
        ):
            problems.append(f"{key}: {back.graph.job_id} runs in its place, of {back.graph.rerun_of}")
        ends = upgrade.new.cancel_sent or upgrade.former_user.was_to_stop or upgrade.former.cancel_sent
        if took_over and _is_failed(new) and not self._written(upgrade.new) and back is None and not ends:
            problems.append(f"{key} has failed before its first batch, and its predecessor does not run again")
        is_to_end = upgrade.new_user is not None and upgrade.new_user.was_to_stop  # then nothing is restarted
        if _is_failed(new) and self._written(upgrade.new) and upgrade.new.retries == UNLIMITED and not is_to_end:
            problems.append(f"{key} has failed after its first batch, though its strategy restarts it without a limit")
        if former.status is JobStatus.FINISHED and not took_over and not ends:
            problems.append(f"{key}: its predecessor was stopped, and {former.successor!r} has its place")
        return problems

    def _order_problems(self, upgrade: Upgrade) -> list[str]:
        """Check that the jobs have written one after another."""
        content, problems = self._spark.files.content, list[str]()
        chain = [upgrade.former, upgrade.new, *([] if upgrade.back is None else [upgrade.back])]
        for sink in map(sink_of, upgrade.new.graph.vertices):
            parts = [written_by(content, sink, job.acknowledged) for job in chain if job.acknowledged is not None]
            joined = [batch for part in parts for batch in part]
            if joined != sorted(joined):
                problems.append(f"{upgrade.new.key}: {sink} was written by two jobs in turn: {parts}")
        return problems

    def _written(self, job: ObservedJob) -> bool:
        content, job_id = self._spark.files.content, job.acknowledged
        sinks = [sink_of(vertex) for vertex in job.graph.vertices if vertex.query is not None]
        return job_id is not None and any(written_by(content, sink, job_id) for sink in sinks)


def _is_failed(job: JobSnapshot) -> bool:
    return job.status is JobStatus.FAILED
