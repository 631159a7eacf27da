"""Pages of rows, the newest last, bounded in rows and in bytes. Each row has a `cursor`, by which rows are in order.

`before=CURSOR` asks for the rows before that one, whether or not the row itself is still there.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sluicegate.protocol.jsonrpc import Json

T = TypeVar("T")
StatusAndBody = tuple[int, Json]
"""An answer of the admin API before it is encoded: its HTTP status, and its body."""
MAX_ROWS: Final = 200
DEFAULT_ROWS: Final = 100
MAX_PAGE_BYTES: Final = 1024 * 1024
"""Of all rows of one page. One row alone is smaller: its texts are cut, and a decision has at most ten votes."""
PAGE_QUERY: Final = ("before", "limit")
SHAPE: Final = f"before=CURSOR and limit=1..{MAX_ROWS}"


@dataclass(frozen=True, slots=True)
class PageRequest:
    before: str = ""
    limit: int = DEFAULT_ROWS


def read_page_request(query: Mapping[str, Sequence[str]]) -> PageRequest | None:
    """None where the query asks for no page that can be. Members come once; of other members this says nothing."""
    if any(len(values) != 1 for values in query.values()):
        return None
    before, text = query.get("before", [""])[0], query.get("limit", [str(DEFAULT_ROWS)])[0]
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_ROWS))
    return PageRequest(before, int(text)) if is_number and 1 <= int(text) <= MAX_ROWS else None


async def page_of(
    items: Sequence[T], cursor: Callable[[T], str], asked: PageRequest, row: Callable[[T], Awaitable[Json]]
) -> Json:
    """The newest `items` before the cursor; `next` is the cursor for those that are older. Rows of no other item are
    made, for a row is read from the store. Each is a step of its own."""
    found = sorted((item for item in items if not asked.before or cursor(item) < asked.before), key=cursor)
    rows: list[Json] = []
    size = 0
    while found and len(rows) < asked.limit:
        await asyncio.sleep(0)
        made = {**await row(found[-1]), "cursor": cursor(found[-1])}
        size += len(json.dumps(made))
        if rows and size > MAX_PAGE_BYTES:
            break
        rows.append(made)
        found.pop()
    rows.reverse()
    return {"rows": rows, "total": len(items), **({"next": rows[0]["cursor"]} if found else {})}


async def as_it_is(row: Json) -> Json:
    return row


async def merge_pages(pages: Sequence[Json], asked: PageRequest) -> Json:
    """One page of those of several workers. What is older than the end of a page that goes on waits for the next
    one: its worker may have rows in between."""
    end = max((page["next"] for page in pages if "next" in page), default="")
    rows = [row for page in pages for row in page["rows"] if row["cursor"] >= end]
    whole = await page_of(rows, lambda row: str(row["cursor"]), asked, as_it_is)
    more = {"next": whole.get("next", end)} if end or "next" in whole else {}
    return {"rows": whole["rows"], "total": sum(page["total"] for page in pages), **more}
