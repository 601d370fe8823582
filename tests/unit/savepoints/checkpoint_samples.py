"""Checkpoints as Spark writes them, without Spark."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

from msgspec import structs
from tests.unit.model.graphs import graph, step

from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import Sink, Source
from flintlock.model.streaming.streams import StreamQuery

UID = "files-v1"
SST = b"sorted" * 200


def streaming_job(*uids: str, out: Path | str | None = None, options: dict[str, str] | None = None) -> JobGraph:
    """Return a job with one file sink for each uid."""
    source = Source(format="json", paths=("/in",), schema="n LONG", options=options or {}, stream=True)
    sinks = [
        structs.replace(
            step(f"s{number}", Sink(format="parquet", path=f"{out or '/out'}/{number}"), "in"),
            query=StreamQuery(uid=uid),
        )
        for number, uid in enumerate(uids or (UID,))
    ]
    return structs.replace(graph(step("in", source), *sinks), job_type=JobType.STREAMING)


class CheckpointSample:
    """The checkpoint of a stateful query, which commits batches one by one and purges old ones."""

    def __init__(self, directory: Path, query_id: str = "11111111-1111-1111-1111-111111111111") -> None:
        self.directory = directory
        self.batch = -1
        self._write("metadata", json.dumps({"id": query_id}))
        self._write(".metadata.crc", "crc")
        self._write("state/0/_metadata/schema", "schema")

    def commit(self, batches: int = 1) -> None:
        """Commit batches: what Spark writes for each, in its order."""
        for _ in range(batches):
            self.batch += 1
            conf = {"spark.sql.shuffle.partitions": "1"}
            entry = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": conf}), json.dumps({"logOffset": self.batch})]
            self._write(f"sources/0/{self.batch}", f"v1\n/in/{self.batch}.json")
            self._write(f"offsets/{self.batch}", "\n".join(entry))
            self.snapshot(f"state/0/0/{self.batch + 1}.zip")
            self._write(f"commits/{self.batch}", "v1\n{}")

    def snapshot(self, name: str, *files: str) -> None:
        """Write a snapshot of RocksDB that names SST files, each with the content `SST`."""
        size = len(SST)
        names = [{"localFileName": file, "dfsSstFileName": file, "sizeBytes": size} for file in files]
        metadata = {"sstFiles": names, "numKeys": 1}
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("metadata"), f"v1\n{json.dumps(metadata)}")

    def checksum(self, name: str) -> None:
        """Write the checksums of a file, as Hadoop's local file system does."""
        path = self.directory / name
        content = path.read_bytes()
        sums = (zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512))
        header = b"crc\0" + (512).to_bytes(4, "big")
        (path.parent / f".{path.name}.crc").write_bytes(header + b"".join(each.to_bytes(4, "big") for each in sums))

    def purge(self, before: int) -> None:
        """Remove the batches before this one, as Spark does while a query runs."""
        for batch in range(before):
            for name in (f"offsets/{batch}", f"commits/{batch}", f"state/0/0/{batch + 1}.zip"):
                (self.directory / name).unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
