"""The search finds about as many of a published benchmark's tools as the docs say, and more than a substring search."""

import json

from bench.retrieval import recall


def test_recall_on_a_published_benchmark() -> None:
    found = recall.measure(json.loads(recall.FILE.read_text()))
    for kind, least in {"steps": (0.70, 0.73), "questions": (0.36, 0.42)}.items():
        assert all(share >= bar for share, bar in zip(found[kind]["find_tools"], least, strict=True)), found
    for kind in found.values():
        for ours, plain in zip(kind["find_tools"], kind["substring"], strict=True):
            assert ours >= plain + 0.15
