"""`python -m flintlock` is the command line."""

from __future__ import annotations

from flintlock.cli.main import main

main()
