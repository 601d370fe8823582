"""Dispatcher: accepts jobs, makes them durable, and cleans up after their JobMasters.

Owns: which jobs exist in this term, each job's progress from submission to a clean result, and what clients see of it.
Never: schedules a task, calls a TaskManager, or unpickles what a job carries.
Inputs: clients (through `CurrentDispatcher`), JobMasters (changes and how they end), the stores (at recovery).
Rejected: one task for the submission and another for the run. A job is one asyncio task from its reservation to its
clean result, so a client that disconnects in the middle of a submission leaves nothing half done.

The shape differs from the JobMaster's `step(event) -> effects`. A JobMaster reacts to events that arrive in any order
from many TaskManagers, so its decisions are a function of state and event. The Dispatcher does the same few things for
each job, one after the other, and each is a write to a store that may have to be retried (`job.DispatchedJob`). As a
coroutine that sequence is read from top to bottom, and cancelling the coroutine at any `await` is how leadership is
lost; as events and effects every write would need an event for its completion and a state in which to wait for it.
Decisions are pure all the same: `core` has the table of a job's phases, `PHASE_MOVES`, and all checks, and `listing`
and `snapshots` compute what clients see. `endpoint`, `submission`, `job`, `changes`, `recovery`, `cleanup` and
`retention` perform them. `leadership` decides which Dispatcher serves when.
"""
