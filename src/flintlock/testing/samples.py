"""Values that many tests need, and whose content is irrelevant to them."""

from __future__ import annotations

from typing import Final

from flintlock.model.ids import Epoch, FencingToken
from flintlock.model.jobgraph import Versions

VERSIONS: Final = Versions(flintlock="0.1.0", python="3.11", pyspark="4.3.0")
TOKEN: Final = FencingToken(Epoch(1), "session-1")
