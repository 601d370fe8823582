"""Election and stores.

Owns: which JobManager leads, in which epoch, and every durable record of the control plane.
Never: decides what a record means for a job.
Inputs: the DispatcherRunner (contends for leadership), the components (write under the token of their term).
Rejected: stores that trust the election; a leader that was frozen wakes up believing that it leads, so each write
checks the epoch itself.
"""
