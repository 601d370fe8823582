"""RestEndpoint: Flink's REST API v1, and a little more.

Owns: the translation between HTTP and the gateways; the table of endpoints from which routes and OpenAPI both come.
Never: decides anything about a job; opens user code.
Told by: HTTP clients.
Rejected: one class for each message, header and parameter, as Flink has it; a row in a table says the same.
"""
