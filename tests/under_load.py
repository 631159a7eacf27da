"""Runs test files that start processes beside busy loops: a test that counts on a quiet machine fails here.

    python tests/under_load.py                      every such file, three times, beside 8 loops; then a table
    python tests/under_load.py tests/e2e --jobs 4   these files or folders, four at once
    python tests/under_load.py --sample 5           five of them, drawn anew each time; prints the seed that draws them

A run that was stopped goes on where it was: what was green is in `build/under-load/results.json`. `--fresh` forgets it.
A file starts processes if it, its conftest or a module that either of them imports, in the tests or in Sluice, uses
one of Python's ways to start one. Exit code: 0 all green, 1 otherwise.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
RESULTS = ROOT / "build" / "under-load"
STARTS = re.compile(
    r"\b(subprocess|Popen|create_subprocess_\w+|open_process|run_process|multiprocessing|ProcessPoolExecutor"
    r"|posix_spawnp?|os\.(fork|spawn\w+|system|popen)|forkpty|pexpect)\b"
)
# A regular expression, because each worker of a quick run reads all modules: syntax trees take ten times as long.
IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
ALIASES = re.compile(r"#.*|\s+as\s+\w+")
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"
NO_TESTS = 5  # pytest's exit code for an empty file


# ---------------------------------------------------------------- which files


def that_start_processes(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if any(map(starts_processes, imported_by([file, *conftests(file)])))]


@cache
def starts_processes(file: Path) -> bool:
    return bool(STARTS.search(file.read_text()))


def imported_by(files: list[Path]) -> set[Path]:
    """These files and all of ours that they import, at any depth."""
    seen: set[Path] = set()
    waiting = [*files]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += imports(file)
    return seen


@cache
def imports(file: Path) -> list[Path]:
    names: set[str] = set()
    for base, several, plain in IMPORTS.findall(file.read_text()):
        named = re.findall(r"[\w.]+", ALIASES.sub("", several or plain))
        names.update((base, *(f"{base}.{name}" for name in named)) if base else named)
    return [found for name in names for found in modules(name, file.parent)]


@cache
def modules(name: str, beside: Path) -> list[Path]:
    """Also what stands beside the file: pytest and Python look there first."""
    paths = [base.joinpath(*name.split(".")) for base in (beside, TESTS, ROOT / "proxy")]
    return [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]


def conftests(file: Path) -> list[Path]:
    """Those of the folders in `tests/`: the one above them starts nothing, and chooses by these rules itself."""
    folders = [folder for folder in file.parents if TESTS in folder.parents]
    return [found for folder in folders if (found := folder / "conftest.py").is_file()]


# ---------------------------------------------------------------- how they run


def log_of(file: Path, round_: int) -> Path:
    return RESULTS / f"{'-'.join(file.relative_to(TESTS).with_suffix('').parts)}.{round_}.log"


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """They end with this process, also where it is killed."""
    command = [sys.executable, "-c", LOOP, str(os.getpid())]
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(file: Path, round_: int, patience: float) -> tuple[str, float]:
    """What became of one file ("ok" or the first thing that went wrong) and its seconds. Its output is kept."""
    log = log_of(file, round_)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", str(file)]
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            stop(process)
            return f"not done in {patience:.0f} s", time.monotonic() - began
    seconds = time.monotonic() - began
    if code in (0, NO_TESTS):
        return "ok", seconds
    bad = re.findall(r"^(?:FAILED|ERROR) \S*?::(\S+)", log.read_text(), re.MULTILINE)
    return f"{len(bad)} failed: {bad[0]}" if bad else f"exit code {code}", seconds


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGINT first, so that pytest ends what its fixtures started."""
    for word in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, word)
            process.wait(60)
            return


# ---------------------------------------------------------------- results


def load(fresh: bool) -> dict[str, dict[str, list[object]]]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / "results.json"
    return json.loads(file.read_text()) if file.is_file() and not fresh else {}


def save(results: dict[str, dict[str, list[object]]]) -> None:
    new = RESULTS / "results.new"
    new.write_text(json.dumps(results, indent=1, sort_keys=True))
    new.replace(RESULTS / "results.json")


def table(results: dict[str, dict[str, list[object]]], names: list[str], rounds: int) -> str:
    width = max(map(len, names))
    lines = []
    for name in names:
        runs = [results.get(name, {}).get(str(number), ["not run", 0]) for number in range(1, rounds + 1)]
        cells = [f"{seconds:>5.0f} s" if said == "ok" else f"{said}" for said, seconds in runs]
        lines.append(f"{name:{width}}  {'ok ' if all(said == 'ok' for said, _ in runs) else 'BAD'}  {'  '.join(cells)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="test files or folders (default: all tests)")
    parser.add_argument("--loops", type=int, default=8, help="busy loops beside them (8)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each file has to be green (3)")
    parser.add_argument("--jobs", type=int, default=1, help="files at once (1)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run of a file (1800)")
    parser.add_argument("--sample", type=int, help="so many files, drawn; keeps no results")
    parser.add_argument("--seed", type=int, help="what draws them (new each time)")
    parser.add_argument("--fresh", action="store_true", help="forgets the results of earlier runs")
    parser.add_argument("--list", action="store_true", help="prints the files and runs none")
    options = parser.parse_args()
    paths = [path.resolve() for path in options.paths or [TESTS]]
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    chosen = that_start_processes(sorted(files))
    if options.sample:
        seed = random.randrange(1_000_000) if options.seed is None else options.seed
        print(f"drawn with --sample {options.sample} --seed {seed}, out of {len(chosen)} files", flush=True)
        chosen = sorted(random.Random(seed).sample(chosen, min(options.sample, len(chosen))))
    names = [str(file.relative_to(ROOT)) for file in chosen]
    if options.list or not names:
        print("\n".join(names))
        return 0 if names else 1
    results = {} if options.sample else load(options.fresh)
    RESULTS.mkdir(parents=True, exist_ok=True)

    def work(round_: int, file: Path) -> None:
        name = str(file.relative_to(ROOT))
        said, seconds = run(file, round_, options.timeout)
        with one_at_a_time:
            results.setdefault(name, {})[str(round_)] = [said, round(seconds, 1)]
            if not options.sample:
                save(results)
            print(f"{name} round {round_}: {said}, {seconds:.0f} s", flush=True)
            if options.sample and said != "ok":
                print(log_of(file, round_).read_text()[-20_000:], flush=True)

    one_at_a_time = threading.Lock()
    missing = [
        (round_, file)
        for round_ in range(1, options.rounds + 1)
        for file, name in zip(chosen, names, strict=True)
        if results.get(name, {}).get(str(round_), [""])[0] != "ok"
    ]
    with busy_loops(options.loops), ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(work, *one) for one in missing]
        try:
            for done in runs:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"\nbeside {options.loops} busy loops, {options.jobs} at once, Python {sys.version.split()[0]}")
    print(table(results, names, options.rounds))
    good = [
        name
        for name in names
        if all(results.get(name, {}).get(str(n), [""])[0] == "ok" for n in range(1, options.rounds + 1))
    ]
    print(f"{len(good)} passed, {len(names) - len(good)} failed")
    return 0 if len(good) == len(names) else 1


if __name__ == "__main__":
    raise SystemExit(main())
