"""The files that go with a job: its artifacts, the modules beside it, and what its requirements name."""
