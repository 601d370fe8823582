"""JobMaster: one job, from its graph to its end.

Owns: the job's regions and attempts, what was accepted and published of them, restarts, its exception history.
Never: touches a slot that it was not granted, a file, or another job.
Told by: slot grants and losses (ResourceManager), reports (TaskManagers), cancellation (Dispatcher), its own timers.
Rejected: remembering failures durably. What is durable is what must not happen twice (attempts sent, attempts
accepted, regions finished); a new leader starts the restart strategy afresh.

`core` decides (`step`), helped by `scheduling`, `publication` and `failover`; `endpoint` does. Records are written
before the message that they announce is sent, and a TaskManager's report is answered only once what it means is
durable, so a crash between any two steps leaves a job that the next JobMaster can take from there.
"""
