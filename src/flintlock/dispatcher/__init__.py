"""Dispatcher: accepts jobs, keeps them safe, outlives their JobMasters.

Owns: which jobs exist in this term, each one's way from submission to a clean result, and what clients see of them.
Never: schedules a task, talks to a TaskManager, or opens what a job carries.
Inputs: clients (through `CurrentDispatcher`), JobMasters (changes and how they end), the stores (at recovery).
Rejected: one task for the submission and another for the run. A job is one task from its reservation to its clean
result, so that a client that hangs up in the middle of a submission leaves nothing half done.
"""
