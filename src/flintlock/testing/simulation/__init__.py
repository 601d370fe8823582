"""A whole cluster in one process on virtual time, from a seed: network, faults, users, invariants."""
