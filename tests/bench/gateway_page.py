"""What `--peers` measured, as the performance page has it: a table and a chart for each machine. Measures nothing."""

import json
import math
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from subjects import ROOT

RESULTS: Final = Path(__file__).parent / "results"
IMAGES: Final = ROOT / "docs" / "images"
PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
_PART: Final = re.compile(r"(?<=<!-- make bench ARGS=--peers -->\n).*?(?=\n<!-- end of the gateways -->)", re.DOTALL)
_NONE: Final = "no answer in time"
Json = dict[str, Any]


def name_of(result: Json) -> str:
    """`peers-amd-epyc-2-cores`: results of another machine stand beside these."""
    on = result["machine"]
    return "peers-" + re.sub(r"[^a-z0-9]+", "-", f"{on['cpu']} {on['cores']} cores".lower()).strip("-")


def keep(result: Json) -> None:
    """Writes the result, its chart and the page."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name_of(result)}.json").write_text(json.dumps(result, indent=2) + "\n")
    write()


def write() -> None:
    for result in results():
        (IMAGES / f"{name_of(result)}.svg").write_text(chart(result))
    PAGE.write_text(_PART.sub(lambda _: part(results()), PAGE.read_text()))


def results() -> list[Json]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("peers-*.json"))]


def part(found: Iterable[Json]) -> str:
    """All machines' tables and charts."""
    shown = "![CPU and latency of a call through each gateway](../images/{}.svg)\n\n{}"
    return "\n\n".join(shown.format(name_of(one), table(one)) for one in found)


def times_of(at: Json, form: str) -> str:
    """How many times nginx, in that form; nothing for nginx itself."""
    ratio = at["ratio"]
    return "" if ratio is None else form.format(f"{ratio:,.{1 if ratio < 100 else 0}f}x")


def table(result: Json) -> str:
    lines = [
        "| gateway | CPU us a call at 16 (times nginx) | p50, p99 us at 1 | at 16 | at 64 | calls/s, 64 | MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        at, middle = row["at"], row["at"]["16"]
        latencies = [f"{at[c]['p50']:,.0f}, {at[c]['p99']:,.0f}" if c in at else _NONE for c in ("1", "16", "64")]
        cpu = f"{middle['cpu']:,.0f}{times_of(middle, ' ({})')}"
        end = [f"{at['64']['rate']:,.0f}" if "64" in at else "", f"{middle['memory']:.0f}"]
        lines.append("| " + " | ".join([row["name"], cpu, *latencies, *end]) + " |")
    for name, why in result["missing"].items():
        lines.append(f"| {name} | **not measured**: {why} | | | | | |")
    on = result["machine"]
    about = (
        f"{on['date']}, {on['cores']} cores, {on['cpu']}, Python {on['python']}, {on['nginx'].split()[-1]}, Sluice "
        f"{on['sluice']}; the middle of {result['rounds']} rounds. Before them the machine had a load of {on['load']}."
    )
    if "disk_us" in on:
        about += " A write that ends on the disk takes {:,} us, {:,} at p99.".format(*on["disk_us"])
    return "\n".join([*lines, "", fill(about, 120)])


# ---------------------------------------------------------------- the chart

_STYLE: Final = """
  .card { fill: #ffffff } .text { fill: #24292f } .soft { fill: #57606a } .line { stroke: #d0d7de }
  .other { stroke: #6e7781; fill: #6e7781 } .ours { stroke: #0969da; fill: #0969da }
  text { font: 12px system-ui, sans-serif; stroke: none } .small { font-size: 10px } .head { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22 } .text { fill: #e6edf3 } .soft { fill: #9198a1 } .line { stroke: #3d444d }
    .other { stroke: #9198a1; fill: #9198a1 } .ours { stroke: #4493f8; fill: #4493f8 }
  }
"""
_WIDTH: Final = 800
_TOP: Final = 62
_ROW: Final = 46
_CPU: Final = (170, 380)
_TIME: Final = (490, 780)


class _Scale:
    """A logarithmic axis of whole powers of ten between two positions."""

    def __init__(self, values: Iterable[float], ends: tuple[int, int]) -> None:
        known = [max(value, 1.0) for value in values]
        self._low = math.floor(math.log10(min(known)))
        self._high = max(math.ceil(math.log10(max(known))), self._low + 1)
        self._left, self._width = ends[0], ends[1] - ends[0]

    def at(self, value: float) -> float:
        share = (math.log10(max(value, 1.0)) - self._low) / (self._high - self._low)
        return round(self._left + share * self._width, 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _text(x: float, y: float, text: str, kinds: str = "text", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kinds}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kinds: str, width: float = 1) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kinds}" stroke-width="{width}"/>'


def _duration(us: float) -> str:
    return f"{us:,.0f} us" if us < 1_000 else f"{us / 1_000:,.0f} ms" if us < 1_000_000 else f"{us / 1_000_000:,.0f} s"


def chart(result: Json) -> str:
    """CPU of a call, and its latency from p50 to p99 at 1, 16 and 64 at once, as SVG. On a card of its own, so that it
    is read on any page; dark where the reader's system is."""
    rows = result["rows"]
    figures = [at for row in rows for at in row["at"].values()]
    cpu = _Scale([row["at"]["16"]["cpu"] for row in rows], _CPU)
    latency = _Scale([at[which] for at in figures for which in ("p50", "p99")], _TIME)
    bottom = _TOP + _ROW * len(rows)
    height = bottom + 34 + 16 * len(result["missing"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>CPU and latency of a call through each gateway, {escape(result['machine']['date'])}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" rx="6" class="card"/>',
        _text(_CPU[0], 20, "CPU of a call, 16 at once", "text head"),
        _text(_TIME[0] - 50, 20, "Latency, p50 (dot) to p99, at 1, 16 and 64 at once", "text head"),
    ]
    for scale in (cpu, latency):
        for value in scale.ticks():
            x, name = scale.at(value), _duration(value)
            parts += [_line(x, _TOP - 14, x, bottom, "line"), _text(x, _TOP - 20, name, "soft small", "middle")]
    for number, row in enumerate(rows):
        parts += _drawn(row, _TOP + _ROW * number, cpu, latency)
    for number, (name, why) in enumerate(result["missing"].items()):
        parts.append(_text(16, bottom + 18 + 16 * number, f"{name}: not measured, {why}"[:140], "soft small"))
    parts.append(_text(_WIDTH - 16, height - 10, f"{result['machine']['date']}, log scales", "soft small", "end"))
    return "\n".join([*parts, "</svg>", ""])


def _drawn(row: Json, top: int, cpu: _Scale, latency: _Scale) -> list[str]:
    kind = "ours" if row["name"].startswith("Sluice") else "other"
    middle, y = row["at"]["16"], top + 20
    x, used = cpu.at(middle["cpu"]), f"{middle['cpu']:,.0f} us{times_of(middle, ', {}')}"
    side = "end" if x > _CPU[1] - 60 else "middle"
    parts = [
        _text(16, y + 4, row["name"]),
        _line(_CPU[0], y, x, y, kind, 3),
        f'<circle cx="{x}" cy="{y}" r="4" class="{kind}"/>',
        _text(x, y - 9, used, "soft small", side),
    ]
    for step, (at_once, at) in enumerate(row["at"].items()):
        level = y - 13 + 13 * step
        parts += [
            _text(_TIME[0] - 10, level + 3, at_once, "soft small", "end"),
            _line(latency.at(at["p50"]), level, latency.at(at["p99"]), level, kind, 2),
            f'<circle cx="{latency.at(at["p50"])}" cy="{level}" r="3" class="{kind}"/>',
        ]
    return parts
