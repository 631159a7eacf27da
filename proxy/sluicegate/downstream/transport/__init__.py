"""How the bytes of one connection travel: stdio, Streamable HTTP, HTTP+SSE."""
