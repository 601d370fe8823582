"""The process of a JobManager that is the ApplicationMaster of an application on YARN.

The first attempt starts the JVM of the bridge before anything else, so that this JVM starts while Python imports the
rest: YARN waits for the registration. In later attempts clients and TaskManagers wait for a leader, which needs no
bridge: there the JVM starts once REST listens, and leaves the cores to that until then.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial

from flintlock.model.errors import FlintlockError
from flintlock.yarn.bridge import start_bridge
from flintlock.yarn.layout import attempt_of


def main() -> int:
    """Run it; return its exit code."""
    bridge, attempt = None, attempt_of(os.environ)
    if attempt is None or attempt.number == 1:
        with suppress(FlintlockError):  # raised again, and logged, where it is needed
            bridge = start_bridge(os.environ)

    import uvloop

    from flintlock.entrypoints.process import start
    from flintlock.entrypoints.yarn_platform import serve

    return start("jobmanager", partial(serve, bridge=bridge), uvloop.new_event_loop)


if __name__ == "__main__":
    sys.exit(main())
