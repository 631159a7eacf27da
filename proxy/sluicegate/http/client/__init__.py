"""The HTTP client: connections to servers and through proxies."""
