"""Processes of this machine: identified, started, supervised and ended, with all that came from them."""
