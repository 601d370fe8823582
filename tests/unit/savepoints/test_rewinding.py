"""A file sink is taken back to a savepoint: the later files are moved, all of them, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.unit.savepoints.interruptions import Died, dying_at

from flintlock.model.errors import Invalid
from flintlock.savepoints.rewinding import Rewind, files_up_to, planned_rewind, rewind_sink

JOB = "a" * 32


def entry(sink: Path, *files: str) -> str:
    return "\n".join(["v1", *(json.dumps({"path": (sink / name).as_uri(), "action": "add"}) for name in files)])


def write(sink: Path, batches: int, *, compact: int = 10) -> None:
    """Write batches as Spark does, each with a file in a partition whose name has to be escaped."""
    (sink / "_spark_metadata").mkdir(parents=True)
    every: list[str] = []
    for batch in range(batches):
        name = f"day=1 a/{batch}.parquet"
        (sink / name).parent.mkdir(exist_ok=True)
        (sink / name).write_text(str(batch))
        every.append(name)
        whole = (batch + 1) % compact == 0
        log = sink / "_spark_metadata" / (f"{batch}.compact" if whole else str(batch))
        log.write_text(entry(sink, *(every if whole else [name])))
        for path in (sink / name, log):
            path.with_name(f".{path.name}.crc").write_text("checksum")


def checksums(directory: Path) -> set[Path]:
    """Return the files of which there is a checksum in the log or in the partition of a sink."""
    found = [*(directory / "_spark_metadata").glob(".*.crc"), *(directory / "day=1 a").glob(".*.crc")]
    return {path.with_name(path.name[1:].removesuffix(".crc")) for path in found}


def files(directory: Path) -> list[str]:
    return sorted(path.stem for path in (directory / "day=1 a").glob("*.parquet"))


@pytest.mark.parametrize(("batches", "back"), [(5, 2), (25, 12), (12, 9), (12, 8), (25, 3)])
def test_what_came_later_is_moved_with_its_entries(tmp_path: Path, batches: int, back: int) -> None:
    sink, aside = tmp_path / "out", tmp_path / "out" / f".flintlock-rewound-{JOB}"
    write(sink, batches)
    (sink / "other.txt").touch()

    rewind_sink(sink, back, JOB)
    rewind_sink(sink, back, JOB)

    assert files(sink) == sorted(map(str, range(back + 1)))
    assert files(aside) == sorted(map(str, range(back + 1, batches)))
    assert (sink / "other.txt").exists()
    left = {path.name: path.read_text() for path in (sink / "_spark_metadata").glob("[0-9]*")}
    assert len(files_up_to(left, back) or {}) == back + 1
    assert max(int(name.removesuffix(".compact")) for name in left) == back


def test_a_checksum_of_hadoop_is_moved_with_its_file(tmp_path: Path) -> None:
    """Else the restored query could not write its own batch 2, or not read it: the checksum is of another content."""
    sink, aside = tmp_path / "out", tmp_path / "out" / f".flintlock-rewound-{JOB}"
    write(sink, 10)
    rewind_sink(sink, 1, JOB)

    for place, entries, batches in (
        (sink, ["0", "1"], [0, 1]),
        (aside, [*map(str, range(2, 9)), "9.compact"], range(2, 10)),
    ):
        logged = {place / "_spark_metadata" / name for name in entries}
        assert checksums(place) == logged | {place / "day=1 a" / f"{batch}.parquet" for batch in batches}


def test_a_sink_that_is_not_ahead_is_left_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "out", 3)
    rewind_sink(tmp_path / "out", 2, JOB)
    rewind_sink(tmp_path / "new", 2, JOB)

    assert files(tmp_path / "out") == ["0", "1", "2"]
    assert not (tmp_path / "out" / f".flintlock-rewound-{JOB}").exists()


def test_a_log_whose_entries_spark_has_removed_does_not_say_what_to_move(tmp_path: Path) -> None:
    sink = tmp_path / "out"
    write(sink, 12)
    (sink / "_spark_metadata" / "3").unlink()

    with pytest.raises(Invalid, match="cannot be taken back to batch 5"):
        planned_rewind(sink, 5)
    assert len(planned_rewind(sink, 9).files) == 2


def test_a_file_outside_of_the_sink_is_never_moved(tmp_path: Path) -> None:
    sink = tmp_path / "out"
    write(sink, 2)
    (sink / "_spark_metadata" / "1").write_text(entry(tmp_path / "elsewhere", "1.parquet"))

    with pytest.raises(Invalid, match="which is not in it"):
        rewind_sink(sink, 0, JOB)


@pytest.mark.parametrize("name", ["../elsewhere/1.parquet", "day=1 a/../../elsewhere/1.parquet", "."])
def test_a_name_that_leads_out_of_the_sink_is_refused(tmp_path: Path, name: str) -> None:
    """A path below the sink by its text only."""
    sink = tmp_path / "out"
    write(sink, 2)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.parquet").touch()
    line = json.dumps({"path": f"file://{sink}/{name}", "action": "add"})
    (sink / "_spark_metadata" / "1").write_text(f"v1\n{line}")

    with pytest.raises(Invalid, match="leads out of"):
        planned_rewind(sink, 0)
    with pytest.raises(Invalid, match="leads out of"):
        rewind_sink(sink, 0, JOB)
    assert (tmp_path / "elsewhere" / "1.parquet").exists()
    assert (sink / "_spark_metadata" / "1").exists()


@pytest.mark.parametrize("linked", ["day=1 a", "_spark_metadata"])
def test_a_directory_of_the_sink_that_is_a_link_to_another_place_is_refused(tmp_path: Path, linked: str) -> None:
    sink = tmp_path / "out"
    write(sink, 2)
    (sink / linked).rename(tmp_path / "elsewhere")
    (sink / linked).symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").iterdir())

    with pytest.raises(Invalid, match="leads out of"):
        rewind_sink(sink, 0, JOB)
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


@pytest.mark.parametrize("linked", ["", "day=1 a", "_spark_metadata"])
def test_nothing_is_moved_through_a_link(tmp_path: Path, linked: str) -> None:
    """The directory for what is moved, or one in it, may be there before."""
    sink, aside = tmp_path / "out", tmp_path / "out" / f".flintlock-rewound-{JOB}"
    write(sink, 2)
    (tmp_path / "elsewhere").mkdir()
    (aside / linked).parent.mkdir(exist_ok=True)
    (aside / linked).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Invalid, match=r"is a symbolic link|leads out of"):
        rewind_sink(sink, 0, JOB)
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    assert files(sink) == ["0", "1"]


def test_a_plan_is_written_through_no_link(tmp_path: Path) -> None:
    sink, aside = tmp_path / "out", tmp_path / "out" / f".flintlock-rewound-{JOB}"
    write(sink, 2)
    aside.mkdir()
    (aside / "plan.json.new").symlink_to(tmp_path / "elsewhere")

    rewind_sink(sink, 0, JOB)
    assert not (tmp_path / "elsewhere").exists()
    assert files(sink) == ["0"]


def test_a_plan_that_names_a_file_outside_of_the_sink_is_not_carried_out(tmp_path: Path) -> None:
    """It is in the sink, where others than the JobManager write."""
    sink, aside = tmp_path / "out", tmp_path / "out" / f".flintlock-rewound-{JOB}"
    write(sink, 2)
    aside.mkdir()
    (tmp_path / "precious").touch()
    for entries, names in (((), ("../precious",)), ((), (str(tmp_path / "precious"),)), (("../../precious",), ())):
        (aside / "plan.json").write_bytes(msgspec.json.encode(Rewind(batch=0, entries=entries, files=names)))
        with pytest.raises(Invalid, match="leads out of"):
            rewind_sink(sink, 0, JOB)
    assert (tmp_path / "precious").exists()


def test_a_sink_that_is_reached_by_a_link_is_taken_back(tmp_path: Path) -> None:
    write(tmp_path / "out", 1)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    sink = tmp_path / "link"
    (sink / "_spark_metadata" / "1").write_text(entry(sink, "day=1 a/1.parquet"))
    (sink / "day=1 a" / "1.parquet").touch()

    rewind_sink(sink, 0, JOB)
    assert files(sink) == ["0"]


def test_whoever_dies_in_between_is_followed_by_one_that_completes_it(tmp_path: Path) -> None:
    for number in range(1, 1000):
        sink = tmp_path / str(number) / "out"
        write(sink, 4)
        died = False
        try:
            with dying_at(tmp_path / str(number), number):
                rewind_sink(sink, 1, JOB)
        except Died:
            died = True
        rewind_sink(sink, 1, JOB)
        assert files(sink) == ["0", "1"]
        assert files(sink / f".flintlock-rewound-{JOB}") == ["2", "3"]
        assert all(path.exists() for path in checksums(sink)), "a checksum never outlives its file"
        if not died:
            assert number > 5
            return
    raise AssertionError("it never ended")
