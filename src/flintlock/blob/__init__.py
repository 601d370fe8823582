"""Artifacts by content: user code and files, addressed by their SHA-256.

Owns: the files of uploads, which job refers to which, and local copies of them.
Never: opens or runs their content.
Inputs: REST (uploads), the Dispatcher (which jobs refer to what), TaskManagers (fetch); a store for copies that every
JobManager reaches, where there are JobManagers on several hosts.
Rejected: Flink's keys of kind, hash and randomness; the content's own hash makes an upload idempotent, and detects a
damaged copy.
"""
