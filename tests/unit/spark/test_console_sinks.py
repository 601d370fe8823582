"""Rows that go to a console: on a shared engine they are in its log, which the program's user does not read."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.connect import proto
from tests.unit.spark.streaming_harness import FakeQuery, FakeSpark, concurrent, streaming

from flintlock.model.jobgraph import EngineKind
from flintlock.model.operations import Sink
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.spark.region.console_sinks import ConsoleSinks, note_console

NOTE = "rows that are written to 'console' are printed by the shared engine into its own log"


def stream(name: str) -> Any:
    command = proto.Command()
    command.write_stream_operation_start.format = name
    return command


def batch(name: str) -> Any:
    command = proto.Command()
    command.write_operation.source = name
    return command


def test_a_program_is_told_once_where_the_rows_are_and_its_queries_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A driver of its own, where the rows would be in its output, is not always to be had."""
    sinks = ConsoleSinks()
    for command in (stream("console"), batch("Console"), stream("console")):
        sinks.note_plan(command)

    assert capsys.readouterr().err.count(NOTE) == 1


@pytest.mark.parametrize("message", [stream("parquet"), batch("noop"), proto.Command(), proto.Relation()])
def test_other_plans_pass(message: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSinks().note_plan(message)
    assert not capsys.readouterr().err


def test_the_log_of_a_job_says_where_the_rows_of_its_console_are(capsys: pytest.CaptureFixture[str]) -> None:
    query = StreamQuery(uid="files-v1", trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW))

    streaming(FakeSpark(FakeQuery(True)), query, Sink(format="noop")).run()
    assert not capsys.readouterr().err
    streaming(FakeSpark(FakeQuery(True)), query, Sink(format="console")).run()
    assert capsys.readouterr().err.count(NOTE) == 1
    predecessor = FakeSpark(FakeQuery(concurrent()), FakeQuery(False, concurrent()), FakeQuery(True))
    streaming(predecessor, query, Sink(format="console")).run()
    assert capsys.readouterr().err.count(NOTE) == 1, "once, however often it is started while another query ends"
    note_console(EngineKind.DEDICATED)
    assert not capsys.readouterr().err
