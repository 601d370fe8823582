"""Testing: replacements of everything outside a component, for tests and simulations; typed and shipped.

For users' own tests there are `run_local` and `local_cluster` (`flintlock.testing.local`).

Owns: virtual time, the simulated network and the fakes, each checked by the contract suite of what it replaces.
Never: imported by anything that serves users.
Rejected: mocks. A fake is checked by a contract suite that it can fail; a mock only repeats what the test assumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flintlock.testing.local import local_cluster, run_local

__all__ = ["local_cluster", "run_local"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flintlock.testing import local

    return getattr(local, name)
