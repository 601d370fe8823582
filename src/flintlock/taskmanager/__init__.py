"""TaskManager: slots, one Spark engine, and a runner for each task.

Owns: admission to its slots, the processes behind a running attempt, the attempt's captured output.
Never: decides whether an attempt is wanted, retried or published; never opens user code in its own process.
Told by: the JobMaster (deploy, cancel, publish), its runners, its engine's death, the leader's silence.
Rejected: keeping work that a new leader does not know of; until it can be adopted, it is ended before registering.
"""
