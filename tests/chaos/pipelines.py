"""Streaming jobs that must come through: files that arrive, a file sink, and a function that ignores lower batch ids.

Each file has a number and the values of two blocks, so that every value arrives twice, in two files. The file sink has
one row for each value of each file. The function gets counts, which are state: of each value first 1 and then 2, or 2
at once. A row that was lost or written twice shows, and so does state that was lost or counted twice.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Final, Self, cast

import httpx
import pyarrow.parquet
from tests.chaos.deployment import Deployment
from tests.chaos.work import ENDED, RETRIED, sink_batches, submit
from tests.cluster.processes import until

from flintlock.config.options import UPGRADE_OF

BLOCK: Final = 10  # values
#: Within which something has to happen that takes seconds on an idle machine.
LIMIT_S: Final = 300.0
_UPSERT: Final = """
import sqlite3
from contextlib import closing, suppress

DATABASE = {database!r}


def upsert(batch, batch_id):
    rows = [(row.n, row.c, batch_id) for row in batch.collect()]
    with closing(sqlite3.connect(DATABASE, timeout=60)) as database, database:
        database.execute("BEGIN IMMEDIATE")  # of two that have the same batch, the second sees that it is there
        (latest,) = database.execute("SELECT coalesce(max(batch), -1) FROM counts").fetchone()
        if batch_id > latest:
            database.executemany("INSERT INTO counts VALUES (?, ?, ?)", rows)
"""


class Pipeline:
    """One streaming job with two queries, and the files that it reads."""

    def __init__(self, deployment: Deployment, name: str, *, every_s: float = 0.2) -> None:
        self.id = ""  # set when it is acknowledged
        self.source: Final = deployment.home / "in" / name
        self.files: Final = deployment.home / "out" / name
        self.database: Final = deployment.home / "out" / f"{name}.db"
        self._deployment: Final = deployment
        self._name: Final = name
        self._every_s: Final = every_s
        self._number = 0  # of its upgrades
        self._arrived = 0  # files; written by the thread, read when it has ended
        self._stop_requested: Final = threading.Event()
        self._thread: Final = ThreadPoolExecutor(1, f"files-of-{name}")

    def __enter__(self) -> Self:
        self.source.mkdir(parents=True)
        self.database.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.database)) as database, database:
            database.execute("PRAGMA journal_mode=wal").fetchone()
            database.execute("CREATE TABLE counts (n INTEGER, c INTEGER, batch INTEGER)")
        self._done = self._thread.submit(self._arrive)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested.set()
        self._thread.shutdown()
        self._done.result()

    def submit(self) -> None:
        """Submit the job."""
        self._submit(self._name, {})

    def _submit(self, key: str, config: dict[str, str]) -> None:
        text = _UPSERT.format(database=str(self.database)).encode()
        module = f"upsert_{self._name.replace('-', '_')}"
        spec = self._spec(module)
        spec["config"] |= config
        self.id = submit(self._deployment, spec, key, {f"{module}.py": text})

    def rescale(self, partitions: int) -> str:
        """Have the state of the queries repartitioned; return the id of the operation once that is acknowledged."""
        trigger = uuid.uuid4().hex
        path = f"/jobs/{self.id}/rescaling?parallelism={partitions}&triggerId={trigger}"

        def acknowledged() -> bool:
            for url in self._deployment.urls:
                with suppress(httpx.TransportError):
                    if self._deployment.client.patch(f"{url}{path}", timeout=10).status_code == 202:
                        return True
            return False

        until("an acknowledged rescale", acknowledged, LIMIT_S)
        return trigger

    def rescaled(self, trigger: str) -> str:
        """Wait for the end of a rescale; return why it failed, "" if it did not."""

        def completed() -> dict[str, Any] | None:
            answer = self._deployment.get(f"/jobs/{self.id}/rescaling/{trigger}").json()
            return answer if answer["status"]["id"] == "COMPLETED" else None

        operation: dict[str, Any] = until("the end of the rescale", completed, LIMIT_S).get("operation") or {}
        return str(operation.get("failure-cause") or "")

    def partitions(self) -> int:
        """Return how many partitions the state of the counts has."""
        state = self._deployment.home / "checkpoints" / self.id / "upsert-v1" / "state" / "0"
        return sum(path.name.isdecimal() for path in state.glob("[0-9]*"))

    def upgrade(self) -> str:
        """Submit a job of the same graph that takes the place of this one; return the id that this one had."""
        former, self._number = self.id, self._number + 1
        self._submit(f"{self._name}-{self._number}", {UPGRADE_OF.key: former})
        return former

    def upgraded(self, former: str) -> str:
        """Wait until the former job has ended; return what is wrong with the two, "" if nothing is."""
        until("the end of the former job", lambda: (self._deployment.listing() or {}).get(former) in ENDED, LIMIT_S)
        old = self._deployment.get(f"/jobs/{former}").json()
        new = self._deployment.get(f"/jobs/{self.id}").json()
        links = old["state"], old.get("successor"), new.get("upgrade-of")
        return "" if links == ("FINISHED", self.id, former) else f"{former} and {self.id} are {links}"

    def stop_arriving(self) -> None:
        """No file arrives after this."""
        self._stop_requested.set()
        self._done.result()

    def finish(self) -> list[str]:
        """Let all that has arrived be processed, stop the job with a savepoint, and say what is wrong."""
        self.stop_arriving()
        with suppress(TimeoutError):  # what is missing is reported
            until("every row", self.complete, LIMIT_S, pause_s=1.0)
        trigger = until("an acknowledged stop", self._stopped, LIMIT_S)
        ended = until("the savepoint", lambda: self._completed(trigger), LIMIT_S)
        problems = [] if "location" in ended else [f"{self._name}: no savepoint was made: {ended}"]
        status = until("the end", self._end, LIMIT_S)
        problems += [] if status == "FINISHED" else [f"{self._name} is {status}"]
        return [*problems, *self.problems()]

    def _stopped(self) -> str | None:
        """Ask for the stop; return its id once it is acknowledged."""
        for url in self._deployment.urls:
            with suppress(httpx.TransportError):
                answer = self._deployment.client.post(f"{url}/jobs/{self.id}/stop", json={}, timeout=30)
                if answer.status_code == 202:
                    return str(answer.json()["request-id"])
        return None

    def _completed(self, trigger: str) -> dict[str, Any] | None:
        answer = self._deployment.get(f"/jobs/{self.id}/savepoints/{trigger}").json()
        return answer["operation"] if answer["status"]["id"] == "COMPLETED" else None

    def _end(self) -> str | None:
        state = (self._deployment.listing() or {}).get(self.id)
        return state if state in ENDED else None

    def batches(self) -> tuple[int, int]:
        """Return the latest batch of each sink; -1 for one that has none."""
        with closing(sqlite3.connect(self.database, timeout=60)) as database:
            (upserted,) = database.execute("SELECT coalesce(max(batch), -1) FROM counts").fetchone()
        logs = [path.name.partition(".")[0] for path in (self.files / "_spark_metadata").glob("[0-9]*")]
        return max((int(name) for name in logs if name.isdecimal()), default=-1), int(upserted)

    def committed(self) -> dict[str, set[int]]:
        """Return the committed batches of each query that its checkpoint still has."""
        queries = self._deployment.home / "checkpoints" / self.id
        return {
            uid: {int(path.name) for path in (queries / uid / "commits").glob("[0-9]*") if path.name.isdecimal()}
            for uid in ("files-v1", "upsert-v1")
        }

    def complete(self) -> bool:
        """Whether every row has come through, at least once. No file may arrive any more."""
        return not [problem for problem in self.problems() if "lack" in problem]

    def problems(self) -> list[str]:
        """Say which rows are missing, and which are there twice. No file may arrive any more."""
        expected = {(file, value) for file in range(self._arrived) for value in _values(file)}
        found = Counter(self._written())
        twice = sorted(row for row, times in found.items() if times > 1)
        problems = _listed(f"{self._name}: the files lack", expected - found.keys())
        problems += _listed(f"{self._name}: the files have twice", twice)
        problems += _listed(f"{self._name}: the files have rows that never arrived", found.keys() - expected)
        arrived = Counter(value for _, value in expected)
        counts: dict[int, list[int]] = {}
        for value, count in self._upserted():
            counts.setdefault(value, []).append(count)
        lacking = [value for value, times in arrived.items() if max(counts.get(value, [0])) < times]
        problems += _listed(f"{self._name}: the counts lack", lacking)
        wrong = [
            (value, seen)
            for value, seen in counts.items()
            if value not in lacking and (seen != sorted(set(seen)) or seen[-1] != arrived[value])
        ]
        problems += _listed(f"{self._name}: the counts of values are wrong", wrong)
        return problems

    def _arrive(self) -> None:
        while not self._stop_requested.is_set():
            rows = [json.dumps({"f": self._arrived, "n": value}) + "\n" for value in _values(self._arrived)]
            hidden = self.source / f".{self._arrived}"
            hidden.write_text("".join(rows))
            hidden.rename(self.source / f"{self._arrived}.json")
            self._arrived += 1
            self._stop_requested.wait(self._every_s)

    def _written(self) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for files in sink_batches(self.files).values():
            for file in files:
                table = cast("Any", pyarrow.parquet).read_table(file, columns=["f", "n"])
                rows += zip(table.column("f").to_pylist(), table.column("n").to_pylist(), strict=True)
        return rows

    def _upserted(self) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.database, timeout=60)) as database:
            return database.execute("SELECT n, c FROM counts ORDER BY batch, rowid").fetchall()

    def _spec(self, module: str) -> dict[str, Any]:
        source = {
            "format": "json",
            "path": str(self.source),
            "schema": "f LONG, n LONG",
            "options": {"maxFilesPerTrigger": "5"},
            "stream": True,
        }
        return {
            "name": self._name,
            "type": "STREAMING",
            "parallelism": 1,
            "config": {**RETRIED, "spark.sql.shuffle.partitions": "2"},
            "artifacts": [f"{module}.py"],
            "steps": {
                "events": {"source": source},
                "counts": {"sql": "SELECT n, count(*) AS c FROM events GROUP BY n", "inputs": ["events"]},
                "files": {
                    "sink": {"format": "parquet", "path": str(self.files)},
                    "inputs": ["events"],
                    "uid": "files-v1",
                },
                "upsert": {
                    "foreachBatch": f"{module}:upsert",
                    "inputs": ["counts"],
                    "uid": "upsert-v1",
                    "outputMode": "update",
                },
            },
        }


def _values(file: int) -> range:
    """Return the values in a file: a block of its own, and the block of the file before it."""
    return range(max(file - 1, 0) * BLOCK, (file + 1) * BLOCK)


def _listed(what: str, rows: Any) -> list[str]:
    """Say it with the first rows that it concerns, if there are any."""
    some = sorted(rows)
    return [f"{what}: {len(some)}, such as {some[:5]}"] if some else []
