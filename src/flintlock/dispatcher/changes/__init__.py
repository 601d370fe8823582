"""What users do to a job that is there, and the records of operations that take their time."""
