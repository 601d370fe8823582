"""Streaming jobs: their settings, the figures of their queries, and their savepoints."""
