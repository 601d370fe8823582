from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = """
import gc, weakref
from flintlock.monitoring.garbage import keep_collections_short, visit_everything_again

class Node:
    pass

def cycle():
    one, two = Node(), Node()
    one.other, two.other = two, one
    return weakref.ref(one), one

def visited():
    return len(gc.get_objects())

keep_collections_short()
base = gc.get_freeze_count()
kept = [[] for _ in range(20_000)]
seen, node = cycle()
gc.collect()
assert gc.get_freeze_count() > base + 20_000, "what survives a full collection is frozen"
assert visited() < 5_000, "the next one does not visit it"
del node
gc.collect()
assert seen() is not None, "a frozen cycle stays ..."
visit_everything_again()
gc.collect()
assert seen() is None, "... until everything is visited again"
single = Node()
alone = weakref.ref(single)
gc.collect()
del single
assert alone() is None, "a frozen object without a cycle is freed at once"
"""


def test_a_full_collection_visits_only_what_is_new_since_the_last_one() -> None:
    run = subprocess.run([sys.executable, "-c", _SCRIPT], env=os.environ, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
