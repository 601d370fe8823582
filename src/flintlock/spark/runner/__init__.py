"""Task runners: the template process, the pool, the handle in the TaskManager, the process that runs user code."""
