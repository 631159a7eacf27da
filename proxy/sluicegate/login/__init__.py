"""Sluice as an OAuth client of MCP servers: who is logged in where, and the token for the next request.

`Logins` is the way in. Knows the store and the network that it is given; no config, no connection, no page.
"""
