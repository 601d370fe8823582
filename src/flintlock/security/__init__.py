"""Security: who a caller is, and what that caller may do.

Owns: the cluster's secret, keys derived from it, credentials and how they are checked, roles.
Never: decides what a request does; opens a socket; logs or shows a credential.
Inputs: files of the state directory, the token store, headers of requests, the time.
Rejected: one secret for every purpose, since a key that leaks in one place must not open another; passwords, since a
client of a cluster is usually a program; slow hashes for tokens, which are random and cannot be guessed.
"""
