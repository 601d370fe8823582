"""Links to Spark's UI of an engine: each contains a pass, which is all that its pages, scripts and images need.

    <task manager>.<expiry>.<authentication code>

The pages of the UI show texts of jobs, so browsers treat them as a site without an origin (`sandbox`): a script in them
can use neither the reader's cookie nor any other part of the cluster. It follows that their own requests come without
the cookie; the pass in their path says that the reader may see them. It is good for one TaskManager and one hour, and
for reading only. It is signed with a key of the cluster: every JobManager accepts it, and nothing is stored.
"""

from __future__ import annotations

from typing import Final

from flintlock.model.errors import Forbidden
from flintlock.model.ids import TaskManagerId
from flintlock.security.cluster_secret import ClusterSecret, Purpose
from flintlock.security.signed_text import decoded, encoded, signed, verified_head

LIFETIME_MS: Final = 3_600_000
_AGAIN: Final = "run `flintlock spark-ui` for a new one"


class SparkUiLinks:
    """Makes passes and verifies them."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._key: Final = secret.key(Purpose.SPARK_UI)

    def make(self, task_manager: TaskManagerId, now_ms: int) -> str:
        """Return a pass for the UI of a TaskManager's engine."""
        return signed(self._key, f"{encoded(task_manager.encode())}.{now_ms + LIFETIME_MS}")

    def task_manager(self, given: str, now_ms: int) -> TaskManagerId:
        """Return whose UI a pass is for. Raises Forbidden."""
        head = verified_head(self._key, given)
        if head is None:
            raise Forbidden(f"the link to Spark's UI was not made by this cluster: {_AGAIN}")
        name, _, expires_ms = head.partition(".")
        if int(expires_ms) <= now_ms:
            raise Forbidden(f"the link to Spark's UI has expired: {_AGAIN}")
        return TaskManagerId(decoded(name).decode())
