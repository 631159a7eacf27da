"""How complete the lists are, for people and for clients: which servers they lack, and why. Changes nothing."""

from typing import Literal

from sluicegate.catalog.snapshot import KINDS
from sluicegate.catalog_cache.cache import CatalogCache


def missing(lists: CatalogCache, server_key: str, is_known: bool) -> Literal["", "starting", "failed", "hung"]:
    """Why a client's lists have nothing of that server, "" if they have something (`is_known`) or are about to."""
    server = lists.servers[server_key]
    if server.status == "down":
        return "failed"
    if server.status != "starting" or is_known:
        return ""
    return "hung" if lists.starts.hangs(server) else "starting"


def count_tools(lists: CatalogCache, server_key: str) -> int:
    """In the longest list of them that any scope was served, what is withheld not counted."""
    snapshots = (catalog.snapshot for catalog in lists.catalogs.of(server_key))
    return max((len(found.entries("tools/list")) for found in snapshots if found), default=0)


def describe(lists: CatalogCache, server_key: str) -> str:
    """In a sentence or less, over all clients."""
    server, catalogs = lists.servers[server_key], lists.catalogs.of(server_key)
    found = [catalog for catalog in catalogs if catalog.snapshot is not None]
    if server.status == "down":
        return "missing: the server is down"
    if server.status == "starting":
        why = "the server does not answer" if lists.starts.hangs(server) else "the server is still starting"
        return f"as stored: {why}" if found else f"missing: {why}"
    held = [one for catalog in found if catalog.snapshot for one in catalog.snapshot.listings.values()]
    if cut := sorted({text for one in held for text in one.cut}):
        return f"cut: {'; '.join(cut)}"
    if any(catalog.recalled for catalog in found):
        return "as stored: the server has not listed yet"
    wholes = [catalog.whole for catalog in found if catalog.whole]
    open_ones = {method for whole in wholes for method in KINDS if method not in whole.listings}
    if found and open_ones:
        return f"missing: {', '.join(sorted(open_ones))} was not answered"
    if found:
        return "complete"
    return "missing: the server has not listed yet" if catalogs else "not asked for yet"
