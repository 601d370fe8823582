"""Which faults a simulated run has: drawn from its seed."""

from __future__ import annotations

from random import Random
from typing import Final

from flintlock.testing.simulation.faults import Faults

LONG_LEASE_S: Final = 1800.0  # longer than the cluster is ever without a leader
_SHORT_LEASE_S: Final = 20.0


def draw_faults(random: Random) -> Faults:
    """Draw the faults. In four runs of ten only JobManagers fail; the others lose TaskManagers, engines, messages too.

    In those, TaskManagers are also cut off or frozen past their leases, and results are lost. In a third of them one
    JobManager leads throughout: it alone remembers what has failed so far.
    """
    harsh = random.random() < 0.6
    steady = harsh and random.random() < 0.35
    if random.random() < 0.1:
        return _refusals(random)
    if random.random() < 0.06:
        return _quiet_spells(random)
    if random.random() < 0.22:
        return random.choice([_lapsed_leases, _disorder, _disorder, _lost_inputs])(random)
    heartbeat_timeout_s = random.choice([10.0, 60.0 if harsh else LONG_LEASE_S])
    return Faults(
        crash_at_step=0.0 if steady else random.choice([0.0, 0.01, 0.05, 0.2]),
        job_manager_crashes=0 if steady else random.choice([0, 1, 3, 8]),
        freeze_at_step=0.0 if steady else random.choice([0.0, 0.0, 0.01, 0.03]),
        job_manager_freezes=0 if steady else random.choice([0, 0, 1, 3]),
        false_deaths=0 if steady else random.choice([0, 0, 1, 3]),
        deaths_noticed=random.random() < 0.7,
        store_partitions=0 if steady else random.choice([0, 0, 1, 4]),
        lone_servers=0 if steady else random.choice([0, 0, 1, 3]),
        session_timeout_s=random.choice([2.0, 4.0]),
        task_manager_crashes=random.choice([0, 1, 3]) if harsh else 0,
        engine_crashes=random.choice([0, 1, 2, 8]) if harsh else 0,
        spark_failures=random.choice([0.0, 0.1, 0.4]) if harsh else 0.0,
        work_s=random.choice([2.0, 2.0, 40.0]) if harsh else 2.0,
        late_messages=random.choice([0.0, 0.05]),
        lost_messages=random.choice([0.0, 0.02, 0.1]) if harsh else 0.0,
        duplicates=random.choice([0.0, 0.1]),
        partitions=random.choice([0, 0, 1, 3]) if harsh else 0,
        member_cuts=random.choice([0, 0, 2]) if harsh and not steady else 0,
        slow_answers=random.choice([0, 0, 1, 2]) if harsh and heartbeat_timeout_s < _SHORT_LEASE_S else 0,
        freezes=random.choice([0, 0, 1, 3]) if harsh else 0,
        lost_results=random.choice([0, 0, 3, 12]) if harsh else 0,
        heartbeat_timeout_s=heartbeat_timeout_s,
        other_timeouts=0.5 if harsh and random.random() < 0.3 else 0.0,
        equal_ids=harsh and random.random() < 0.1,
        until_s=random.choice([5.0, 20.0, 60.0]),
        slow_reads_s=random.choice([0.0, 0.0, 1.0]),
        slow_records_s=random.choice([0.0, 0.0, 0.0, 3.0]),
        lost_answers=random.choice([0.0, 0.0, 0.02, 0.1]),
        clock_jumps=random.choice([0, 0, 1, 4]),
        publication_failures=random.choice([0.0, 0.0, 0.02, 0.08]),
        publication_step_s=random.choice([0.2, 0.2, 3.0]),
        unrecorded_attempts=random.choice([0, 0, 0, 1, 2]) if harsh else 0,
        lost_for_good=harsh and random.random() < 0.3,
    )


def _refusals(random: Random) -> Faults:
    """Draw the faults of a run in which TaskManagers refuse connections, and nothing delays their own messages.

    Only then they must not be taken for dead: what neither accepts a connection nor is heard of counts as dead.
    """
    return Faults(
        refusals=random.choice([1, 2, 4]),
        closed_ports=random.random() < 0.5,
        crash_at_step=random.choice([0.0, 0.01]),
        job_manager_crashes=random.choice([0, 0, 1, 3]),
        task_manager_crashes=random.choice([0, 0, 1]),
        engine_crashes=random.choice([0, 1, 2]),
        spark_failures=random.choice([0.0, 0.1]),
        work_s=random.choice([2.0, 20.0]),
        duplicates=random.choice([0.0, 0.1]),
        until_s=random.choice([20.0, 60.0]),
    )


def _quiet_spells(random: Random) -> Faults:
    """Draw the faults of a run in which TaskManagers are quiet for up to half of the timeout: no work is lost."""
    return Faults(
        quiet_spells=random.choice([1, 2, 4]),
        work_s=random.choice([2.0, 20.0]),
        late_messages=random.choice([0.0, 0.05]),
        heartbeat_timeout_s=random.choice([30.0, 60.0]),
        until_s=random.choice([5.0, 20.0]),
    )


def _lapsed_leases(random: Random) -> Faults:
    """Draw the faults of a run in which one leader leads, and the leases of TaskManagers end while they work."""
    return Faults(
        freezes=random.choice([1, 2, 4]),
        partitions=random.choice([0, 1, 3]),
        lapses_leases=True,
        work_s=random.choice([15.0, 30.0]),
        late_messages=random.choice([0.0, 0.05]),
        heartbeat_timeout_s=10.0,
        task_managers=2,
        until_s=random.choice([20.0, 60.0]),
    )


def _disorder(random: Random) -> Faults:
    """Draw the faults of a run in which many messages overtake others or arrive twice, and records are slow.

    TaskManagers come and go: slots are granted, lost and granted again while the first grant is recorded.
    """
    return Faults(
        late_messages=random.choice([0.2, 0.4]),
        duplicates=random.choice([0.1, 0.5]),
        slow_records_s=random.choice([0.0, 2.0, 5.0]),
        job_manager_crashes=random.choice([0, 0, 1, 3]),
        task_manager_crashes=random.choice([0, 2, 6]),
        engine_crashes=random.choice([0, 2, 6]),
        spark_failures=random.choice([0.0, 0.1]),
        cancels=0.8,
        publication_step_s=random.choice([0.2, 2.0]),
        lost_for_good=random.random() < 0.5,
        unrecorded_attempts=random.choice([0, 2]),
        until_s=random.choice([20.0, 60.0]),
    )


def _lost_inputs(random: Random) -> Faults:
    """Draw the faults of a run in which one leader leads, and blocking results are lost again and again."""
    return Faults(
        lost_results=random.choice([3, 6, 12]),
        joins=True,
        work_s=random.choice([4.0, 10.0]),
        engine_crashes=random.choice([0, 0, 2]),
        cancels=0.1,
        until_s=random.choice([20.0, 40.0]),
    )
