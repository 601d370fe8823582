"""Who may use the cluster: tokens, and who the caller is."""
