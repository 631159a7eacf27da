"""Inside a network namespace of its own: logins whose metadata name addresses that may not be asked.

It prints what came.

    unshare --map-root-user --net --mount python metadata_elsewhere.py FOLDER

All addresses are those of one loopback device here. Something listens at each, takes what comes, and answers nothing.
One object of JSON is printed: which addresses the test itself reached, and for each case what the person was told, the
addresses that were connected to, and those that the audit log says were blocked.
"""

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import Bed, bed, client_keys
from waiting import until_so

PUBLIC, PRIVATE, METADATA = "93.184.216.34", "10.0.0.1", "169.254.169.254"
STEADY, CHANGES = "steady.example.com", "changes.example.com"
PLACES = (METADATA, PRIVATE, "[::ffff:127.0.0.1]", CHANGES, STEADY)
PARTS = ("prm", "issuer", "token")
ROWS = "p, role:everyone, *, *, *, allow\np, local, sluice, admin:*, *, allow\n"
POLICY_OF_NAMES = {STEADY: (PUBLIC,), CHANGES: (PUBLIC, PRIVATE)}


class Names(threading.Thread):
    """A DNS server (RFC 1035): the first answer for a name, then the next one, and the last one ever after."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asked: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))

    def run(self) -> None:
        while True:
            query, whom = self._socket.recvfrom(4096)
            self._socket.sendto(self.answer(query), whom)

    def answer(self, query: bytes) -> bytes:
        at, labels = 12, []
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += 1 + length
        (kind,), question = struct.unpack("!H", query[at + 1 : at + 3]), query[12 : at + 5]
        addresses = POLICY_OF_NAMES.get(name := ".".join(labels).lower(), ()) if kind == 1 else ()
        records = b""
        if addresses:
            turn = self.asked[name] = self.asked.get(name, 0) + 1
            address = addresses[min(turn, len(addresses)) - 1]
            records = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(address)
        return query[:2] + b"\x81\x80" + struct.pack("!HHHH", 1, bool(records), 0, 0) + question + records


class Listeners(threading.Thread):
    """Takes connections at all addresses, and notes at which each was."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.met: list[str] = []
        self._socket = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)

    def run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.met.append(connection.getsockname()[0].removeprefix("::ffff:"))
            connection.close()

    def taken(self) -> list[str]:
        """At which addresses it was met; that of a connection of our own, which comes last, is left out."""
        count = len(self.met)
        socket.create_connection((PUBLIC, 443)).close()
        until_so(lambda: len(self.met) > count and self.met[-1] == PUBLIC)
        taken, self.met = self.met[:-1], []
        return sorted({*taken})


def prepare(folder: Path) -> None:
    for words in (
        "ip link set lo up", f"ip addr add {PUBLIC}/32 dev lo", f"ip addr add {PRIVATE}/32 dev lo",
        f"ip addr add {METADATA}/32 dev lo", f"mount --bind {folder}/resolv.conf /etc/resolv.conf",
    ):  # fmt: skip
        subprocess.run(words.split(), check=True)


@contextmanager
def naming(site: Misbehaving, part: str, place: str) -> Iterator[None]:
    """Metadata that name that place as the resource's metadata, as the issuer, or as the token endpoint."""
    before = site.switches.challenge
    if part == "prm":
        site.switches.challenge = [f'Bearer resource_metadata="https://{place}/prm"']
    elif part == "issuer":
        site.switches.prm["authorization_servers"] = [f"https://{place}"]
    else:
        site.switches.metadata["token_endpoint"] = f"https://{place}/token"
    try:
        yield
    finally:
        site.switches.challenge = before
        site.switches.prm.clear()
        site.switches.metadata.clear()


def login(there: Bed, server: str) -> str:
    """How it ends: what the API or the last page says."""
    token = (there.folder / "state" / "operator.token").read_text().strip()
    answer = httpx.post(f"{there.process.admin}/api/v1/logins", headers={"Authorization": f"Bearer {token}"},
                        json={"server": server, "as": "ann"}, timeout=30, trust_env=False)  # fmt: skip
    if answer.status_code != 200:
        return str(answer.json()["error"])
    with Browser("ann") as browser:
        return browser.login(answer.json()["url"]).text


def main(folder: Path) -> None:
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions attempts:1\n")
    prepare(folder)
    names, listeners = Names(), Listeners(443)
    names.start()
    listeners.start()
    for address in (PUBLIC, PRIVATE, METADATA, "127.0.0.1"):
        socket.create_connection((address, 443)).close()
    reached, cases = listeners.taken(), list[dict[str, Any]]()
    with misbehaving() as site:
        keys = {f"{part}{number}": (part, place) for part in PARTS for number, place in enumerate(PLACES)}
        servers: dict[str, Any] = {key: {"url": site.mcp, "required": False} for key in keys}
        with bed(folder, ROWS, servers, clients={"keys": client_keys(ann=[])}) as there:
            for key, (part, place) in keys.items():
                names.asked.clear()
                with naming(site, part, place):
                    said = [login(there, key) for _ in range(2 if place == CHANGES else 1)]
                cases.append({"server": key, "place": place, "said": said, "met": listeners.taken()})
    blocked = [(one["for"], one["address"]) for one in there.audit() if one.get("what") == "ssrf_blocked"]
    for case in cases:
        case["blocked"] = sorted({address for whose, address in blocked if whose == f"login {case['server']}"})
    print(json.dumps({"reached": reached, "cases": cases}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
