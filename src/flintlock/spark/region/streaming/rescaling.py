"""Gives the state of a query another number of partitions, before an attempt starts the query.

    <uid>/                     the checkpoint of the query, whose last batch is committed
    .<uid>.rescaling-<random>/ links to the files of that batch; Spark repartitions this copy, as one more batch
    .<uid>.rescaled/           the rename: from here on the outcome is decided, and every attempt completes it
    .<uid>.replaced/           the former checkpoint, until the query has committed a batch of its own
    .<uid>.rescale.json        which rescale was tried how often, and why it was given up

Only the attempt that is about to start the query touches these, and its predecessor has ended. If the checkpoint has
another batch just before the first rename, the predecessor has not: the copy is removed, and the attempt waits. So
whatever an attempt leaves when it dies, the next one completes or removes (`recover`): before the first rename nothing
has happened, after it the exchange of the two directories is completed. A query that fails on the new state before it
has planned a batch gets its former checkpoint back (`revert`).

The batch that Spark adds reads and writes nothing. A file sink has to have it in its log all the same: Spark fails
where an entry is missing. The entry is added after the exchange only: before it, the former checkpoint would have that
batch still to do, and the sink would skip its rows.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.model.streaming.checkpoints import StateRescale, latest_batch
from flintlock.model.streaming.savepoints import files_of_batch
from flintlock.savepoints.checkpoints import commit_entry, committed_batch, files_below, offsets_of, state_partitions
from flintlock.savepoints.writing import link_or_copy, sync_directories, sync_directory

#: How many attempts may die while they rescale before that is given up.
_TRIES: Final = 2


class RescaleFailed(Exception):
    """A state could not be repartitioned; the query goes on as it was."""


class CheckpointInUse(Exception):
    """Another query has planned or committed a batch in the checkpoint meanwhile; nothing was changed."""


class _Tried(Struct, frozen=True, kw_only=True):
    """How a rescale went so far."""

    trigger_id: str
    tries: int = 0
    failure: str = ""


class RescaledCheckpoint:
    """The checkpoint of one query, on a file system that this process reaches as directories."""

    def __init__(self, checkpoint: Path) -> None:
        self._place: Final = checkpoint
        self._done: Final = checkpoint.with_name(f".{checkpoint.name}.rescaled")
        self._former: Final = checkpoint.with_name(f".{checkpoint.name}.replaced")
        self._record: Final = checkpoint.with_name(f".{checkpoint.name}.rescale.json")

    @property
    def partitions(self) -> int:
        """The number of partitions of the state as of the last batch; 0: there is no state."""
        planned = latest_batch(path.name for path in (self._place / "offsets").glob("*"))
        if planned is None or not (self._place / "state").exists():
            return 0
        return state_partitions((self._place / "offsets" / str(planned)).read_text())

    @property
    def may_revert(self) -> bool:
        """Whether the former checkpoint is there, and the query has planned no batch on the new one."""
        batch = latest_batch(path.name for path in (self._place / "offsets").glob("*"))
        return self._former.exists() and batch is not None and is_repartition(self._place, batch)

    def recover(self) -> None:
        """Complete what an earlier attempt had decided, and remove what it had not. Raises OSError."""
        for left in self._place.parent.glob(f".{self._place.name}.rescaling-*"):
            shutil.rmtree(left, ignore_errors=True)
        if self._done.exists():
            self._exchange()
        elif not self._place.exists() and self._former.exists():  # it died in `revert`
            self._former.rename(self._place)
            sync_directory(self._place.parent)
        batch = committed_batch(self._place)
        if self._former.exists() and batch is not None and not is_repartition(self._place, batch):
            self.forget_former()

    def given_up(self, wanted: StateRescale) -> str:
        """Return why this rescale is not tried again; "" if it is to be tried."""
        tried = self._tried(wanted)
        if tried.failure or tried.tries < _TRIES:
            return tried.failure
        return f"{tried.tries} attempts ended while they repartitioned the state"

    def give_up(self, wanted: StateRescale, failure: str) -> None:
        """Record that this rescale is not to be tried again."""
        self._note(_Tried(trigger_id=wanted.trigger_id, tries=_TRIES, failure=failure))

    def rescale(self, wanted: StateRescale, repartition: Callable[[str, int], None]) -> None:
        """Repartition a copy and put it in the place of the checkpoint, whose last batch is committed.

        Raises RescaleFailed: the checkpoint is as it was. Raises CheckpointInUse: so it is, and this does not count as
        a try. From the rename on this is decided: an OSError then ends the attempt, and the next one completes it.
        """
        tried = self._tried(wanted)
        self._note(_Tried(trigger_id=wanted.trigger_id, tries=tried.tries + 1))
        copy = self._place.with_name(f".{self._place.name}.rescaling-{uuid.uuid4().hex[:12]}")
        batch, failure = committed_batch(self._place), None
        try:
            self._copy(copy, batch)
            repartition(str(copy), wanted.partitions)
            self._check(copy, wanted.partitions)
            sync_directories(copy)
        except (RescaleFailed, OSError) as error:
            failure = error
        except KeyboardInterrupt:  # the attempt is cancelled, by a leader that begins again: no death
            self._note(tried)
            raise
        if not self._ends_with(batch):
            shutil.rmtree(copy, ignore_errors=True)
            self._note(tried)
            raise CheckpointInUse(f"another query has gone on from batch {batch} in {self._place}") from failure
        if failure is not None:
            shutil.rmtree(copy, ignore_errors=True)
            self.give_up(wanted, str(failure))
            raise RescaleFailed(str(failure)) from failure
        copy.rename(self._done)
        sync_directory(self._place.parent)
        self._exchange()

    def revert(self) -> None:
        """Put the former checkpoint back: the query failed on the new one before it planned a batch. Raises OSError."""
        self._place.rename(self._place.with_name(f".{self._place.name}.rescaling-{uuid.uuid4().hex[:12]}"))
        self._former.rename(self._place)
        sync_directory(self._place.parent)

    def forget_former(self) -> None:
        """Remove the former checkpoint: the query goes on with the new one."""
        shutil.rmtree(self._former, ignore_errors=True)
        self._record.unlink(missing_ok=True)

    def _exchange(self) -> None:
        """Put the repartitioned copy into its place. Repeating it after any step completes it."""
        if self._place.exists():
            shutil.rmtree(self._former, ignore_errors=True)
            self._place.rename(self._former)
        self._done.rename(self._place)
        sync_directory(self._place.parent)

    def _copy(self, copy: Path, batch: int | None) -> None:
        if batch is None:
            raise RescaleFailed("the query has committed no batch")
        for name in files_of_batch(files_below(self._place), batch, partial(commit_entry, self._place)):
            link_or_copy(self._place / name, copy / name)

    def _ends_with(self, batch: int | None) -> bool:
        """Return whether a batch is the last one that was planned and committed in the checkpoint."""
        logs = (self._place / "offsets", self._place / "commits")
        return all(latest_batch(path.name for path in log.glob("*")) == batch for log in logs)

    def _check(self, copy: Path, partitions: int) -> None:
        """Compare the copy with what was wanted, and remove the partitions that it no longer has."""
        batch = committed_batch(copy)
        found = 0 if batch is None else state_partitions((copy / "offsets" / str(batch)).read_text())
        if batch is None or found != partitions or not is_repartition(copy, batch):
            raise RescaleFailed(f"Spark has left a state of {found} partitions where {partitions} were wanted")
        for directory in (copy / "state").glob("[0-9]*/[0-9]*"):
            if directory.name.isdecimal() and int(directory.name) >= partitions:
                shutil.rmtree(directory)

    def _tried(self, wanted: StateRescale) -> _Tried:
        with suppress(OSError, msgspec.DecodeError):
            tried = msgspec.json.decode(self._record.read_bytes(), type=_Tried)
            if tried.trigger_id == wanted.trigger_id:
                return tried
        return _Tried(trigger_id=wanted.trigger_id)

    def _note(self, tried: _Tried) -> None:
        new = self._record.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(tried))
        new.replace(self._record)


def is_repartition(checkpoint: Path, batch: int) -> bool:
    """Return whether a batch of a checkpoint only repartitions its state: it ends where the one before it has ended."""
    try:
        this = (checkpoint / "offsets" / str(batch)).read_text()
        before = (checkpoint / "offsets" / str(batch - 1)).read_text()
    except OSError:
        return False
    return offsets_of(this) == offsets_of(before) and state_partitions(this) != state_partitions(before)
