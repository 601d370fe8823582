"""The operating system: process trees, children, pid files, control groups, memory limits, the watchdog, addresses.

Owns: how a process of Flintlock is started, identified, limited and ended on one machine.
Never: knows what a job, a task or Spark is. Standard library only, except where a module says otherwise: the watchdog
and the task runners start from here.
"""
