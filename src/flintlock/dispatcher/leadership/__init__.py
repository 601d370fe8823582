"""Who is Dispatcher when: the election's outcome becomes a leader process, and each leader process a Dispatcher.

Owns: the one running leader process of this JobManager, and which Dispatcher clients are passed on to.
Never: knows a job, or decides an election: `ha` does, and a leader process recovers the jobs with `recovery`.
Inputs: the leader election (grant and revocation), clients through `CurrentDispatcher`, the leader's address.
Rejected: one Dispatcher that survives a change of leadership. What belongs to a term would need to be reset; an object
for each term is simply dropped.
"""
