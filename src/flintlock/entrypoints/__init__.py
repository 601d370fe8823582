"""Composition roots: where concrete classes are built and handed to each other, and processes begin and end."""

import os

# Children are exec'd: they inherit nothing of gRPC, whose fork handlers would only complain. Read as gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
