"""ResourceManager: which slots exist, and which job has them.

Owns: registered TaskManagers, their slots, what jobs have declared, the queue of waiting requests, workers.
Never: knows why a job needs slots, or what runs in them.
Inputs: TaskManagers (registration, heartbeats, unregistration, timeouts, death), JobMasters (declarations), a worker
driver.
Rejected: persisting slots; after a change of leader they are reported and declared again.

`core` decides which incarnations of TaskManagers count (`incarnations`) and which request gets which slots
(`slot_manager`, with `request_queue`, `free_slots` and `capacity`); `workers` decides how many workers to start and
which to release. `endpoint` is the shell; it sends through `jobmaster_outbox`, watches
TaskManagers through `liveness` and has workers started through `active`.

Its cores are objects that change in place, not a `step` over frozen state as the JobMaster's: with ten thousand waiting
requests, copying the state for each event would cost more than deciding. There are two, because `workers` depends on a
simulated allocation and on timers of its own, and exists only in active mode.
"""
