"""Measure the figures, print a table, write `bench/results.json`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import structs
from rich.console import Console
from rich.table import Table

from bench import (
    authentication,
    control_plane,
    dashboard,
    durability,
    failover,
    growth,
    high_availability,
    leader_change,
    longest_step,
    many_jobs,
    many_taskmanagers,
    member_tls,
    results,
    savepoints,
    scheduling,
    servers,
    spark,
    standalone,
    streaming,
    streaming_leaders,
    streaming_operations,
    yarn,
)
from bench.figures import Figure

MEASURES: Final[dict[str, Callable[[], Iterator[Figure]]]] = {
    "acknowledgement": control_plane.acknowledgement,
    "durable-acknowledgements": control_plane.durable_acknowledgements,
    "idle-jobmanager": control_plane.idle_jobmanager,
    "jobs-overview": control_plane.jobs_overview,
    "authentication": authentication.authentication,
    "member-tls": member_tls.member_tls,
    "scheduling": scheduling.scheduling,
    "small-query": spark.small_query,
    "million-rows": spark.million_rows,
    "stateful-query": streaming.stateful_query,
    "savepoint": savepoints.savepoint_of_state,
    "batch-beside-savepoint": streaming_operations.batches_beside_savepoints,
    "stop-and-restore": streaming_operations.stop_and_restore,
    "twenty-streams": streaming_leaders.twenty_streams,
    "durable-publication": durability.durable_publication,
    "hundred-jobs": spark.hundred_jobs,
    "twenty-jobs": spark.twenty_jobs,
    "taskmanager-killed": failover.task_manager_killed,
    "leader-change": leader_change.leader_change,
    "embedded-leader-change": leader_change.embedded_change,
    "standby-reads": leader_change.standby_reads,
    "ensemble-acknowledgements": leader_change.ensemble_acknowledgements,
    "recovery": high_availability.recovery,
    "ended-jobs": many_jobs.ended_jobs,
    "growth": growth.growth,
    "thousand-taskmanagers": many_taskmanagers.many_taskmanagers,
    "standalone": standalone.standalone,
    "yarn-session-job": yarn.session_job,
    "yarn-application": yarn.application_start,
    "yarn-master-killed": yarn.master_killed,
    "longest-step": longest_step.longest_step,
    "dashboard": dashboard.dashboard,
}


def main(arguments: list[str]) -> int:
    """Measure; return 1 if a bound was missed, 2 for an unknown name or nothing to publish."""
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURES)}; all if none is given")
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks.md afterwards")
    parser.add_argument("--publish-only", action="store_true", help="write docs/benchmarks.md from the last results")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in MEASURES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(MEASURES)}")
    if given.publish_only:
        return 0 if results.publish() else 2
    longest_ms: dict[str, float] = {}
    found = [item for name in given.names or MEASURES for item in _measure(name, longest_ms)]
    if not given.names:
        found.append(results.measured(_longest_of_all(longest_ms), results.load_for_each_core()))
    results.store(found, MEASURES)
    if given.publish:
        results.publish()
    figures = [item.figure for item in found]
    _print(figures)
    return 0 if all(figure.met for figure in figures) else 1


def _measure(name: str, longest_ms: dict[str, float]) -> Iterator[results.Measured]:
    load = results.load_for_each_core()
    servers.loop_delays_ms.clear()
    sys.stderr.write(f"measuring {name} (load of each core before: {load:g}) …\n")
    for figure in MEASURES[name]():
        sys.stderr.write(f"  {figure.what}: {figure.value:.4g} {figure.unit} ({figure.bound}; {figure.against})\n")
        yield results.measured(structs.replace(figure, measure=name), load)
    if servers.loop_delays_ms:
        longest_ms[name] = max(servers.loop_delays_ms)
        sys.stderr.write(f"  longest step of a JobManager's loop meanwhile: {longest_ms[name]:.4g} ms\n")


def _longest_of_all(longest_ms: dict[str, float]) -> Figure:
    """Return the longest step of a JobManager's loop in all measures, and in which three it was longest."""
    ordered = sorted(longest_ms.items(), key=lambda item: -item[1])
    return Figure(
        name="longest-step-all", what="longest step of the loop: all benchmarks", value=ordered[0][1], unit="ms",
        bound=longest_step.BOUND, samples=len(ordered), measure="longest-step",
        against="; ".join(f"{name} {value:.1f} ms" for name, value in ordered[:3]),
    )  # fmt: skip


def _print(figures: list[Figure]) -> None:
    table = Table("what", "value", "middle half", "n", "bound", "met", "Flink 2.3", "measured against")
    for figure in figures:
        middle = "" if figure.low is None or figure.high is None else f"{figure.low:.4g} to {figure.high:.4g}"
        table.add_row(
            figure.what,
            f"{figure.value:.4g} {figure.unit}",
            middle,
            str(figure.samples),
            str(figure.bound),
            "yes" if figure.met else "NO",
            figure.flink,
            figure.against,
        )
    Console(width=None if sys.stdout.isatty() else 220).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
