"""The messages of the REST API, one struct for each: the server sends them, the client reads them.

Owns: field names, types and defaults of requests and responses; `/openapi.json` is generated from them.
Never: computes anything. Structs that mirror Flink's REST API keep Flink's names.
"""
