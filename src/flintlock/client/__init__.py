"""The client: writes jobs, packages them, submits them, waits for them.

Owns: the three ways to write a job (Python, YAML, program), what is sent with one, the REST calls, clusters that are
started as child processes.
Never: decides anything about a job once it is submitted; imports a component of the cluster, PySpark or gRPC.
Inputs: REST responses (`flintlock.api`), configuration files, the user's own files.
Rejected: a client with state of its own; it requests everything about a job from the cluster, so any client can
take over.
"""
