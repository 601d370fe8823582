"""The Python workers of an engine: their daemon, their end, and what they print."""
