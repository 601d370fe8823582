"""Has Spark compare a restored state with the steps that are to use it, before their query is started.

Spark compares the two while it runs a batch. Where the sources are quiet there is none for hours, and when there is one
it is planned already. So the first attempt after a restore runs a batch in a copy of the checkpoint; if it dies
meanwhile, the next one does:

    <uid>/                     the checkpoint of the query, which is only read
    .<uid>.compared-<random>/  links to the files of its last batch, and one more batch; removed afterwards
    .<uid>.compared            made when the two fit: no later attempt compares them. Where the steps are those that the
                               state was saved with, the restore makes it (`savepoints.restoring`)

The additional batch ends where the last one has ended: it reads no rows, and its output is discarded. Spark loads every
partition of the state for it, so a state that cannot be read is found here, too.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from flintlock.config.configuration import Configuration
from flintlock.model.streaming.savepoints import files_of_batch
from flintlock.model.tasks import DeployTask, FailureKind
from flintlock.savepoints.checkpoints import (
    commit_entry,
    committed_batch,
    compared_marker,
    files_below,
    state_partitions,
)
from flintlock.savepoints.restoring import is_restored
from flintlock.savepoints.writing import link_or_copy
from flintlock.spark.region.errors.failures import Interrupted, TaskError
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.errors.state_changes import state_change
from flintlock.spark.region.streaming.state_schemas import adopt_schemas

#: How Spark says that steps need a state, and the checkpoint has none.
_MISSING: Final = "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"
#: Spark counts sources where a step that several steps read is one, or several, by the shape of its plan.
_OTHER_SOURCES: Final = re.compile(r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]")
_AS_SAVED: Final = (
    "The number of streaming sources of a query cannot change: no restart helps. Have it read the sources that it was"
    " saved with, or give the sink another uid, which begins without a past"
)
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_OTHER_PARTITIONS: Final = (
    "[flintlock: the state of {uid} keeps the partitions with which it was saved, {saved}; the job asks for {asked},"
    " which `flintlock rescale JOB -p {asked}` gives it]\n"
)
_WITHOUT_STATE: Final = (
    "{}: the query was saved without a state, and its steps need one now: no restart helps. Undo the change of its"
    " grouping, its aggregations or its state, or give the sink another uid, which begins without a past"
)


def compare_state(checkpoint: Path, start: Callable[[str], Any], poll_s: float) -> None:
    """Raise what Spark raises if the state in a restored checkpoint does not fit; also Interrupted.

    Done once after a restore, by the first attempt that comes to the end of it. `start` starts the query for one batch,
    in the checkpoint that it is given. What else goes wrong is left to the query, which is restarted if it fails.
    """
    batch, compared = committed_batch(checkpoint), compared_marker(checkpoint)
    if batch is None or not is_restored(checkpoint.parent) or compared.exists():
        return
    copy = checkpoint.with_name(f".{checkpoint.name}.compared-{uuid.uuid4().hex[:12]}")
    try:
        _copy(checkpoint, copy, batch)
        _run(start(str(copy)), poll_s)
        compared.touch()
    except Exception as error:
        message = SparkError(error).message
        if state_change(message) is not None:
            raise
        if _MISSING in message and not (checkpoint / "state").exists():
            raise TaskError(FailureKind.ANALYSIS, _WITHOUT_STATE.format(checkpoint.name)) from error
        sources = _OTHER_SOURCES.search(message)
        if sources is not None:
            raise TaskError(FailureKind.ANALYSIS, f"{checkpoint.name}: {sources[0]}. {_AS_SAVED}") from error
    finally:
        for left in checkpoint.parent.glob(f".{checkpoint.name}.compared-*"):  # also by an attempt that has died
            shutil.rmtree(left, ignore_errors=True)


def note_partitions(task: DeployTask, uid: str, checkpoint: Path) -> None:
    """Say in the output of a task that its restored state has other partitions than its job asks for, if it has."""
    graph, batch = task.graph, committed_batch(checkpoint)
    asked = Configuration(graph.config).spark().get(_PARTITIONS) or str(graph.parallelism or "")
    if batch is None or not asked.isdecimal() or not (checkpoint / "state").exists():
        return
    saved = state_partitions((checkpoint / "offsets" / str(batch)).read_text())
    if saved and saved != int(asked):
        sys.stderr.write(_OTHER_PARTITIONS.format(uid=uid, saved=saved, asked=asked))
        sys.stderr.flush()


def _copy(checkpoint: Path, copy: Path, batch: int) -> None:
    """Link the files of a batch, as those of another query, and plan one more that has no rows."""
    for name in files_of_batch(files_below(checkpoint), batch, partial(commit_entry, checkpoint)):
        if name != "metadata":
            link_or_copy(checkpoint / name, copy / name)
    (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    (copy / "offsets" / str(batch + 1)).write_text((copy / "offsets" / str(batch)).read_text())
    adopt_schemas(copy)


def _run(query: Any, poll_s: float) -> None:
    try:
        while not query.awaitTermination(poll_s):
            pass
    except Interrupted:
        with suppress(Exception):  # it ends with its session
            query.stop()
        raise
    error = query.exception()
    if error is not None:
        raise error
