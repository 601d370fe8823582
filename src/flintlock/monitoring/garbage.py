"""The garbage collector of a server process: a full collection visits what is new since the last one, and nothing else.

Python's full collection visits every object, and the event loop stands still meanwhile: a quarter of a second with
3,000 queued jobs. What has survived one is therefore frozen: the collector no longer visits it. A frozen object is
freed like any other when its last reference goes; only a cycle of references among frozen objects stays when nothing
else refers to it. The objects of a job form no such cycle once it has ended, and those of a term are visited again
after it.
"""

from __future__ import annotations

import gc
from typing import Final, Literal

#: The new objects after which there is a collection: in turn one of the youngest generation, of two, and a full one. So
#: the collector visits what stays twice on average; with ten young collections for each of the next generation it would
#: be three times. A full collection comes after 36,000 new objects, and takes about 30 ms.
_THRESHOLDS: Final = (12_000, 0, 0)


def keep_collections_short() -> None:
    """Freeze what there is now (modules and classes), and from now on what survives each full collection."""
    gc.set_threshold(*_THRESHOLDS)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    gc.freeze()


def visit_everything_again() -> None:
    """Let the next full collection visit all objects: many have lost their last user, and may form cycles."""
    gc.unfreeze()


def _freeze_survivors(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == len(_THRESHOLDS) - 1:
        gc.freeze()
