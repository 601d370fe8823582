"""A server that speaks S3, for tests: that of moto, as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from tests.cluster.installed_packages import installed
from tests.cluster.processes import ending_with_this_process, until

_ADDRESS: Final = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


class ObjectStore:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url: Final = url

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        httpx.put(f"{self.url}/{name}").raise_for_status()

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of all objects in a bucket."""
        listed = httpx.get(f"{self.url}/{bucket}", params={"list-type": "2"}).raise_for_status()
        return re.findall("<Key>(.*?)</Key>", listed.text)


@contextmanager
def object_store(directory: Path) -> Generator[ObjectStore]:
    """Start the server on a free port, with its log in the directory; it is empty, and forgets all at its end."""
    log_file = directory / "object-store.log"
    with log_file.open("wb") as log:
        server = subprocess.Popen(
            ending_with_this_process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]),
            stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(installed("moto"))},
        )  # fmt: skip

    def address() -> str | None:
        assert server.poll() is None, log_file.read_text()
        found = _ADDRESS.search(log_file.read_text())
        return found[1] if found else None

    try:
        yield ObjectStore(until("the address of the server", address))
    finally:
        server.kill()
        server.wait()
