"""How often the search finds the right tool, beside a plain substring search and the whole list.

    python tests/bench/retrieval/recall.py [livemcpbench.json]

Tools and tasks are of LiveMCPBench (Apache-2.0, see `origin` in the file): 527 tools of 70 servers, 95 tasks whose
annotators wrote down steps and tools. A step is a query where its task has as many steps as tools: then its tool is
known. A question is a query for all tools of its task.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from listed import listing

from sluicegate.catalog.snapshot import Entry, ServerNaming
from sluicegate.router.tool_search import ToolIndex

Json = dict[str, Any]
FILE = Path(__file__).with_name("livemcpbench.json")
CUTS = 5, 10
BYTES_PER_TOKEN = 4
Search = Callable[[str, int], list[Entry]]


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    wanted: frozenset[str]


def entries(benchmark: Json) -> list[Entry]:
    found: list[Entry] = []
    for number, tools in enumerate(benchmark["servers"].values()):
        items = [
            {"name": tool["name"], "description": tool["description"],
             "inputSchema": {"type": "object", "properties": {name: {} for name in tool["arguments"]}}}
            for tool in tools
        ]  # fmt: skip
        found += listing(ServerNaming(f"s{number}", f"s{number}", 50), "tools/list", items, 0).entries
    return found


def steps(benchmark: Json, known: frozenset[str]) -> Iterable[Query]:
    for task in benchmark["tasks"]:
        if len(task["steps"]) == len(task["tools"]):
            for text, tool in zip(task["steps"], task["tools"], strict=True):
                if tool in known:
                    yield Query(text, frozenset({tool}))


def questions(benchmark: Json, known: frozenset[str]) -> Iterable[Query]:
    for task in benchmark["tasks"]:
        if wanted := known.intersection(task["tools"]):
            yield Query(task["question"], wanted)


def by_index(tools: list[Entry]) -> Search:
    index = ToolIndex()
    for _ in index.update(tools):
        pass
    return lambda query, limit: index.find(query, limit)[0]


def by_substring(tools: list[Entry]) -> Search:
    """Ranked by how many of the query's words stand anywhere in a definition."""
    texts = [json.dumps(tool.shown, ensure_ascii=False).lower() for tool in tools]

    def search(query: str, limit: int) -> list[Entry]:
        words = set(query.lower().split())
        scores = [(sum(word in text for word in words), -place) for place, text in enumerate(texts)]
        return [tools[-place] for score, place in sorted(scores, reverse=True)[:limit] if score]

    return search


def recall(search: Search, queries: Iterable[Query], cut: int) -> float:
    shares = [
        len(query.wanted.intersection(entry.target.own for entry in search(query.text, cut))) / len(query.wanted)
        for query in queries
    ]  # fmt: skip
    return sum(shares) / len(shares)


def measure(benchmark: Json) -> dict[str, dict[str, list[float]]]:
    """Kind of query -> way to search -> recall at each of `CUTS`."""
    tools = entries(benchmark)
    known = frozenset(tool.target.own for tool in tools)
    kinds = {"steps": [*steps(benchmark, known)], "questions": [*questions(benchmark, known)]}
    ways = {"find_tools": by_index(tools), "substring": by_substring(tools)}
    return {
        kind: {way: [recall(search, queries, cut) for cut in CUTS] for way, search in ways.items()}
        for kind, queries in kinds.items()
    }


def main(file: Path) -> None:
    benchmark = json.loads(file.read_text())
    for kind, ways in measure(benchmark).items():
        for way, shares in ways.items():
            told = (f"recall@{cut} {share:.2f}" for cut, share in zip(CUTS, shares, strict=True))
            print(f"{kind:10s} {way:11s}", *told, sep="  ")
    tools = entries(benchmark)
    whole = sum(tool.size for tool in tools) // BYTES_PER_TOKEN
    search = by_index(tools)
    answers = [sum(tool.size for tool in search(task["question"], 5)) for task in benchmark["tasks"]]
    five = sum(answers) // len(answers) // BYTES_PER_TOKEN
    print(f"tokens: the list of {len(tools)} tools {whole}; an answer with 5 {five}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FILE)
