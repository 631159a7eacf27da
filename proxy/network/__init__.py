"""What both sides of Sluice need of a network: where it may connect to, a careful GET, and writes that leave together.

Knows names, addresses and URLs; knows no MCP, no server and no client.
"""
