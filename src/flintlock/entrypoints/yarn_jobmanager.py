"""The process of a JobManager that is the ApplicationMaster of an application on YARN.

It starts the JVM of the bridge before anything else, so that this JVM starts while Python imports the rest: the next
attempt of an ApplicationMaster that was killed leads sooner.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial

from flintlock.model.errors import FlintlockError
from flintlock.yarn.bridge import start_bridge


def main() -> int:
    """Run it; return its exit code."""
    bridge = None
    with suppress(FlintlockError):  # raised again, and logged, where it is needed
        bridge = start_bridge(os.environ)

    import uvloop

    from flintlock.entrypoints.process import start
    from flintlock.entrypoints.yarn_platform import serve

    return start("jobmanager", partial(serve, bridge=bridge), uvloop.new_event_loop)


if __name__ == "__main__":
    sys.exit(main())
