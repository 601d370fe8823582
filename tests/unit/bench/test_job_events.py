"""Streams of events are read event by event."""

from __future__ import annotations

from bench.job_events import events_in


def test_events_are_read_with_their_name_and_data() -> None:
    stream = """\
event: job
data: {"jid":"a"}

: nothing new

event: listed
id: 7
data: {}

event: job
data: not whole"""

    assert list(events_in(iter(stream.split("\n")))) == [("job", '{"jid":"a"}'), ("listed", "{}")]
