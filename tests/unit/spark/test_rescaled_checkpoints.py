"""The exchange of a checkpoint with its repartitioned copy: whatever dies in between, nothing is lost or half done."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from flintlock.model.ids import TriggerId
from flintlock.model.streaming.checkpoints import StateRescale
from flintlock.spark.region.streaming import rescaling
from flintlock.spark.region.streaming.rescaling import (
    CheckpointInUse,
    RescaledCheckpoint,
    RescaleFailed,
    is_repartition,
)
from flintlock.spark.region.streaming.sink_log import add_to_sink_log, remove_from_sink_log

WANTED = StateRescale(trigger_id=TriggerId("1" * 32), partitions=3)


class Died(BaseException):
    """The process ends here."""


def commit_batch(checkpoint: Path, number: int, partitions: int, offset: int) -> None:
    """Write a committed batch as Spark does."""
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
    (checkpoint / "offsets" / str(number)).write_text(f"v1\n{conf}\n{offset}")
    (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    for partition in range(partitions):
        place = checkpoint / "state" / "0" / str(partition)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number + 1}.zip").write_text("state")


def repartition(checkpoint: str, partitions: int) -> None:
    """Do what Spark does: one more batch that ends where the last one has ended."""
    commit_batch(Path(checkpoint), 5, partitions, offset=50)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    checkpoint = tmp_path / "files-v1"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"x"}')
    commit_batch(checkpoint, 3, 4, offset=40)
    commit_batch(checkpoint, 4, 4, offset=50)
    return checkpoint


def hidden(place: Path) -> list[str]:
    return sorted(path.name for path in place.parent.glob(".*"))


def test_the_copy_takes_the_place_and_the_former_one_stays_until_the_next_batch(place: Path) -> None:
    files = RescaledCheckpoint(place)
    files.rescale(WANTED, repartition)

    assert files.partitions == 3
    assert {path.name for path in (place / "state" / "0").iterdir()} == {"0", "1", "2"}, "as many as wanted"
    assert hidden(place) == [".files-v1.replaced", ".files-v1.rescale.json"]
    files.recover()
    assert files.may_revert
    commit_batch(place, 6, 3, offset=60)
    files.recover()
    assert not files.may_revert
    assert hidden(place) == []


def test_a_repartition_that_fails_leaves_the_checkpoint_and_is_not_tried_again(place: Path) -> None:
    """Spark may have written into the copy before it failed."""

    def fail(checkpoint: str, partitions: int) -> None:
        (Path(checkpoint) / "offsets" / "5").write_text(str(partitions))
        raise RescaleFailed("HDFS-backed state stores cannot be repartitioned")

    before = sorted(str(path) for path in place.rglob("*"))
    files = RescaledCheckpoint(place)
    with pytest.raises(RescaleFailed):
        files.rescale(WANTED, fail)

    assert sorted(str(path) for path in place.rglob("*")) == before
    assert files.given_up(WANTED) == "HDFS-backed state stores cannot be repartitioned"
    assert files.given_up(StateRescale(trigger_id=TriggerId("2" * 32), partitions=3)) == ""
    assert hidden(place) == [".files-v1.rescale.json"]


def test_a_copy_that_is_not_what_was_wanted_is_not_taken(place: Path) -> None:
    files = RescaledCheckpoint(place)
    with pytest.raises(RescaleFailed, match="a state of 2 partitions where 3 were wanted"):
        files.rescale(WANTED, lambda checkpoint, _: repartition(checkpoint, 2))

    assert files.partitions == 4


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_in_which_another_query_goes_on_is_not_replaced(place: Path, committed: bool, fails: bool) -> None:
    """The copy would lack the batch. That says nothing about the rescale, which is tried again."""

    def overtaken(checkpoint: str, partitions: int) -> None:
        repartition(checkpoint, partitions)
        commit_batch(place, 5, 4, offset=60)
        if not committed:
            (place / "commits" / "5").unlink()
        if fails:
            raise OSError("a file was removed meanwhile")

    files = RescaledCheckpoint(place)
    for _ in range(3):
        with pytest.raises(CheckpointInUse, match="another query has gone on from batch 4"):
            files.rescale(WANTED, overtaken)
        assert files.given_up(WANTED) == ""
        assert files.partitions == 4
        assert hidden(place) == [".files-v1.rescale.json"]
        for log in ("offsets", "commits"):
            (place / log / "5").unlink(missing_ok=True)

    files.rescale(WANTED, repartition)
    assert files.partitions == 3


def test_attempts_that_are_cancelled_while_they_repartition_do_not_count(place: Path) -> None:
    """Each leader that goes on with a rescale cancels the attempts of the one before it."""

    def cancelled(checkpoint: str, partitions: int) -> None:
        raise KeyboardInterrupt

    files = RescaledCheckpoint(place)
    for _ in range(5):
        files.recover()
        assert files.given_up(WANTED) == ""
        with pytest.raises(KeyboardInterrupt):
            files.rescale(WANTED, cancelled)
    files.recover()
    files.rescale(WANTED, repartition)

    assert files.partitions == 3


def test_attempts_that_die_while_they_repartition_are_not_followed_for_ever(place: Path) -> None:
    def die(*_: object) -> None:
        raise Died

    for expected in ("", "", "2 attempts ended while they repartitioned the state"):
        files = RescaledCheckpoint(place)
        files.recover()
        assert files.given_up(WANTED) == expected
        if not expected:
            with pytest.raises(Died):
                files.rescale(WANTED, die)
    assert RescaledCheckpoint(place).partitions == 4
    assert hidden(place) == [".files-v1.rescale.json"]


def die_at_rename(monkeypatch: pytest.MonkeyPatch, number: int, *, done: bool, work: Callable[[], None]) -> None:
    """Do something, up to a rename: before it, or after it is done."""
    rename: Callable[[Path, Path], Path] = Path.rename
    left = number

    def dying(source: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left == 0 and not done:
            raise Died
        renamed = rename(source, target)
        if left == 0:
            raise Died
        return renamed

    with monkeypatch.context() as patch, suppress(Died):
        patch.setattr(Path, "rename", dying)
        work()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("done", [False, True])
def test_after_a_death_at_any_rename_the_next_attempt_has_one_whole_checkpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, done: bool
) -> None:
    """The former one, or the new one with its batch; never none: a query without a checkpoint would start over."""
    before = RescaledCheckpoint(place)
    die_at_rename(monkeypatch, number, done=done, work=lambda: before.rescale(WANTED, repartition))

    files = RescaledCheckpoint(place)
    files.recover()

    decided = number > 1 or done
    assert (place / "metadata").exists()
    assert files.partitions == (3 if decided else 4)
    assert (place / "commits" / "5").exists() == decided
    assert files.may_revert == decided


def test_a_rescale_that_is_decided_is_completed_and_not_given_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the query would go on with the former checkpoint, and a later attempt would go back to the copy."""

    def fail(directory: Path) -> None:
        raise OSError(f"{directory} cannot be synced")

    with monkeypatch.context() as patch:
        patch.setattr(rescaling, "sync_directory", fail)
        with pytest.raises(OSError, match="cannot be synced"):
            RescaledCheckpoint(place).rescale(WANTED, repartition)

    files = RescaledCheckpoint(place)
    assert files.given_up(WANTED) == ""
    files.recover()
    assert files.partitions == 3
    assert hidden(place) == [".files-v1.replaced", ".files-v1.rescale.json"]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("done", [False, True])
def test_after_a_death_while_the_former_checkpoint_is_put_back_there_is_one_whole_checkpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, done: bool
) -> None:
    before = RescaledCheckpoint(place)
    before.rescale(WANTED, repartition)
    die_at_rename(monkeypatch, number, done=done, work=before.revert)

    files = RescaledCheckpoint(place)
    files.recover()

    assert (place / "metadata").exists()
    assert files.partitions == (4 if number > 1 or done else 3)


def test_a_query_that_has_planned_a_batch_on_the_new_state_does_not_go_back(place: Path) -> None:
    files = RescaledCheckpoint(place)
    files.rescale(WANTED, repartition)
    commit_batch(place, 6, 3, offset=60)
    (place / "commits" / "6").unlink()

    assert not files.may_revert


def test_a_batch_without_rows_is_no_repartition(place: Path) -> None:
    commit_batch(place, 5, 4, offset=50)

    assert not is_repartition(place, 5)
    assert not is_repartition(place, 99)


def test_an_entry_of_the_sinks_log_that_has_all_others_has_them(tmp_path: Path) -> None:
    """Every so many entries Spark expects one that has all before it."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "9.compact").write_text("v1\na\nb")
    for number in range(10, 19):
        (log / str(number)).write_text(f"v1\n{number}" if number != 12 else "v1")

    add_to_sink_log(log, 19, 10)
    add_to_sink_log(log, 20, 10)

    expected = ["v1", "a", "b", *(str(number) for number in range(10, 19) if number != 12)]
    assert (log / "19.compact").read_text().splitlines() == expected
    assert (log / "20").read_text() == "v1"
    assert sorted(path.name for path in log.glob(".*")) == []


@pytest.mark.parametrize(("batch", "name"), [(3, "3"), (9, "9.compact")])
def test_a_former_checksum_does_not_stay_beside_an_entry_of_the_sinks_log(
    tmp_path: Path, batch: int, name: str
) -> None:
    """Hadoop would compare the entry with it."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for number in range(batch):
        (log / str(number)).write_text("v1")
    checksum = log / f".{name}.crc"
    checksum.write_text("of another entry")

    add_to_sink_log(log, batch, 10)
    assert (log / name).exists()
    assert not checksum.exists()

    checksum.write_text("of this entry")
    remove_from_sink_log(log, batch)
    assert sorted(path.name for path in log.iterdir()) == sorted(map(str, range(batch)))
