"""Talking to a cluster over HTTP: the client, job handles, results."""
