"""A process that wants tokens: so many calls at once, each refused once where `refused` is said. It prints what came.

    python renewing_child.py FOLDER URL CALLS renew|refused|live

`live` renews until it is killed, and prints each generation that it was given. Its clock is CALLS hours ahead.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from login_bench import Clock

from sluicegate.app.login_service import opener
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.login.logins import Logins
from sluicegate.login.model import LoginNeeded, LoginSettings, LoginUnavailable
from sluicegate.store.sqlite import SqliteStore


async def main(folder: Path, url: str, calls: int, how: str) -> None:
    clock = Clock(time.time, calls * 3600.0 if how == "live" else 0.0)
    store = SqliteStore(folder / "state" / "sluice.db", clock)
    fetcher = Fetcher(Egress(["127.0.0.1"]), within=2.0)
    logins = Logins(store, opener(folder / "keys", "file"), fetcher, lambda event: None, clock)
    logins.configure({"srv": LoginSettings("srv", url, url)})
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

    async def call() -> str:
        try:
            bearer = await logins.bearer("srv", "local")
            if how == "refused":
                bearer = await logins.rejected("srv", "local", bearer, 401, ["Bearer"])
            return f"{bearer.generation} {bearer.token}"
        except (LoginNeeded, LoginUnavailable) as error:
            return f"{type(error).__name__} {error}"

    while how == "live":
        bearer = await logins.bearer("srv", "local")
        print(bearer.generation, flush=True)
        clock.added += 2 * 3600.0

    found = await asyncio.gather(*(call() for _ in range(calls)))
    print(json.dumps(sorted(set(found))), flush=True)
    await logins.aclose()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
