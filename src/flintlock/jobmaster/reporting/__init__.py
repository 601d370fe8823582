"""What a JobMaster shows of its job: the snapshot, the history, metrics. Decides nothing about the job."""
