"""Calls tools through Sluice like a busy client, so that a dashboard has something to show.

python traffic.py URL KEYFILE: some calls run, some are refused by the policy, some fail. Ends when it is told to.
"""

import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx

REVISION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "traffic", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALLS: list[tuple[int, str, dict[str, Any]]] = [  # how often, which tool, with what
    (8, "everything__echo", {"message": "hello"}),
    (4, "everything__get-sum", {"a": 2, "b": 3}),
    (4, "time__get_current_time", {"timezone": "Europe/Zurich"}),
    (2, "time__convert_time", {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Europe/Zurich"}),
    (1, "time__get_current_time", {"timezone": "Nowhere/Atlantis"}),  # the tool says that it failed
    (1, "everything__trigger-long-running-operation", {"duration": 2, "steps": 2}),
    (2, "everything__get-env", {}),  # the policy refuses it
]


def call(client: httpx.Client, url: str, name: str, arguments: dict[str, Any], number: int) -> None:
    message = {
        "jsonrpc": "2.0", "id": number, "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": META},
    }  # fmt: skip
    headers = {"MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": name}
    answer = client.post(url, json=message, headers=headers)
    if answer.status_code in (401, 403, 421):  # the key or the name that it is called by is wrong, and stays so
        sys.exit(f"traffic: {url} answers {answer.status_code}: {answer.text[:200]}")


def main(url: str, keyfile: str) -> None:
    headers = {
        "Authorization": f"Bearer {Path(keyfile).read_text().strip()}",
        "Accept": "application/json, text/event-stream",
    }
    weights = [weight for weight, _, _ in CALLS]
    with httpx.Client(headers=headers, timeout=30) as client:
        number = 0
        while True:
            number += 1
            _, name, arguments = random.choices(CALLS, weights)[0]
            try:
                call(client, url, name, arguments, number)
            except httpx.HTTPError as error:
                print(f"traffic: {type(error).__name__}, trying again", file=sys.stderr)
            time.sleep(random.expovariate(5))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
