"""One Protocol for each component: the only calls that components make to each other.

Every method takes one message (or nothing) and answers one message or None, so that `rpc` can carry any of them and
the simulation can delay, lose or repeat them. Errors are those of `flintlock.model.errors`.
"""
