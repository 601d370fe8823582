"""ResourceManager: who has slots, and for whom.

Owns: registered TaskManagers, their slots, what jobs have declared, the queue of those who wait, workers.
Never: asks why a job wants slots, or what runs in them.
Told by: TaskManagers (registration, heartbeats, good-bye, silence, death), JobMasters (declarations), a worker driver.
Rejected: persisting slots; after a failover they are reported and declared anew.

`core` decides who counts (`lives`) and who gets which slots (`slot_manager`, with `waiting_line`, `free_slots` and
`capacity`); `workers` decides whom to start, `demand` how many are needed. `endpoint` hears and tells everybody,
through `couriers`, `attendance` and `active`.
"""
