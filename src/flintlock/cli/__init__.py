"""The command line.

Owns: texts, exit codes, prompts.
Never: decides about jobs; imports what a command does not need before it runs, so that `flintlock list` is fast.
Inputs: the command line, and the client.
Rejected: one module with all commands; click would import everything for each of them.
"""
