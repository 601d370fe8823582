"""High availability on one machine: leader election by a file lock, stores in one SQLite file."""
