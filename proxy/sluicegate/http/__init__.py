"""HTTP that knows no MCP: addresses that may be connected to, a careful GET, which Host and Origin a request may
carry, and the client's connections to servers."""
