"""The client: writes jobs, packs them, submits them, waits for them.

Owns: the three ways to write a job (Python, YAML, program), what travels with one, the REST calls, clusters that are
started as child processes.
Never: decides anything about a job once it is submitted; imports a room of the cluster, PySpark or gRPC.
Inputs: REST responses (`flintlock.api`), configuration files, the user's own files.
Rejected: a client that keeps state of its own; whatever it knows of a job it asks anew, so any client can take over.
"""
