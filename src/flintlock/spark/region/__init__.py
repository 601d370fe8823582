"""Execution of one region: steps become DataFrames, outputs become Spark actions, errors name the step that failed.

Everything here runs in a task runner, in the process of the user code; PySpark is imported nowhere else.
"""
