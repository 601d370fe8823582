"""Configuration: every option declared once, with its type, default and description; files; precedence.

Owns: option declarations, the merged configuration of a process, reading `flintlock.yaml` with line numbers.
Never: acts on a value. Components read the options that they need.
"""
