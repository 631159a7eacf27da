"""Looks for bytes that break a target of `fuzz_targets.py`: Atheris, guided by which code of Sluice they reach.

    python tests/fuzz/fuzz_run.py                           every target for SLUICE_FUZZ_SECONDS each (60)
    python tests/fuzz/fuzz_run.py http1 sse --seconds 600   these
    python tests/fuzz/fuzz_run.py --short                   as in CI: two minutes, the same each time

Each target runs in a process of its own. What it comes to know is in build/fuzz/corpus, and it goes on from there, but
for `--short`. A finding is a file in build/fuzz/findings. Exit code: 0 without findings, 1 otherwise.
"""

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "fuzz"
_SEED = 1
# By whose branches a target is guided: less of it starts sooner, and runs faster.
CODE = {
    "http1": ["sluicegate.listen.http", "sluicegate.http.hosts"],
    "jsonrpc": ["sluicegate.protocol.jsonrpc"],
    "sse": ["sluicegate.http.sse", "httpx_sse"],
    "lines": ["sluicegate.listen.line_streams", "sluicegate.downstream.transport.stdio_transport"],
    "stdio": ["sluicegate.listen", "sluicegate.protocol"],
    "policy": ["sluicegate.policy"],
    "policy-files": ["sluicegate.policy", "sluicegate.protocol"],
    "config": ["sluicegate.config"],
    "sealed": ["sluicegate.store.keys", "sluicegate.catalog.cursor", "sluicegate.protocol.jsonrpc"],
    "jwt": ["sluicegate.listen.auth", "sluicegate.protocol.jsonrpc"],
}


def fuzz(name: str, options: list[str]) -> None:
    """One target, until libFuzzer ends the process."""
    atheris = import_module("atheris")
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=CODE[name]):
        target = import_module("fuzz_targets").TARGETS[name]
    atheris.Setup([sys.argv[0], *options], target.check)
    atheris.Fuzz()


def run(name: str, seconds: float, is_short: bool) -> bool:
    """Whether nothing was found."""
    target = import_module("fuzz_targets").TARGETS[name]
    # libFuzzer writes into the first folder that it reads. A short run has an empty one, so that the next is the same.
    corpus = Path(tempfile.mkdtemp()) if is_short else BUILD / "corpus" / name
    findings, words = BUILD / "findings" / name, BUILD / f"{name}.words"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    seeds = [str(path) for path in (HERE / "seeds" / name, HERE / "regressions" / name) if path.is_dir()]
    limit = f"-runs={10 * target.runs}" if is_short else f"-max_total_time={int(seconds)}"
    options = [
        limit, f"-seed={_SEED if is_short else 0}", f"-max_len={target.max_size}", "-timeout=20",
        "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={findings}/",
        *([f"-dict={words}"] if target.words else []), str(corpus), *seeds,
    ]  # fmt: skip
    before, began = set(findings.iterdir()), time.monotonic()
    environment = {**os.environ, "PYTHONHASHSEED": str(_SEED)}
    done = subprocess.run([sys.executable, __file__, "--target", name, *options], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    found = sorted(set(findings.iterdir()) - before)
    if is_short:
        shutil.rmtree(corpus)
    print(_line(name, done.stdout, time.monotonic() - began), flush=True)
    if done.returncode == 0 and not found:
        return True
    print(done.stdout[-6000:])
    for path in found:
        kept = HERE / "regressions" / name
        print(f"found: {path}\n  keep it: mkdir -p {kept} && cp {path} {kept}/WHAT-IT-SHOWS")
    return False


def _escaped(word: str) -> str:
    """As a dictionary of libFuzzer has it; each character is a byte."""
    return "".join(char if re.fullmatch("[A-Za-z0-9]", char) else f"\\x{ord(char):02x}" for char in word)


def _line(name: str, output: str, seconds: float) -> str:
    def last(pattern: str) -> int:
        return int((re.findall(pattern, output) or ["0"])[-1])

    runs = last(r"number_of_executed_units: (\d+)") or last(r"(?m)^#(\d+)\s")
    first, reached, corpus = re.search(r"INITED cov: (\d+)", output), last(r"\bcov: (\d+)"), last(r"corp: (\d+)")
    return (f"{name:13} {runs:9,} runs in {seconds:6.1f} s, {runs / seconds:8,.0f}/s, edges {reached} "
            f"({first[1] if first else 0} at the beginning), corpus {corpus}")  # fmt: skip


def main() -> int:
    names = list(import_module("fuzz_targets").TARGETS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SLUICE_FUZZ_SECONDS", "60")))
    parser.add_argument("--short", action="store_true")
    wanted = parser.parse_args()
    if unknown := set(wanted.names) - set(names):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return 0 if all([run(name, wanted.seconds, wanted.short) for name in wanted.names or names]) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--target"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
