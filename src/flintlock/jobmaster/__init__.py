"""JobMaster: one job, from its graph to its end.

Owns: the job's regions and attempts, what was accepted and published of them, restarts, its exception history.
Never: touches a slot that it was not granted, a file, or another job.
Inputs: slot grants and losses (ResourceManager), reports (TaskManagers), commands (Dispatcher), its own timers.
Rejected: persisting failures. Only what must not happen twice is durable (attempts sent, attempts accepted, regions
finished); under a new leader the restart strategy starts from the beginning.

`core.step` decides, with `scheduling`, `publication`, `failover` and `adoption`; `endpoint` performs the effects. A
record is written before the message that it announces is sent, and a TaskManager's report is acknowledged only after
its consequence is durable. So a crash between any two steps leaves a job that the next JobMaster can continue.
"""
