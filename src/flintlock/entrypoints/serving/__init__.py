"""The servers of a JobManager: REST and RPC, how they are protected, and where clients find them."""
