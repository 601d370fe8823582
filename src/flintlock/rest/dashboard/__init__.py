"""The dashboard as every JobManager serves it: one page at `/` and its assets. `dashboard/` has the source."""
