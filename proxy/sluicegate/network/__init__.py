"""What both sides of Sluice need of a network: where it may connect to, a careful GET, and what is shared
by all writes and all alarms of one event loop.

Knows names, addresses and URLs; knows no MCP, no server and no client.
"""
