"""Spark: everything that knows PySpark, the JVM and Hadoop's file systems.

Owns: the engine (one Spark application with two doors), the processes that run user code, the way from a region of a
    job graph to DataFrames.
Never: decides which task runs where, or whether a result counts.
Told by: the TaskManager, through the Protocols of `gateways.engine`.
Rejected: Spark's launcher scripts (they refuse a Java without the vector module, and cost seconds); importing PySpark
    where a process only has to start and steer others.
"""
