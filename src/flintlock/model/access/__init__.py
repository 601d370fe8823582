"""Who may do what: callers, their tokens, secrets in job graphs, and the files that a message may name."""
