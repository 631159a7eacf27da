"""The HTTP client: connections to servers and through proxies, as a transport of httpx."""
