"""Running one region: steps become DataFrames, outputs become Spark actions, errors name the step at fault.

Everything here runs in a task runner, beside user code; only there PySpark is imported.
"""
