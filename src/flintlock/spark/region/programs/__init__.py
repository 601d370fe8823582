"""Unmodified PySpark scripts: run as the interpreter runs them, with what they may not do noticed in time."""
