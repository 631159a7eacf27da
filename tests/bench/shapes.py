"""JSON values of many shapes, each about as large as it is asked for, that cost whoever reads them the most."""

from collections.abc import Callable
from typing import Final

DEPTH: Final = 60  # under what Sluice takes, so that it is read


def _repeated(unit: str, size: int) -> str:
    return "[" + ",".join([unit] * max(1, size // (len(unit.encode()) + 1))) + "]"


def _keys(size: int) -> str:
    return "{" + ",".join(f'"{n:0>99}":0' for n in range(max(1, size // 104))) + "}"


SHAPES: Final[dict[str, Callable[[int], str]]] = {
    "wide": lambda size: _repeated("0", size),
    "deep": lambda size: _repeated("[" * DEPTH + "]" * DEPTH, size),
    "too deep": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "objects": lambda size: _repeated('{"a":{}}', size),
    "long keys": _keys,
    "one key": lambda size: '{"' + "k" * size + '":0}',
    "long numbers": lambda size: _repeated("9" * 999, size),
    "one number": lambda size: "9" * size,
    "many strings": lambda size: _repeated('"ab"', size),
    "text": lambda size: '"' + "x" * size + '"',
    "escapes": lambda size: '"' + "\\n" * (size // 2) + '"',
    "long escapes": lambda size: '"' + "\\u0061" * (size // 6) + '"',
    "pairs": lambda size: '"' + "\\ud83d\\ude00" * (size // 12) + '"',
    "astral": lambda size: '"' + "\U0001f600" * (size // 4) + '"',
    "bad JSON": lambda size: _repeated('"ab"', size)[:-1],
}
