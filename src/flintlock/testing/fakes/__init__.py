"""Fakes of the components and of what they depend on; they satisfy the same Protocols, in memory."""
