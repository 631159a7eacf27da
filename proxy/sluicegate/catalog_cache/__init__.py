"""Every server's tools, prompts and templates, kept per scope, and the way from a public name to its server.

`walk` asks one server for one whole list, within bounds; `shelves` decides when, once for everybody who waits, and
keeps what came; `resolve` looks names and URIs up in it. None of them judges: what a client may see they are told.
"""

from sluicegate.catalog_cache.cache import CatalogCache
from sluicegate.catalog_cache.settings import ListSettings
from sluicegate.catalog_cache.target_resolver import Known, MayList, Resolver

__all__ = ["CatalogCache", "Known", "ListSettings", "MayList", "Resolver"]
