"""Runs cells, given as JSON on stdin, in a Jupyter kernel, and writes the messages that each has published as JSON.

Started with the packages of the kernel on the path, which the environment of the tests does not have.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Run the cells."""
    manager, client = importlib.import_module("jupyter_client.manager").start_new_kernel(startup_timeout=60)
    try:
        json.dump([_run(client, code) for code in json.load(sys.stdin)], sys.stdout)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(client: Any, code: str) -> list[dict[str, Any]]:
    request = client.execute(code)
    published: list[dict[str, Any]] = []
    while True:
        message = client.get_iopub_msg(timeout=100)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return published
        if kind not in {"status", "execute_input"}:
            published.append({"type": kind, **content})


if __name__ == "__main__":
    main()
