"""The HTTP server: routes as data, OpenAPI, error mapping, forwarding from a standby to the leader."""
