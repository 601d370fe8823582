"""Spark: everything that knows PySpark, the JVM and Hadoop's file systems.

Owns: the engine (one Spark application, reached through Spark Connect and through py4j), the processes that run user
    code, the translation of a region of a job graph into DataFrames.
Never: decides which task runs where, or whether a result counts.
Inputs: calls from the TaskManager, through the Protocols of `gateways.engine`.
Rejected: Spark's launcher scripts (they refuse a Java without the vector module, and cost seconds); importing PySpark
    in a process that only starts and controls others.
"""
