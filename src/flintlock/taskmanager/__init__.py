"""TaskManager: slots, one Spark engine, and a runner process for each task.

Owns: admission to its slots, the processes behind a running attempt, the attempt's captured output.
Never: decides whether an attempt is retried or published; never runs user code in its own process.
Inputs: JobMasters (deploy, cancel, publish), its runners, its engine's death, the leader's answers and their absence.
Rejected: ending all work when the leader changes. What runs under a lease is offered to the new leader, whose
JobMasters claim it; only what is not claimed before the lease ends is cancelled.

`core` decides (its phases are the table `TASK_PHASE_MOVES`); `engine_session` runs attempts on one engine; `work` is
the session's work as `registration` reports it to the leader, under the `lease`; `endpoint` composes them, once for
each engine. Dependencies point one way: endpoint, registration, work, engine_session, core.
"""
