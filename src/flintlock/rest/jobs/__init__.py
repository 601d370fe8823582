"""Routes of jobs: submission, listing, details, results, logs, cancellation."""
