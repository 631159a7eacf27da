"""An upper bound of the steps that `re` takes to match an expression at one position, from the expression's own tree.

A repetition that may end in several ways multiplies what comes behind it; one that is possessive or atomic, or whose
last character cannot begin what comes behind it, does not. Characters are judged by a sample of each kind.
"""

import re
from collections.abc import Iterable
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

SAMPLES: Final = "".join(map(chr, range(128))) + "\x85\xa0éßµƒ²½：＝。、…―─│•█“”„«»’\u3000密码는พаς🙂\u0300\u200b"
_ALL: Final = (1 << len(SAMPLES)) - 1
LONG: Final = 64 * 1024  # turns of a repetition without an end: no text that is searched is longer
_MOST: Final = 1e30
_DEEP: Final = 8  # turns whose ways are multiplied: more of them are no better known than "too many"
_REPEATS: Final = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)
_CATEGORIES: Final = {
    c.CATEGORY_DIGIT: r"\d", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_SPACE: r"\s", c.CATEGORY_NOT_SPACE: r"\S",
    c.CATEGORY_WORD: r"\w", c.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
Nodes = list[tuple[Any, Any]]


def steps(pattern: str, flags: int = 0) -> float:
    tree = _parser.parse(pattern, flags)
    return _sequence(list(tree), tree.state.flags, _ALL, 0)[0]


def _set(expression: str, flags: int) -> int:
    """The samples that a set of characters has, a bit for each."""
    matches = re.compile(expression, flags & re.IGNORECASE).match
    return sum(1 << at for at, char in enumerate(SAMPLES) if matches(char))


def _samples(op: Any, argument: Any, flags: int) -> int | None:
    """What one node for one character takes; None for other nodes."""
    if op is c.ANY:
        return _ALL if flags & re.DOTALL else _ALL & ~(1 << SAMPLES.index("\n"))
    if op in (c.LITERAL, c.NOT_LITERAL):
        found = _set(re.escape(chr(argument)), flags) or _set("ƒ", 0)  # letters that are no sample are like this one
        return found if op is c.LITERAL else _ALL & ~found
    if op is not c.IN:
        return None
    found, is_negated = 0, False
    for kind, value in argument:
        if kind is c.NEGATE:
            is_negated = True
        elif kind is c.LITERAL:
            found |= _set(re.escape(chr(value)), flags)
        elif kind is c.RANGE:
            found |= _set(f"[{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}]", flags)
        else:
            found |= _set(_CATEGORIES[value], flags)
    return _ALL & ~found if is_negated else found


def _group_flags(argument: Any, flags: int) -> int:
    return int((flags | argument[1]) & ~argument[2])


def _first(nodes: Nodes, flags: int) -> tuple[int, bool]:
    """With what the nodes may begin, and whether they may take nothing."""
    begins = 0
    for op, argument in nodes:
        found, is_empty = _first_of(op, argument, flags)
        begins |= found
        if not is_empty:
            return begins, False
    return begins, True


def _first_of(op: Any, argument: Any, flags: int) -> tuple[int, bool]:
    own = _samples(op, argument, flags)
    if own is not None:
        return own, False
    if op is c.BRANCH:
        parts = [_first(list(branch), flags) for branch in argument[1]]
        return _union(begins for begins, _ in parts), any(is_empty for _, is_empty in parts)
    if op is c.SUBPATTERN:
        return _first(list(argument[3]), _group_flags(argument, flags))
    if op in _REPEATS:
        begins, is_empty = _first(list(argument[2]), flags)
        return begins, is_empty or argument[0] == 0
    if op is c.ATOMIC_GROUP:
        return _first(list(argument), flags)
    if op in (c.GROUPREF, c.GROUPREF_EXISTS):
        return _ALL, True
    return 0, True  # assertions and anchors take nothing


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _literal(nodes: Nodes, flags: int) -> str:
    """The text with which the nodes begin, as far as it is one."""
    text = ""
    for op, argument in nodes if not flags & re.IGNORECASE else ():
        if op is not c.LITERAL:
            break
        text += chr(argument)
    return text


def _sequence(nodes: Nodes, flags: int, follow: int, rest: float) -> tuple[float, float]:
    """Steps of the nodes and then of what follows, which takes `rest` of them and begins with `follow`; and in how
    many ways the nodes can match."""
    work, ways = rest, 1.0
    for at in range(len(nodes) - 1, -1, -1):
        begins, is_empty = _first(nodes[at + 1 :], flags)
        work, more = _node(*nodes[at], flags, begins | (follow if is_empty else 0), work)
        work, ways = min(work, _MOST), min(ways * more, _MOST)
    return work, ways


def _node(op: Any, argument: Any, flags: int, follow: int, rest: float) -> tuple[float, float]:
    if op is c.SUBPATTERN:
        return _sequence(list(argument[3]), _group_flags(argument, flags), follow, rest)
    if op is c.ATOMIC_GROUP:
        return _sequence(list(argument), flags, _ALL, 0)[0] + rest, 1
    if op in (c.ASSERT, c.ASSERT_NOT):
        return _sequence(list(argument[1]), flags, _ALL, 0)[0] + rest, 1
    if op is c.GROUPREF:
        return 256 + rest, 1
    if op is c.BRANCH:
        return _branches([list(branch) for branch in argument[1]], flags, follow, rest)
    if op in _REPEATS:
        return _repeat(op, *argument, flags, follow, rest)
    return 1 + rest, 1


def _branches(branches: list[Nodes], flags: int, follow: int, rest: float) -> tuple[float, float]:
    """Only branches that can begin alike are tried one after the other with a part of their work done."""
    begins = [_first(branch, flags) for branch in branches]
    costs = [_sequence(branch, flags, follow, rest) for branch in branches]
    texts = [_literal(branch, flags) for branch in branches]

    def are_alike(one: int, other: int) -> bool:
        (mine, is_mine_empty), (its, is_its_empty) = begins[one], begins[other]
        is_begun = texts[one].startswith(texts[other]) or texts[other].startswith(texts[one])
        return is_begun and bool(is_mine_empty or is_its_empty or mine & its)

    alike = [[costs[other] for other in range(len(costs)) if are_alike(one, other)] for one in range(len(costs))]
    work, ways = (max(sum(cost[part] for cost in group) for group in alike) for part in (0, 1))
    return work + len(branches), ways


def _repeat(
    op: Any, least: int, most: Any, body: Any, flags: int, follow: int, rest: float
) -> tuple[float, float]:  # fmt: skip
    most = LONG if most is c.MAXREPEAT else most
    nodes = list(body)
    while len(nodes) == 1 and nodes[0][0] is c.SUBPATTERN:
        flags, nodes = _group_flags(nodes[0][1], flags), list(nodes[0][1][3])
    is_possessive = op is c.POSSESSIVE_REPEAT
    own = _samples(*nodes[0], flags) if len(nodes) == 1 else None
    if own is not None:
        is_sure = is_possessive or least == most or not own & follow
        return (2 * most + rest, 1) if is_sure else (most + (most - least + 1) * rest, most - least + 1)
    begins, is_empty = _first(nodes, flags)
    work, ways = _sequence(nodes, flags, _ALL if is_possessive else begins | follow, 0)
    tried = ways ** min(most, _DEEP)
    if is_possessive:
        return most * work * (tried if ways > 1 else 1) + rest, 1
    exits = most - least + 1 if begins & follow or is_empty else 1
    if ways > 1:
        return work * tried * most + tried * rest * exits, tried * exits
    return most * work + exits * rest + most, exits
