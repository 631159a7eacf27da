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
    snapshots = (shelf.snapshot for shelf in lists.of(server_key))
    return max((len(found.entries("tools/list")) for found in snapshots if found), default=0)


def describe(lists: CatalogCache, server_key: str) -> str:
    """In a sentence or less, over all clients."""
    server, shelves = lists.servers[server_key], lists.of(server_key)
    found = [shelf for shelf in shelves if shelf.snapshot is not None]
    if server.status == "down":
        return "missing: the server is down"
    if server.status == "starting":
        why = "the server does not answer" if lists.starts.hangs(server) else "the server is still starting"
        return f"as stored: {why}" if found else f"missing: {why}"
    held = [one for shelf in found if shelf.snapshot for one in shelf.snapshot.listings.values()]
    if cut := sorted({text for one in held for text in one.cut}):
        return f"cut: {'; '.join(cut)}"
    if any(shelf.recalled for shelf in found):
        return "as stored: the server has not listed yet"
    open_ones = {method for shelf in found if shelf.whole for method in KINDS if method not in shelf.whole.listings}
    if found and open_ones:
        return f"missing: {', '.join(sorted(open_ones))} was not answered"
    if found:
        return "complete"
    return "missing: the server has not listed yet" if shelves else "not asked for yet"
