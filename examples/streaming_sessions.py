"""Sessions of users, with state of one's own: `transformWithState` and timers in event time.

    python examples/streaming_clicks.py in/clicks
    flintlock run examples/streaming_sessions.py:job

A session ends when its user has not clicked for 90 seconds. Its start, end and clicks are a value in the state store
(RocksDB), which is restored after a failure; a timer writes the session when the watermark has passed its end.
"""

from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import flintlock as fl

GAP_MS = 90_000

job = fl.Job(
    "sessions",
    parallelism=1,
    params={"clicks": "in/clicks", "out": "out/sessions"},
    config={"spark.sql.shuffle.partitions": 2},  # each has a state store of its own: few keys need few
)

clicks = job.source(
    "clicks",
    format="json",
    path="${clicks}",
    schema="ts TIMESTAMP, user STRING, page STRING",
    options={"maxFilesPerTrigger": 10},
    stream=True,
    watermark=("ts", "1 minute"),
)


class Sessions(StatefulProcessor):
    """One session of a user at a time: (start, end, clicks), times in milliseconds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "start LONG, end LONG, clicks LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for at in sorted(int(row.ts.timestamp() * 1000) for row in rows):
            start, end, count = self.current() or (at, at, 0)
            if at - end > GAP_MS:
                yield self.ended(key, start, end, count)
                start, end, count = at, at, 0
            if count > 0:
                self.handle.deleteTimer(end + GAP_MS)
            end = max(at, end)
            self.session.update((start, end, count + 1))
            self.handle.registerTimer(end + GAP_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        session = self.current()
        self.session.clear()
        if session is not None:
            yield self.ended(key, *session)

    def current(self) -> tuple[int, int, int] | None:
        return cast("Any", self.session).get() if self.session.exists() else None

    def ended(self, key: Any, start: int, end: int, count: int) -> Row:
        self.handle.deleteTimer(end + GAP_MS)
        return Row(user=key[0], start_ms=start, end_ms=end, clicks=count)

    def close(self) -> None:
        pass


@job.step(inputs=[clicks])
def sessions(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").transformWithState(
        Sessions(), "user STRING, start_ms LONG, end_ms LONG, clicks LONG", outputMode="Append", timeMode="EventTime"
    )


job.sink("files", sessions, format="json", path="${out}", uid="sessions-v1", trigger={"availableNow": True})

if __name__ == "__main__":
    fl.run(job)
