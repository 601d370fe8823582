"""Showing a job's progress, failures and results on a terminal."""
