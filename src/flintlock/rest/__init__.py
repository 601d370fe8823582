"""The REST endpoint: Flink's REST API v1, and Flintlock's own resources.

Owns: the translation between HTTP and the gateways; the route table, which routing, forwarding and OpenAPI read.
Never: decides anything about a job; unpickles user code.
Inputs: HTTP requests.
Rejected: one class for each message, header and parameter, as Flink has it; a row in a table has the same content.
"""
