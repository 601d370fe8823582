"""Nouns: ids, job graph, states, messages, errors.

Owns: the types that every component uses, and what can be decided about them without knowing any component.
Never: does I/O, reads a clock, draws a random number, imports anything else of Flintlock.
Rejected: one class for the wire and another for the store; a frozen struct serves both, and REST too.
"""
