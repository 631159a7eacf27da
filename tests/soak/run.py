"""The long soak: eight hours of a gateway with every feature on, in one. Prints a row for each bar; exits with 1 if one
is not held. Run it with: make soak, or SLUICE_SOAK_MINUTES=2 PYTHONPATH=tests python tests/soak/run.py.

What makes one hour eight:

- What Sluice does by the hour or keeps for hours (the deletion of old audit segments, sessions of clients that never
  say goodbye, finished approvals, sessions of the console) has an eighth of its life. What is kept for a day would
  never end in an hour: it has a part of that eighth. `fast_clock_sluice.py` has all of it; the config has the rest:
  segments of the log are an hour old at most, and are kept for an hour and twenty minutes.
- What people and machines do comes eight times as often as in a busy day: about 20 calls a second; the policy and the
  config change every minute; a process of a server is killed twice a minute, a server goes away every two minutes; an
  approval is asked for every three seconds, a definition changes twice a minute, a login ends every two minutes.

Everything is on: keys, tokens and sessions; rows, argument rules, rates, blocks; approvals held, pending, remembered,
denied, expired, withdrawn, and as tasks; pins; toolsets and search; inspection of results, hooks on calls, results and
approvals, the detector of secrets, a sandbox; large answers in parts; questions of servers; tasks; logins; the audit
log with its sync, sinks, checkpoints, rotation and retention; metrics, spans, notifications; the admin API and the
console, with streams of both. What cannot be in one process is not: workers, and replicas on PostgreSQL.
Clients speak both eras and HTTP+SSE, and vanish in the middle of anything. Servers speak both eras, on pipes, over
Streamable HTTP and over HTTP+SSE.

SLUICE_SOAK_MINUTES says how long it takes (60). A short run tries the runner; its figures say little.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from e2e.sluice_process import COMMAND, clean_environment
from issuer import issuer
from peers.fleet import fixture_over_http, task_server
from peers.login.misbehaving import misbehaving
from soak import town as place
from soak.figures import FLAT, flatness, of_process, size_of
from soak.ledger import RecordLedger
from soak.operators import rounds
from soak.people import ROUNDS, keep
from soak.receiver import SoakReceiver
from soak.town import SoakTown

Json = dict[str, Any]
EVERY: Final = Path(__file__).parents[2] / "build" / "soak"
RESULT: Final = Path(__file__).with_name("latest.json")
WHOLE: Final = 60.0  # minutes of a run whose figures are kept
GAUGES: Final = {
    "sluice_event_loop_tasks": "tasks", "sluice_sessions": "sessions", "sluice_streams_open": "streams",
    "sluice_inflight": "inflight", "process_cpu_seconds_total": "cpu",
}  # fmt: skip
WORKED: Final = (
    "tools/call: ok", "tools/call: result_withheld", "prompts/get: ok", "resources/read: ok", "held: ok",
    "made again: ok", "by a grant: ok", "questions answered: ok", "tasks: completed", "logins",
    "parts that were read", "reloads", "through a sandbox and the detector",
    "answers over HTTP+SSE", "heard list_changed", "changes that the console heard of", "received at /hook/gate",
    "received at /hook/told", "received at /notify", "received at /audit", "received at /checkpoints",
    "received at /v1/traces", "definitions accepted: HTTP 200", "sluice approve: exit 0", "sluice deny: exit 0",
)  # fmt: skip
"""What has to be in the tally: else a Sluice that refuses everything would hold all other bars."""
SERVED: Final = 0.7
"""Of all calls of tools: servers die and go away, limits are reached, and some calls may not take place."""
BUGS: Final = ("sluice_task_crashes_total", "sluice_decision_errors_total", "sluice_audit_lost_total")


@dataclass(frozen=True, slots=True)
class SoakBar:
    name: str
    is_held: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok' if self.is_held else 'NOT HELD':10s}{self.name}: {self.text}"


def bar(name: str, wrong: list[str], right: str) -> SoakBar:
    return SoakBar(name, not wrong, f"{len(wrong)} wrong: {'; '.join(wrong[:5])}" if wrong else right)


# ---------------------------------------------------------------- the run


@asynccontextmanager
async def soaking(folder: Path, ledger: RecordLedger, hour: float, minute: float) -> AsyncIterator[SoakTown]:
    receiver = SoakReceiver(ledger.take)
    port = await receiver.start()
    async with AsyncExitStack() as later:
        stack = later.enter_context(ExitStack())
        site, login = stack.enter_context(misbehaving()), stack.enter_context(issuer())
        site.switches.token = {"expires_in": 12}
        urls = {"web": stack.enter_context(fixture_over_http(folder)), "jobs": stack.enter_context(task_server(folder))}
        mortals = place.make_mortals(folder)
        for mortal in mortals.values():
            mortal.start()
            stack.callback(mortal.end)
        found = place.servers(folder, site, mortals, urls)
        detects = await asyncio.to_thread(place.detector, stack, folder)
        settings = place.config(folder, port, login, found, hour, detects)
        process = await asyncio.to_thread(place.sluice, stack, settings, folder, hour)
        town = SoakTown(folder, process, login, site, mortals, settings, minute)
        yield town
        town.tally.update({f"received at {path}": count for path, count in receiver.counts.items()})


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    found: Counter[str] = Counter()
    for line in (await client.get("/metrics")).text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            found[name.partition("{")[0]] += float(value)
    return found


async def measured(town: SoakTown, seconds: float, every: float) -> list[dict[str, float]]:
    """A sample every so many seconds, also as a line of a file, where a run that is ended leaves them."""
    began, samples = time.monotonic(), list[dict[str, float]]()
    async with town.admin() as client:
        with (town.folder / "samples.jsonl").open("a") as file:
            while (at := time.monotonic() - began) < seconds:
                try:
                    series = await scraped(client)
                except httpx.HTTPError as error:
                    town.broken.append(f"no metrics after {at:.0f} s: {error!r}")
                    series = {}
                held = await asyncio.to_thread(of_process, town.process.process.pid)
                sizes = {name: await asyncio.to_thread(size_of, town.folder / name) for name in ("state", "audit")}
                gauges = {short: series.get(name, 0.0) for name, short in GAUGES.items()}
                samples.append({"at": round(at, 1), **held, **gauges, **sizes})
                file.write(json.dumps(samples[-1]) + "\n")
                file.flush()
                if len(samples) % 6 == 1:
                    print(shown(samples[-1]), flush=True)
                await asyncio.sleep(began + len(samples) * every - time.monotonic())
    return samples


def shown(sample: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.1f}" for name, value in sample.items())


async def live(town: SoakTown, seconds: float, every: float) -> list[dict[str, float]]:
    """All rounds of all people for so long; then what is open may end."""
    people = [asyncio.create_task(keep(town, one, pause)) for one, many, pause in [*ROUNDS, *rounds(town)]
              for _ in range(many)]  # fmt: skip
    try:
        return await measured(town, seconds, every)
    finally:
        town.is_over = True
        await asyncio.wait(people, timeout=90)
        for one in people:
            one.cancel()
        async with town.admin() as lea:
            for _ in range(60):
                if await open_approvals(lea):
                    await asyncio.sleep(0.5)


async def open_approvals(lea: httpx.AsyncClient) -> list[Json]:
    """Those that wait for a decision, or to be used."""
    pages = [await lea.get("/api/v1/approvals", params={"state": state}) for state in ("pending", "approved")]
    return [row for page in pages for row in page.json()["approvals"]]


# ---------------------------------------------------------------- the bars


def seen(folder: Path, server: str) -> Counter[int]:
    """The calls that a server wrote down, by the numbers among their arguments."""
    numbers: Counter[int] = Counter()
    for line in (folder / server / "seen.jsonl").read_text().splitlines():
        message = json.loads(line)
        if message["method"] == "tools/call" and isinstance(message["params"].get("arguments", {}).get("n"), int):
            numbers[message["params"]["arguments"]["n"]] += 1
    return numbers


def failures(log: Path) -> Iterator[str]:
    """What Sluice logs of a task that died, and of any failure of its own."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            if record["level"] in ("error", "critical") or "exception" in record:
                yield f"{record['event']} {record.get('exception', '')[-300:]}"
        elif "Traceback" in line or "never retrieved" in line:
            yield line


def verified(*words: str) -> tuple[list[str], int]:
    """What `sluice audit verify` finds wrong, and how many records it read."""
    command = [*COMMAND, "audit", "verify", "--json", *words]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    if not done.stdout:
        return [done.stderr[-500:]], 0
    found = json.loads(done.stdout)
    wrong = [str(finding) for report in found["writers"] for finding in report["findings"]]
    wrong += [f"{report['tail']} records are not signed" for report in found["writers"] if report["tail"]]
    records = sum(report["records"] for report in found["writers"])
    return wrong + ([] if found["ok"] or wrong else [done.stderr[-500:]]), records


def not_worked(tally: Counter[str], series: Collection[str]) -> list[str]:
    """What nobody has seen to work, and what was not measured."""
    calls = {name: count for name, count in tally.items() if name.startswith("tools/call: ")}
    served = tally["tools/call: ok"] / max(1, sum(calls.values()))
    wrong = [f"{served:.0%} of all calls of tools were served"] if served < SERVED else []
    wrong += [f"never: {name}" for name in WORKED if not tally[name]]
    return wrong + [f"no metric {name}" for name in (*GAUGES, *BUGS) if name not in series]


def bars(
    town: SoakTown, ledger: RecordLedger, series: dict[str, float], code: int, samples: list[dict[str, float]]
) -> list[SoakBar]:
    folder = town.folder
    flat = [SoakBar(f"flat within 5 %, {row.name}", row.is_held, str(row)) for row in flatness(samples, FLAT)]
    counted = {server: seen(folder, server) for server in place.RECORDERS}
    calls = sum(sum(numbers.values()) for numbers in counted.values())
    unmatched = [line for server, numbers in counted.items() for line in ledger.not_recorded(server, numbers)]
    unmatched += [f"call {call} for {server} has no outcome" for call, server in ledger.open.items()]
    public = str(folder / "state/audit" / "sign.pub")
    whole, records = verified(str(folder / "whole"), "--key", public)
    kept, left = verified("-c", str(folder / "sluice.yaml"))
    ends = ledger.ends()
    return [
        *flat,
        bar("no task crashed, no internal error",
            [f"{name} {series[name]:g}" for name in BUGS if series.get(name)] + list(failures(folder / "sluice.log")),
            "no crashed task, no failed decision, no lost record; nothing in the log"),
        bar("everything was used, and worked", not_worked(town.tally, series),
            f"{len(WORKED)} kinds of answers and deliveries came, and at least {SERVED:.0%} of all calls were served"),
        bar("every call is recorded", unmatched,
            f"{calls:,} calls that servers wrote down have one intent each; {ledger.types['intent']:,} intents have an "
            f"outcome"),
        bar("every record is verified", ledger.problems + whole + kept,
            f"{records:,} records, of which retention has left {left:,}"),
        bar("every approval ended once", ledger.not_ended_once(), f"{sum(ends.values()):,} approvals: {dict(ends)}"),
        bar("the soak itself", town.broken + ([] if code == 0 else [f"Sluice ended with {code}"]),
            "no client of it broke, and Sluice ended in good order"),
    ]  # fmt: skip


async def soak(minutes: float, folder: Path) -> tuple[list[SoakBar], Json]:
    seconds = minutes * 60
    (folder / "whole").mkdir()
    ledger = RecordLedger(folder / "whole" / "sluice.jsonl")
    async with soaking(folder, ledger, seconds / 8, 60 if minutes >= 20 else 12) as town:
        samples = await live(town, seconds, min(10.0, seconds / 48))
        async with town.admin() as client:
            series = await scraped(client)
        code = await asyncio.to_thread(town.process.interrupt)
    ledger.finish(folder / "audit")
    found = bars(town, ledger, series, code, samples)
    calls = sum(count for name, count in town.tally.items() if name.startswith("tools/call: "))
    about = {
        "minutes": minutes, "python": platform.python_version(), "cores": os.cpu_count(),
        "calls a second": round(calls / seconds, 1),
        "cpu of one core": round((samples[-1]["cpu"] - samples[0]["cpu"]) / (samples[-1]["at"] - samples[0]["at"]), 3),
        "records": dict(ledger.types), "outcomes": dict(ledger.outcomes.most_common()),
        "tally": dict(sorted(town.tally.items())),
        "bars": [{"name": one.name, "held": one.is_held, "text": one.text} for one in found], "samples": samples,
    }  # fmt: skip
    return found, about


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    minutes = float(os.environ.get("SLUICE_SOAK_MINUTES", "60"))
    folder = Path(tempfile.mkdtemp(prefix="sluice-soak-"))
    print(f"{minutes:g} minutes in {folder}", flush=True)
    found, about = asyncio.run(soak(minutes, folder))
    EVERY.mkdir(parents=True, exist_ok=True)
    for file in [EVERY / f"{minutes:g}-minutes.json", *([RESULT] if minutes >= WHOLE else [])]:
        file.write_text(json.dumps(about, indent=1) + "\n")
    for name in ("calls a second", "cpu of one core"):
        print(f"{name}: {about[name]}")
    for one in found:
        print(one)
    if all(one.is_held for one in found):
        shutil.rmtree(folder)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
