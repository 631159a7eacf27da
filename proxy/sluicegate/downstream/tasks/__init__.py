"""Tasks of servers: whose they are, and calls that wait for them."""
