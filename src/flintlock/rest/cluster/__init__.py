"""Routes of the cluster: overview, TaskManagers, configuration, and the JobManager's own process."""
