"""Savepoints: their manifest, what counts as damage, and what can be restored."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.unit.model.graphs import JOB, graph, step

from flintlock.model.errors import Corrupt, Incompatible
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import Sink, Source
from flintlock.model.streaming.savepoints import (
    MANIFEST,
    FileGone,
    SavedQuery,
    SavepointFile,
    SavepointManifest,
    damage,
    decode_manifest,
    encode_manifest,
    files_of_batch,
    restore_problems,
)
from flintlock.model.streaming.streams import StreamQuery

HASH = hashlib.sha256(b"x").hexdigest()


def saved(uid: str = "files-v1", batch: int = 7, *, clean_source: bool = False) -> SavedQuery:
    return SavedQuery(uid=uid, step="files", batch=batch, query_id="q", sink_batch=batch, clean_source=clean_source)


def manifest(*queries: SavedQuery) -> SavepointManifest:
    given = queries or (saved(),)
    return SavepointManifest(
        job_id=JOB,
        job_name="clicks",
        created_ms=1,
        spark="4.3.0",
        queries=given,
        files=tuple(
            SavepointFile(path=f"queries/{query.uid}/{name}", size=1, sha256=HASH)
            for query in given
            for name in ("metadata", f"offsets/{query.batch}", f"commits/{query.batch}")
        ),
    )


def found(of: SavepointManifest) -> dict[str, tuple[int, str]]:
    return {file.path: (file.size, file.sha256) for file in of.files}


def job(*uids: str) -> JobGraph:
    vertices = [
        structs.replace(step(f"s{n}", Sink(format="parquet", path=f"/{n}"), "in"), query=StreamQuery(uid=uid))
        for n, uid in enumerate(uids)
    ]
    made = graph(step("in", Source(format="rate", stream=True)), *vertices)
    return structs.replace(made, job_type=JobType.STREAMING)


# --- the manifest


def test_a_manifest_reads_back_equal_and_has_one_form() -> None:
    """It is text for people, and the same for the same savepoint."""
    text = encode_manifest(manifest())

    assert decode_manifest(text) == manifest()
    assert encode_manifest(decode_manifest(text)) == text
    assert b'"format_version": 1' in text


def test_a_manifest_of_a_newer_format_is_refused_with_what_to_do() -> None:
    """Its other fields may mean something else."""
    text = encode_manifest(manifest()).replace(b'"format_version": 1', b'"format_version": 2, "unknown": 1')

    with pytest.raises(Incompatible, match="format version 2, and this version of Flintlock reads up to 1"):
        decode_manifest(text)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format_version": 1}', b'{"format_version": "x"}'])
def test_what_is_no_manifest_is_corrupt(text: bytes) -> None:
    """A file that was cut off, or is another one."""
    with pytest.raises(Corrupt, match=f"{MANIFEST} is not the manifest of a savepoint"):
        decode_manifest(text)


@given(st.integers(0, 400))
def test_a_manifest_that_was_cut_off_is_never_read(length: int) -> None:
    """A savepoint is complete or not there."""
    text = encode_manifest(manifest())

    with pytest.raises(Corrupt):
        decode_manifest(text[: min(length, len(text) - 2)])


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "queries/files-v1/../../x", "queries/other/metadata", "queries/files-v1//x", "x"]
)
def test_a_manifest_names_no_file_outside_of_its_queries(path: str) -> None:
    """Restoring copies what it names."""
    made = manifest()
    files = (*made.files, SavepointFile(path=path, size=1, sha256=HASH))

    with pytest.raises(Corrupt, match="is not the path of a file of one of its queries"):
        decode_manifest(encode_manifest(structs.replace(made, files=files)))


@pytest.mark.parametrize("character", ["\0", "\n", "\x7f"])
def test_a_manifest_with_control_characters_in_a_path_is_corrupt(character: str) -> None:
    """No file of Spark has them, and a null character makes the calls of the operating system fail in their own way."""
    made = manifest()
    files = (*made.files, SavepointFile(path=f"queries/files-v1/a{character}b", size=1, sha256=HASH))

    with pytest.raises(Corrupt, match="has control characters"):
        decode_manifest(encode_manifest(structs.replace(made, files=files)))


def test_a_manifest_without_the_metadata_of_a_query_is_corrupt() -> None:
    """Spark would begin a new query in that directory."""
    made = manifest()

    with pytest.raises(Corrupt, match="it has no file 'metadata' of 'files-v1'"):
        decode_manifest(encode_manifest(structs.replace(made, files=made.files[1:])))


# --- damage


def test_a_savepoint_as_it_was_made_is_not_damaged() -> None:
    """Wherever it was moved to: paths are relative."""
    assert damage(manifest(), found(manifest())) == ()


def test_every_difference_is_damage() -> None:
    """Missing, cut off, changed, and added files."""
    there = found(manifest())
    there["queries/files-v1/metadata"] = (0, HASH)
    there["queries/files-v1/offsets/7"] = (1, "0" * 64)
    del there["queries/files-v1/commits/7"]
    there["queries/files-v1/commits/8"] = (1, HASH)

    assert damage(manifest(), there) == (
        "queries/files-v1/metadata has 0 of 1 bytes",
        "queries/files-v1/offsets/7 has another content than was saved",
        "queries/files-v1/commits/7 is missing",
        "queries/files-v1/commits/8 does not belong to it",
    )


def test_a_report_of_damage_is_bounded() -> None:
    """A savepoint may have thousands of files."""
    many = manifest(*(saved(f"u{n}") for n in range(20)))

    assert len(damage(many, {})) == 11
    assert damage(many, {})[-1] == "and 50 more"


# --- restoring


def test_a_job_with_the_same_uids_is_restored() -> None:
    """Steps may be renamed; a query of a new uid begins anew."""
    assert restore_problems(manifest(), job("files-v1", "new-v1"), {"files-v1": 7}) == ()


def test_state_that_no_query_takes_is_an_error_unless_allowed() -> None:
    """A uid that was changed by mistake would lose the state silently."""
    (problem,) = restore_problems(manifest(), job("files-v2"), {})

    assert "no query of the job takes the state of 'files-v1'" in problem
    assert restore_problems(manifest(), job("files-v2"), {}, allow_unclaimed=True) == ()


def test_a_file_sink_that_is_ahead_of_the_savepoint_is_refused() -> None:
    """Spark skips the batches that the sink's log has; their rows, of the new run, would be lost."""
    (problem,) = restore_problems(manifest(), job("files-v1"), {"files-v1": 9})

    assert "have batch 9, and the savepoint ends at batch 7" in problem
    assert restore_problems(manifest(), job("files-v1"), {"files-v1": None}) == (), "another path"


def test_a_source_that_removes_what_it_has_read_cannot_go_back() -> None:
    """`cleanSource`."""
    (problem,) = restore_problems(manifest(saved(clean_source=True)), job("files-v1"), {})

    assert "cleanSource" in problem


# --- the files of a batch


CHECKPOINT = frozenset(
    {
        "metadata",
        *(f"offsets/{n}" for n in range(6, 10)),
        *(f"commits/{n}" for n in range(6, 9)),
        "sources/0/0",
        "sources/0/.9.tmp",
        "state/0/_metadata/schema",
        "state/0/0/_metadata/metadata",
        "state/0/0/SSTs/000009-a.sst",
    }
)


def test_the_files_of_a_batch_are_those_that_a_restart_needs() -> None:
    """That batch and the one before it, sources, and the state after the batch; nothing later."""
    names = CHECKPOINT | {f"state/0/0/{n}.zip" for n in range(7, 11)}

    assert set(files_of_batch(names, 8)) == {
        "metadata", "offsets/8", "offsets/7", "commits/8", "commits/7", "sources/0/0", "state/0/_metadata/schema",
        "state/0/0/_metadata/metadata", "state/0/0/SSTs/000009-a.sst", "state/0/0/9.zip",
    }  # fmt: skip


@pytest.mark.parametrize(("snapshot", "change"), [("zip", "changelog"), ("snapshot", "delta")])
def test_state_may_be_a_snapshot_and_changes(snapshot: str, change: str) -> None:
    """The nearest snapshot before, and every change after it; of each partition and store."""
    names = CHECKPOINT | {f"state/0/1/left/6.{snapshot}", *(f"state/0/1/left/{n}.{change}" for n in range(5, 11))}

    state = {name for name in files_of_batch(names, 8) if name.startswith("state/0/1")}

    assert state == {f"state/0/1/left/{n}.{change}" for n in (7, 8, 9)} | {f"state/0/1/left/6.{snapshot}"}


@pytest.mark.parametrize("name", ["SSTs/000008-5c1d.sst", "000008.sst", "logs/000009-5c1d.log", "7.blob"])
def test_a_file_of_a_kind_that_is_not_known_is_saved(name: str) -> None:
    """Whatever a state store writes beside snapshots and changes: that it is missing would be noticed too late."""
    names = CHECKPOINT | {"state/0/0/9.zip", f"state/0/0/{name}"}

    assert f"state/0/0/{name}" in files_of_batch(names, 8)


def test_changes_from_the_beginning_need_no_snapshot() -> None:
    """The first versions have none."""
    names = {"metadata", "offsets/1", "commits/1", "state/0/0/1.delta", "state/0/0/2.delta"}

    assert set(files_of_batch(names, 1)) == names


@pytest.mark.parametrize("name", ["metadata", "offsets/8", "commits/8"])
def test_a_file_that_was_purged_means_a_later_batch(name: str) -> None:
    """Never a savepoint without it."""
    with pytest.raises(FileGone, match=name):
        files_of_batch(CHECKPOINT - {name}, 8)


def test_a_hole_in_the_changes_of_a_state_means_a_later_batch() -> None:
    """Spark could not load that version."""
    names = CHECKPOINT | {"state/0/0/6.zip", "state/0/0/7.changelog", "state/0/0/9.changelog"}

    with pytest.raises(FileGone, match="state of version 8"):
        files_of_batch(names, 8)


ABANDONED, COMMITTED = "0c61b9ac-7a71-4b4b-9d9e-6f5bcd2b1f2e", "1d61b9ac-7a71-4b4b-9d9e-6f5bcd2b1f2e"


def committed(batch: int) -> str:
    """The entry of batch 8 in the log of commits; of the others there is none any more."""
    return f'v2\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{{"0":[["{COMMITTED}"]]}}}}' if batch == 8 else ""


def test_the_chain_of_a_repeated_batch_is_that_of_the_state_that_its_commit_names() -> None:
    """A snapshot of the abandoned one is not the end of it: Spark loads the other one, from its changes."""
    abandoned = {f"state/0/0/9_{ABANDONED}.zip"}
    chain = {f"state/0/0/9_{COMMITTED}.changelog", "state/0/0/8_2e61b9ac-7a71.changelog", "state/0/0/7_3f61b9ac.zip"}

    found = set(files_of_batch(CHECKPOINT | abandoned | chain, 8, committed))

    assert chain <= found
    assert not abandoned & found, "it may name files that Spark has removed"
    with pytest.raises(FileGone, match="state of version 7"):
        files_of_batch(CHECKPOINT | abandoned | {name for name in chain if "/7_" not in name}, 8, committed)


def test_a_snapshot_that_the_commit_names_needs_no_changes_before_it() -> None:
    """Not even those that an abandoned one would need: they may be purged."""
    state = {f"state/0/0/9_{ABANDONED}.changelog", f"state/0/0/9_{COMMITTED}.zip"}
    assert f"state/0/0/9_{COMMITTED}.zip" in files_of_batch(CHECKPOINT | state, 8, committed)


def test_every_state_of_a_repeated_batch_is_taken_if_it_is_not_known_which_one_counts() -> None:
    """If the commit that says which one counts is not there, or names none of them."""
    repeated = {"state/0/0/9_0c61b9ac-7a71-4b4b-9d9e-6f5bcd2b1f2e.zip", "state/0/0/9_1d61b9ac-7a71.zip"}

    assert repeated <= set(files_of_batch(CHECKPOINT | repeated, 8))
