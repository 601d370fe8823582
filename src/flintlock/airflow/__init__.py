"""Flintlock in Apache Airflow: `flintlock.airflow.operators.FlintlockRunOperator` runs a job as a task of a DAG.

Owns: which job belongs to which task, and how a task waits for it.
Never: is imported by anything else of Flintlock; needs more than a client's installation in Airflow's environment.
"""
