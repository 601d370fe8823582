"""The golden corpus: stored records as versions of Flintlock wrote them, in `tests/data/stored-records`.

`<kind>-<name>.bin` is what lay in a store, `<kind>-<name>.json` what it means. Files are added, never changed: run
`python -m tests.unit.ha.stored_records <name>` after a change of what is stored, with a name for what is new.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs
from tests.contract.records import (
    JOB_A,
    access_tokens,
    job_history,
    job_result,
    operations,
    region_record,
    retention_reading,
    rows,
    savepoint_disposals,
    snapshot,
    stored_job,
)

from flintlock.ha import payloads
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.payloads import Payload
from flintlock.ha.zookeeper import tree
from flintlock.model.ids import Epoch, FencingToken, VertexId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.tasks import RegionPhase

CORPUS: Final = Path(__file__).parents[2] / "data" / "stored-records"

#: Every kind of record that a store holds.
KINDS: Final[dict[str, Payload[Any]]] = {
    "stored_job": payloads.STORED_JOB,
    "job_result": payloads.JOB_RESULT,
    "region_record": payloads.REGION_RECORD,
    "job_history": payloads.JOB_HISTORY,
    "job_snapshot": payloads.JOB_SNAPSHOT,
    "job_summary": payloads.JOB_SUMMARY,
    "result_rows": payloads.RESULT_ROWS,
    "job_operations": payloads.JOB_OPERATIONS,
    "retention_reading": payloads.RETENTION_READING,
    "access_tokens": payloads.ACCESS_TOKENS,
    "savepoint_disposals": payloads.SAVEPOINT_DISPOSALS,
    "leader_info": payloads.LEADER_INFO,
    "epoch": tree.EPOCH,
    "graph_pointer": tree.GRAPH,
    "aside_pointer": tree.QUARANTINE,
    "key": tree.KEY,
    "result_pointer": tree.RESULT,
    "region_pointer": tree.REGION,
    "ended_pointer": tree.ENDED,
    "blob_pointer": tree.BLOB,
}


def examples() -> dict[str, object]:
    """Return one record of each kind, with as much in it as there can be."""
    job = stored_job(key="key", digest="digest")
    file = f"graphs/{JOB_A}-3-{'0' * 32}"
    return {
        "stored_job": structs.replace(
            job, requirements={VertexId("v"): ParallelismRange(lower=1, upper=3)}, submitted_at_ms=1_500
        ),
        "job_result": job_result(),
        "region_record": region_record(phase=RegionPhase.ACCEPTED, attempt=2),
        "job_history": job_history(),
        "job_snapshot": snapshot(),
        "job_summary": snapshot().summary(),
        "result_rows": rows(),
        "job_operations": operations(),
        "retention_reading": retention_reading(),
        "access_tokens": access_tokens(),
        "savepoint_disposals": savepoint_disposals(),
        "leader_info": LeaderInfo(token=FencingToken(Epoch(3), "s"), rpc="host:1", rest="http://host:2"),
        "epoch": tree.EpochRecord(epoch=Epoch(3), session="s", latch="c-0000000001"),
        "graph_pointer": tree.GraphPointer(file=file),
        "aside_pointer": tree.QuarantinePointer(file=file, reason="unreadable"),
        "key": tree.KeyRecord(key="key", job_id=JOB_A, digest="digest"),
        "result_pointer": tree.ResultPointer(file=file, end_ms=2_000),
        "region_pointer": tree.RegionPointer(file=file),
        "ended_pointer": tree.EndedPointer(
            end_ms=2_000,
            summary=payloads.JOB_SUMMARY.encode(snapshot().summary()),
            snapshot=file,
            rows={"top": file},
        ),
        "blob_pointer": tree.BlobPointer(file=f"blobs/{'0' * 64}-3-{'0' * 32}", size=10, stored_ms=2_000),
    }


def meaning(record: object) -> Any:
    """Return a record as plain JSON values."""
    return msgspec.json.decode(msgspec.json.encode(record))


def write(name: str) -> None:
    """Add the present records to the corpus, under a new name."""
    for kind, record in examples().items():
        binary, text = CORPUS / f"{kind}-{name}.bin", CORPUS / f"{kind}-{name}.json"
        with binary.open("xb") as file:  # what is there stays as it is
            file.write(KINDS[kind].encode(record))
        text.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


if __name__ == "__main__":
    write(sys.argv[1])
