"""The operating system: process trees, children, pid files, control groups, memory limits, the watchdog, addresses.

Owns: how a process of Flintlock is started, identified, limited and ended on one machine.
Never: knows what a job, a task or Spark is. Standard library only, except where a module says otherwise: the watchdog
and the task runners start from here.
Inputs: pids, paths and limits of the processes that call it; /proc and /sys.
Rejected: psutil throughout. It takes longer to import than the watchdog takes to start, and it identifies a process by
a time of day that moves when the clock is set. Only `pid_files`, which the client also uses on macOS, is built on it.

A process has two names here. `processes.start_time_of` (boot id and ticks, written into a record) identifies it for
later readers; a `processes.ProcessHandle` (a pidfd) addresses it while the caller lives. Pid files, which are older and
read by clients, keep psutil's creation time.
"""
