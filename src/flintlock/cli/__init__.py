"""The command line.

Owns: words, exit codes, what a person is asked and shown.
Never: decides about jobs; imports what a command does not need before it runs, so that `flintlock list` answers fast.
Told by: the client.
Rejected: one module with all commands; click would import everything for each of them.
"""
