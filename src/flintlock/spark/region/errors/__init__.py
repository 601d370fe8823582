"""From exceptions of Spark and of user code to failures that name the step, the line and the cause."""
