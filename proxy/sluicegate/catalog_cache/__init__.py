"""Every server's tools, prompts and templates, kept per scope, and the way from a public name to its server.

`list_walk` asks servers for their lists, within bounds, once for everybody who waits; `cache` has what came, and says
what changed; `target_resolver` looks names and URIs up in it. None of them judges: rights come as functions.
"""

from sluicegate.catalog_cache.cache import RECONFIGURED, CatalogCache
from sluicegate.catalog_cache.server_catalog import ListSettings
from sluicegate.catalog_cache.target_resolver import MayList, Resolver, ServerSnapshots

__all__ = ["RECONFIGURED", "CatalogCache", "ListSettings", "MayList", "Resolver", "ServerSnapshots"]
