"""What must hold of durations, records and slots in a simulated cluster at any time."""
