"""ResourceManager: who has slots, and for whom.

Owns: registered TaskManagers, their slots, what jobs have declared, the queue of those who wait.
Never: asks why a job wants slots, or what runs in them.
Told by: TaskManagers (registration, heartbeats, good-bye, silence), JobMasters (declarations).
Rejected: persisting slots; after a failover they are reported and declared anew.

`core` decides who gets which slots; `free_slots` finds the TaskManager for it; `endpoint` tells everybody.
"""
