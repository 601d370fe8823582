"""The stream of events: what has changed in the cluster, and documents of the API that a client follows."""
