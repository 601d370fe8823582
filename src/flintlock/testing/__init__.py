"""Testing: what stands in for the world when Flintlock is tried out; typed and shipped.

Owns: virtual time, the simulated network and the fakes, each held to the contract suite of the real thing.
Never: imported by anything that serves users.
Rejected: mocks. A fake that can fail its own contract test says something; a mock repeats what the test assumes.
"""
