"""Every server's tools, prompts and templates, kept per scope, and the way from a public name to its server.

`list_walk` asks one server for one whole list, within bounds; `cache` decides when, once for everybody who waits, and
stores what came; `target_resolver` looks names and URIs up in it. None of them judges: rights come as functions.
"""

from sluicegate.catalog_cache.cache import RECONFIGURED, CatalogCache, ListSettings
from sluicegate.catalog_cache.target_resolver import MayList, Resolver, ServerSnapshots

__all__ = ["RECONFIGURED", "CatalogCache", "ListSettings", "MayList", "Resolver", "ServerSnapshots"]
