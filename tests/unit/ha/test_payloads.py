from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.records import job_result, region_record, rows, snapshot, stored_job

from flintlock.ha import payloads
from flintlock.model.errors import Corrupt, Incompatible
from flintlock.model.tasks import RegionPhase

STORED = payloads.STORED_JOB.encode(stored_job(key="key"))


def test_every_kind_of_record_comes_back_as_it_was() -> None:
    record = region_record(phase=RegionPhase.ACCEPTED)
    assert payloads.STORED_JOB.decode(STORED, "it") == stored_job(key="key")
    assert payloads.JOB_RESULT.decode(payloads.JOB_RESULT.encode(job_result()), "it") == job_result()
    assert payloads.REGION_RECORD.decode(payloads.REGION_RECORD.encode(record), "it") == record
    assert payloads.JOB_SNAPSHOT.decode(payloads.JOB_SNAPSHOT.encode(snapshot()), "it") == snapshot()
    assert payloads.JOB_SUMMARY.decode(payloads.JOB_SUMMARY.encode(snapshot().summary()), "it") == snapshot().summary()
    assert payloads.RESULT_ROWS.decode(payloads.RESULT_ROWS.encode(rows()), "it") == rows()


@given(st.integers(0, len(STORED) - 1), st.integers(1, 255))
def test_any_damaged_byte_is_noticed(index: int, flip: int) -> None:
    damaged = bytearray(STORED)
    damaged[index] ^= flip

    with pytest.raises(Corrupt, match="job a"):
        payloads.STORED_JOB.decode(bytes(damaged), "job a")


@given(st.integers(0, len(STORED) - 1))
def test_a_cut_is_noticed(length: int) -> None:
    with pytest.raises(Corrupt):
        payloads.STORED_JOB.decode(STORED[:length], "job a")


def test_a_newer_format_is_not_corrupt_but_incompatible_and_named() -> None:
    body = b"what only the newer version can read"
    newer = b"\x02" + payloads.checksum(2, body).to_bytes(4, "big") + body

    with pytest.raises(Incompatible, match=r"job a was written by a newer Flintlock \(format 2\)"):
        payloads.STORED_JOB.decode(newer, "job a")
    with pytest.raises(Corrupt):
        payloads.STORED_JOB.decode(newer[:-1] + b"?", "job a")


def test_a_whole_payload_of_another_kind_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        payloads.STORED_JOB.decode(payloads.JOB_RESULT.encode(job_result()), "job a")


def test_a_record_with_a_field_of_a_newer_version_is_read() -> None:
    class Newer(msgspec.Struct):
        name: str
        job_id: str
        status: str = "FINISHED"
        start_ms: int = 1
        end_ms: int = 2
        added_later: str = "?"

    stored = payloads.Payload(Newer).encode(Newer(name="n", job_id="a" * 32))

    assert payloads.JOB_RESULT.decode(stored, "job a").name == "n"
