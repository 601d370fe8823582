"""Composition roots: where concrete classes are built and handed to each other, and processes begin and end."""
