"""Publication of staged files: which steps, in which order, and how they are performed and made durable.

Owns: the plan of a publication, the order of its steps, the file operations by Hadoop's file systems, and syncing.
Never: decides whether an attempt is published. The JobMaster does, and records it first.
Inputs: the `Publish` and `RemoveTree` commands of the TaskManager to the engine's process.
Rejected: Spark's own output committers. They make files visible at the end of the Spark job, before the attempt is
accepted.
"""
