"""Savepoints as files: made of the checkpoints of a job's queries.

Owns: how a savepoint is written, so that it is complete or not there.
Never: runs Spark, or changes a checkpoint; Spark alone writes those.
Inputs: the Dispatcher, which records what was triggered and what came of it; the rules of `model.savepoints`.
Rejected: copying in the engine with Hadoop's file systems. It has no hard links, and a savepoint would need an engine
that runs; a JobManager that cannot reach the files says so.
"""
