"""What Sluice may connect to, and a careful GET: rules about addresses that both sides of Sluice go by.

Knows names, addresses and URLs; knows no MCP, no server and no client.
"""
