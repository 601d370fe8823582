"""Writing jobs: Python, YAML and programs become one job specification with its artifacts."""
