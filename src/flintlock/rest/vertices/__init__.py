"""Routes of a job's vertices, subtasks and plan, in Flink's form."""
