"""Election and stores.

Owns: who leads, since which epoch, and every durable record of the control plane.
Never: decides what a record means for a job.
Told by: the DispatcherRunner (contends), the rooms (write under their term's token).
Rejected: stores that trust the election; a paused leader wakes up believing, so each write checks the epoch itself.
"""
