"""Testing: replacements of everything outside a component, for tests and simulations; typed and shipped.

Owns: virtual time, the simulated network and the fakes, each checked by the contract suite of what it replaces.
Never: imported by anything that serves users.
Rejected: mocks. A fake is checked by a contract suite that it can fail; a mock only repeats what the test assumes.
"""
