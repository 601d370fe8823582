"""Finding a running cluster, and starting or stopping one on this machine."""
