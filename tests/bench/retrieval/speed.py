"""CPU seconds of the search with 10,000 tools: the index, a thousand changed definitions, and queries.

    python tests/bench/retrieval/speed.py
"""

import gc
import random
import time
from collections.abc import Iterable
from typing import Any

from listed import listing

from sluicegate.catalog.snapshot import Entry, ServerNaming
from sluicegate.router.tool_search import ToolIndex, prepare

Json = dict[str, Any]
TOOLS, CHANGED = 10_000, 1_000
VERBS = "create delete list get update search read write send archive merge close open fetch move copy rename".split()
NOUNS = "issue request repository file folder message channel event contact invoice order page database table".split()
FILLER = "this tool works with the resource and returns details for the given identifier in your workspace".split()
QUERIES = "create an issue in a repository", "send message to channel", "workspace details identifier resource tool"


def definitions() -> list[Json]:
    dice = random.Random(1)
    return [
        {"name": f"{dice.choice(VERBS)}_{dice.choice(NOUNS)}_{number}",
         "description": " ".join(dice.choice(FILLER) for _ in range(30)),
         "inputSchema": {"type": "object", "properties": {f"{noun}_id": {} for noun in dice.sample(NOUNS, 4)}}}
        for number in range(TOOLS)
    ]  # fmt: skip


def entries(items: list[Json]) -> Iterable[Entry]:
    return listing(ServerNaming("s", "s", 50), "tools/list", items, 0).entries


def update(index: ToolIndex, listed: Iterable[Entry]) -> tuple[float, float]:
    """The whole, and the longest step."""
    began, longest = time.process_time(), 0.0
    since = began
    for _ in index.update(listed):
        now = time.process_time()
        longest, since = max(longest, now - since), now
    return time.process_time() - began, longest


def main() -> None:
    prepare()
    items, index = definitions(), ToolIndex()
    for what in (f"index of {TOOLS}", f"{CHANGED} changed"):
        listed = entries(items)
        gc.freeze()  # as where Sluice serves
        whole, longest = update(index, listed)
        print(f"{what}: {whole:.2f} s, longest step {longest * 1e3:.1f} ms")
        items = [{**one, "description": f"new {n}"} if n < CHANGED else one for n, one in enumerate(items)]
    for query in QUERIES:
        began = time.process_time()
        _, matching = index.find(query, 5)
        print(f"{query!r}: {(time.process_time() - began) * 1e3:.1f} ms, {matching} match")


if __name__ == "__main__":
    main()
