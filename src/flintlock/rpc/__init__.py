"""RPC: a gateway's Protocol, callable from another process.

Owns: how a call travels (gRPC, msgpack, metadata), how an error comes back as itself, how a dead peer is noticed.
Owns also: how members prove that they are members (signatures, certificates); no server or channel is without.
Never: knows a gateway by name, retries, or decides which process leads; the fence and the token are parameters.
Inputs: `serve` (a Protocol, its implementation, its fence) and `connect` (a Protocol, an address).
Rejected: protoc and generated stubs. The Protocol in `flintlock.gateways` is the only description of an interface, and
the structs it names are the only description of a message.

The parts: `description` reads Protocols; `exports` answers calls, whatever transport carried them; `failures` turns
errors into messages and back; `authentication` signs calls and refuses others; `security` is what a process needs for
that; `transport` is the contract of every transport; `wire`, `server` and `client` are gRPC's.
`flintlock.testing.simulation.network` is another, held to the same contract suite. Nothing is re-exported here, so
that the simulation does not load gRPC.
"""
