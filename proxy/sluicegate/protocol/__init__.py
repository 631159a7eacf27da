"""MCP and JSON-RPC as values: sync, pure, no I/O, no anyio.

`jsonrpc` has the messages and their limits, `model` the vocabulary of everything behind the listeners, and `revisions`
the table of the five dated revisions. Four adapters are each named by the peer at the other end: `modern_client` and
`legacy_client` call us, `modern_server` and `legacy_server` are called by us.
"""
