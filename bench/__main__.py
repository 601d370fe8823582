"""Measure the figures, print a table, write `bench/results.json`. Arguments are names of figures to measure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench import control_plane, failover, high_availability, leader_change, scheduling, spark
from bench.figures import Figure

MEASURES: Final[dict[str, Callable[[], Iterator[Figure]]]] = {
    "acknowledgement": control_plane.acknowledgement,
    "durable-acknowledgements": control_plane.durable_acknowledgements,
    "idle-jobmanager": control_plane.idle_jobmanager,
    "jobs-overview": control_plane.jobs_overview,
    "scheduling": scheduling.scheduling,
    "small-query": spark.small_query,
    "million-rows": spark.million_rows,
    "hundred-jobs": spark.hundred_jobs,
    "twenty-jobs": spark.twenty_jobs,
    "taskmanager-killed": failover.task_manager_killed,
    "leader-change": leader_change.leader_change,
    "embedded-leader-change": leader_change.embedded_change,
    "standby-reads": leader_change.standby_reads,
    "ensemble-acknowledgements": leader_change.ensemble_acknowledgements,
    "recovery": high_availability.recovery,
}
RESULTS: Final = Path(__file__).parent / "results.json"


def main(names: list[str]) -> int:
    """Measure; return 1 if a bound was missed, 2 for an unknown name."""
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; known are {', '.join(MEASURES)}\n")
        return 2
    figures: list[Figure] = []
    for name in names or MEASURES:
        sys.stderr.write(f"measuring {name} …\n")
        for figure in MEASURES[name]():
            sys.stderr.write(f"  {figure.what}: {figure.value:.4g} {figure.unit} ({figure.bound}; {figure.against})\n")
            figures.append(figure)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode([_plain(figure) for figure in figures]), indent=2))
    _print(figures)
    return 0 if all(figure.met for figure in figures) else 1


def _plain(figure: Figure) -> dict[str, Any]:
    return {**msgspec.to_builtins(figure), "bound": str(figure.bound), "met": figure.met}


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
