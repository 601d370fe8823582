"""Monitoring of the event loop: how long it stands still, in which code, and for which job; its longest pauses avoided.

Owns: the measurement of the loop, which job the loop works on, the records of jobs on which leaders blocked, when a
    process ends because its loop stands still, and how the garbage collector is set.
Never: decides about jobs or leadership. Recovery quarantines a job that cost several leaders; operators read the
    metrics.
Inputs: the loop of the process, JobMasters (`CurrentJob`), a directory that all JobManagers share.
Rejected: asyncio's debug mode. It slows every step down, and uvloop does not have it.
"""
