"""A savepoint is complete or not there, whatever happens while it is made, and the checkpoint stays as it was."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest
from tests.unit.savepoints.checkpoint_samples import SST, UID, CheckpointSample, streaming_job
from tests.unit.savepoints.interruptions import Died, dying_at, observing

from flintlock.model.errors import Conflict, Unavailable
from flintlock.model.jobgraph import JobGraph
from flintlock.model.streaming.savepoints import MANIFEST, FileGone, SavepointManifest, damage, decode_manifest
from flintlock.savepoints.writing import write_savepoint

NAME = "savepoint-abc-1"


def content(directory: Path) -> dict[str, tuple[int, str]]:
    """Return size and hash of each file below a directory, but for the manifest."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def read(place: Path) -> SavepointManifest:
    """Return the manifest of a savepoint that is complete."""
    manifest = decode_manifest((place / MANIFEST).read_bytes())
    assert damage(manifest, content(place)) == ()
    return manifest


class Place:
    """A job with its checkpoints, and a directory for savepoints."""

    def __init__(self, root: Path, *uids: str) -> None:
        self.job = streaming_job(*uids, out=root / "out")
        self.checkpoints = root / "checkpoints"
        self.savepoints = root / "savepoints"
        self.samples = [CheckpointSample(self.checkpoints / uid) for uid in uids or (UID,)]
        self.tries = 0

    def save(self, job: JobGraph | None = None) -> Path:
        self.tries += 1
        return write_savepoint(
            job or self.job,
            checkpoints=self.checkpoints,
            parent=self.savepoints,
            name=NAME,
            spark="4.3.0",
            now_ms=7,
            unique=str(self.tries),
        )

    def names(self) -> list[str]:
        return sorted(path.name for path in self.savepoints.iterdir()) if self.savepoints.exists() else []


def test_a_savepoint_has_the_files_of_the_last_committed_batch_and_no_others(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit(4)
    (tmp_path / "out" / "0" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out" / "0" / "_spark_metadata" / "3").touch()

    manifest = read(place.save())

    (query,) = manifest.queries
    assert (query.uid, query.step, query.batch, query.sink_batch, query.partitions) == (UID, "s0", 3, 3, 1)
    assert query.offsets == ('{"logOffset": 3}',)
    assert query.query_id.startswith("1111")
    assert (manifest.job_id, manifest.job_name, manifest.created_ms, manifest.spark) == (
        place.job.job_id,
        place.job.name,
        7,
        "4.3.0",
    )
    names = {file.path.removeprefix(f"queries/{UID}/") for file in manifest.files}
    sources = {f"sources/0/{batch}" for batch in range(4)}
    logs = {f"{log}/{batch}" for log in ("offsets", "commits") for batch in (2, 3)}
    assert names == {"metadata", "state/0/_metadata/schema", "state/0/0/4.zip"} | sources | logs


def test_files_are_linked_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit()
    saved = place.save() / "queries" / UID / "commits" / "0"

    assert saved.samefile(place.checkpoints / UID / "commits" / "0")
    place.samples[0].purge(1)
    read(saved.parents[3])


def test_whoever_dies_at_any_operation_leaves_no_half_savepoint_and_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    """The next try completes it, under the same name, and removes what was left."""
    for number in range(1, 1000):
        place = Place(tmp_path / str(number))
        place.samples[0].commit()
        before = content(place.checkpoints)
        died = False
        try:
            with dying_at(tmp_path / str(number), number):
                place.save()
        except Died:
            died = True
        if NAME in place.names():
            read(place.savepoints / NAME)
        read(place.save())
        assert place.names() == [NAME]
        assert content(place.checkpoints) == before
        if not died:
            assert number > 20, "it was interrupted at each of its operations"
            return
    raise AssertionError("it never came to its end")


def test_a_savepoint_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit()
    first = read(place.save())
    place.samples[0].commit()

    assert read(place.save()) == first


def test_of_two_that_make_the_same_savepoint_the_second_finds_that_of_the_first(tmp_path: Path) -> None:
    """A leader that was replaced and does not know it goes on beside its successor."""
    place = Place(tmp_path)
    place.samples[0].commit()
    overtaken: list[str] = []

    def overtake(event: str, path: str) -> None:
        if event == "os.rename" and not overtaken:
            overtaken.append(path)
            place.save()
            place.samples[0].commit()

    with observing(tmp_path, overtake):
        manifest = read(place.save())

    assert overtaken
    assert manifest.queries[0].batch == 0
    assert place.names() == [NAME]


def test_a_later_batch_is_saved_if_a_file_disappears_meanwhile(tmp_path: Path) -> None:
    """Spark purges old batches while the savepoint is made."""
    place = Place(tmp_path)
    place.samples[0].commit()
    purged: list[str] = []

    def purge(event: str, path: str) -> None:
        if event == "os.link" and path.endswith("commits/0") and not purged:
            purged.append(path)
            place.samples[0].commit(2)
            place.samples[0].purge(1)

    with observing(tmp_path, purge):
        manifest = read(place.save())

    assert purged
    assert manifest.queries[0].batch == 2


def test_a_later_batch_is_saved_if_a_snapshot_names_a_file_that_is_gone(tmp_path: Path) -> None:
    """It was removed before the files were listed: nothing else would notice that the state cannot be read."""
    place = Place(tmp_path)
    (sample,) = place.samples
    sample.commit(3)
    sample.snapshot("state/0/0/3.zip", "3-gone.sst")
    commits: list[str] = []

    def observe(event: str, path: str) -> None:
        if event == "os.link" and path.endswith("commits/2") and not commits:
            commits.append(path)
            sample.commit()

    with observing(sample.directory, observe):
        (query,) = read(place.save()).queries

    assert query.batch == 3


@pytest.mark.parametrize("broken", ["names a file", "is no archive"])
def test_a_state_that_cannot_be_read_is_a_savepoint_that_is_not_made(tmp_path: Path, broken: str) -> None:
    place = Place(tmp_path)
    (sample,) = place.samples
    sample.commit(3)
    if broken == "names a file":
        (sample.directory / "state/0/0/SSTs").mkdir()
        (sample.directory / "state/0/0/SSTs/3-a.sst").write_bytes(SST)
        sample.snapshot("state/0/0/3.zip", "3-a.sst", "2-gone.sst")
    else:
        (sample.directory / "state/0/0/3.zip").write_text("cut off")
    reason = "SSTs/2-gone.sst, which state/0/0/3.zip names" if broken == "names a file" else "3.zip cannot be read"
    with pytest.raises(Unavailable, match=reason):
        place.save()
    assert place.names() == []


def stateful(place: Place) -> CheckpointSample:
    """Return a checkpoint whose latest snapshot names an SST file, with checksums of both."""
    (sample,) = place.samples
    sample.commit(3)
    (sample.directory / "state/0/0/SSTs").mkdir()
    (sample.directory / "state/0/0/SSTs/3-a.sst").write_bytes(SST)
    sample.snapshot("state/0/0/3.zip", "3-a.sst")
    for name in ("state/0/0/3.zip", "state/0/0/SSTs/3-a.sst", "offsets/2", "commits/2"):
        sample.checksum(name)
    return sample


@pytest.mark.parametrize("checksums", [True, False])
def test_a_state_that_is_cut_off_is_not_saved_but_reported(tmp_path: Path, *, checksums: bool) -> None:
    """It would be hashed as it is, and be noticed when the job is restored: the checkpoint may be gone by then."""
    place = Place(tmp_path)
    sample = stateful(place)
    (sample.directory / "state/0/0/SSTs/3-a.sst").write_bytes(SST[: 1000 if not checksums else 500])
    if not checksums:
        (sample.directory / "state/0/0/SSTs/.3-a.sst.crc").unlink()
        reason = r"SSTs/3-a\.sst has 1,000 of the 1,200 bytes that state/0/0/3\.zip names"
    else:
        reason = r"SSTs/3-a\.sst has 500 bytes, and was written with 3 times 512 or less"
    with pytest.raises(Unavailable, match=f"{UID} is damaged, nothing can be restored from it: .*{reason}") as raised:
        place.save()
    assert place.names() == []
    assert isinstance(raised.value.__cause__, FileGone), "it does not pass by itself"


@pytest.mark.parametrize("name", ["offsets/2", "state/0/0/3.zip"])
def test_a_file_whose_checksums_differ_is_not_saved(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path)
    damaged = stateful(place).directory / name
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(Unavailable, match=f"{name} has another content than was written: its checksums differ"):
        place.save()


def test_what_is_as_spark_has_written_it_is_saved(tmp_path: Path) -> None:
    """And a file of checksums that is none is ignored, as by Hadoop."""
    place = Place(tmp_path)
    sample = stateful(place)
    (sample.directory / "offsets/.1.crc").write_bytes(b"none")
    (sample.directory / "commits/.1.crc").write_bytes(b"crc\0")

    assert read(place.save()).queries[0].batch == 2


@pytest.mark.parametrize("broken", [(), ("2d61b9ac-7a71",), ("0c61b9ac-7a71", "2d61b9ac-7a71")])
def test_of_several_snapshots_of_a_version_one_is_to_be_complete(tmp_path: Path, broken: tuple[str, ...]) -> None:
    """Which one counts is not known where the commit does not say it; what abandoned ones name may be removed."""
    place = Place(tmp_path)
    (sample,) = place.samples
    sample.commit(3)
    (sample.directory / "state/0/0/3.zip").unlink()
    for number in ("0c61b9ac-7a71", "2d61b9ac-7a71"):
        sample.snapshot(f"state/0/0/3_{number}.zip", *(["2-gone.sst"] if number in broken else []))
    if len(broken) == 2:
        with pytest.raises(Unavailable, match=r"2-gone.sst, which state/0/0/3_0c61b9ac-7a71\.zip names"):
            place.save()
    else:
        assert read(place.save()).queries[0].batch == 2


def test_what_disappears_says_that_it_does_not_come_back(tmp_path: Path) -> None:
    """The job may have ended: nobody commits a later batch then."""
    place = Place(tmp_path)
    place.samples[0].commit(2)
    (place.checkpoints / UID / "metadata").unlink()
    with pytest.raises(Unavailable) as raised:
        place.save()
    assert isinstance(raised.value.__cause__, FileGone)


def test_a_checkpoint_that_cannot_be_saved_is_a_failure_and_leaves_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit(2)
    (place.checkpoints / UID / "state/0/0/2.zip").unlink()

    with pytest.raises(Unavailable, match="disappear faster than they can be saved"):
        place.save()
    assert place.names() == []


def test_each_query_is_saved_after_its_own_batch_and_one_without_a_batch_is_left_out(tmp_path: Path) -> None:
    """A query that has committed nothing begins anew when the job is restored."""
    place = Place(tmp_path, "a-v1", "b-v1", "c-v1")
    place.samples[0].commit(3)
    place.samples[1].commit(1)

    manifest = read(place.save())

    assert [(query.uid, query.batch) for query in manifest.queries] == [("a-v1", 2), ("b-v1", 0)]
    assert manifest.cuts == 2, "there is no point in time that both have in common, and the manifest says so"


def test_a_source_that_removes_what_it_has_read_is_recorded(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit()

    manifest = read(place.save(streaming_job(out=tmp_path, options={"cleansource": "delete"})))

    assert manifest.queries[0].clean_source


def test_what_is_not_the_savepoint_of_this_job_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit()
    (place.savepoints / NAME).mkdir(parents=True)

    with pytest.raises(Conflict, match="is no savepoint of this job"):
        place.save()
    assert place.names() == [NAME]


def test_a_savepoint_that_is_there_and_cannot_be_read_now_is_not_taken_for_something_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit(2)
    made = place.save()

    def stale(event: str, path: str) -> None:
        if event == "open" and path.endswith(MANIFEST):
            raise OSError(errno.ESTALE, "Stale file handle", path)

    with observing(made, stale), pytest.raises(Unavailable, match="Stale file handle"):
        place.save()
    assert place.save() == made


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.samples[0].commit()
    place.savepoints.write_text("a file")

    with pytest.raises(Unavailable, match=f"{place.savepoints / NAME} could not be made: Not a directory"):
        place.save()
