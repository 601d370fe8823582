"""How the program of an application reaches its cluster from a machine other than the JobManager's.

Where all processes of the cluster share a state directory, the JobManagers announce themselves there. A TaskManager in
a container has a state directory of its own: it writes this file there, for its user code only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.host.files.whole_files import write_whole

_FILE: Final = "own-cluster.json"


class OwnCluster(Struct, frozen=True, kw_only=True):
    """The cluster of an application: where its JobManager listened when the TaskManager was started, and its settings.

    With settings that name a ZooKeeper quorum, that knows the current address.
    """

    rest: str
    settings: dict[str, str]


def write_own_cluster(state_dir: Path, cluster: OwnCluster) -> None:
    """Write the file, readable by its owner only. Raises OSError."""
    write_whole(state_dir / _FILE, msgspec.json.encode(cluster), mode=0o600)


def read_own_cluster(state_dir: Path) -> OwnCluster | None:
    """Return the cluster of the program that runs in this state directory; None if there is none."""
    try:
        return msgspec.json.decode((state_dir / _FILE).read_bytes(), type=OwnCluster)
    except (OSError, msgspec.MsgspecError):
        return None
