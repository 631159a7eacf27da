"""Mutation testing by mutmut: of a seeded random sample of each room's mutants, how many do the tests kill?

It works in build/mutants and goes on where it was: what is known of a mutant stays until its function changes.
`--again` runs those that lived once more, for tests that are new. [tool.mutmut] in pyproject.toml has rooms and tests.
"""

import argparse
import contextlib
import io
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "mutants"
COPIED = ("tests", "policies", "docs", "README.md")
LINKS = {"sluicegate": "proxy/sluicegate", "mutants/.peers": ".peers", **{name: name for name in COPIED}}
KILLED = {1, 3, 24, -24, 36, 152, 255, -9}  # a test failed; or it took far too long
NAMED = {"sluicegate/policy/": "policy", "sluicegate/approval/": "approval", "sluicegate/audit/": "audit"}


def lay_out() -> None:
    """mutmut takes names of modules from paths, so the package stands in the folder that it runs in."""
    (PLACE / "mutants").mkdir(parents=True, exist_ok=True)
    for name, source in LINKS.items():
        if not (PLACE / name).is_symlink():
            (PLACE / name).symlink_to(ROOT / source)
    config = (ROOT / "pyproject.toml").read_bytes()
    if not (PLACE / "pyproject.toml").is_file() or (PLACE / "pyproject.toml").read_bytes() != config:
        (PLACE / "pyproject.toml").write_bytes(config)
    stats = PLACE / "mutants" / "mutmut-stats.json"  # which test runs what; a changed test may run something else
    newest = max(test.stat().st_mtime for test in (ROOT / "tests").rglob("*.py"))
    if stats.is_file() and stats.stat().st_mtime < newest:
        stats.unlink()
    os.chdir(PLACE)


def generate() -> dict[str, Path]:
    """All mutants by name, with the file that has their results."""
    from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants

    copy_src_dir()
    copy_also_copy_files()
    with contextlib.redirect_stdout(io.StringIO()):
        create_mutants(1)
    return {name: file for file in Path("mutants").rglob("*.meta") for name in _results(file)}


def _results(file: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = json.loads(file.read_text())["exit_code_by_key"]
    return found


def room(file: Path) -> str:
    path = file.relative_to("mutants").as_posix()
    return next((name for folder, name in NAMED.items() if path.startswith(folder)), "border")


def interval(killed: int, of: int) -> tuple[float, float]:
    """Wilson's, at 95 %."""
    z, share = 1.96, killed / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def run(names: list[str], jobs: int) -> None:
    for start in range(0, len(names), 200):
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names[start : start + 200]]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(done.stdout[-4000:])


def main() -> None:
    rooms = [*NAMED.values(), "border"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms)}; all if none is given")
    parser.add_argument("--sample", type=int, default=200, help="mutants of each room; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="run those that lived once more")
    parser.add_argument("--without", action="append", default=[], metavar="FILE", help="draw no mutant of this file")
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - set(rooms):
        parser.error(f"no such room: {', '.join(unknown)}")
    lay_out()
    mutants = generate()
    print(f"seed {asked.seed}")
    for name in asked.rooms or rooms:
        all_of_it = sorted(mutant for mutant, file in mutants.items()
                           if room(file) == name and file.name.removesuffix(".meta") not in asked.without)  # fmt: skip
        size = min(asked.sample or len(all_of_it), len(all_of_it))
        drawn = random.Random(f"{asked.seed} {name}").sample(all_of_it, size)
        code = {one: _results(mutants[one])[one] for one in drawn}
        run([one for one in drawn if code[one] is None or (asked.again and code[one] not in KILLED)], asked.jobs)
        alive = sorted(one for one in drawn if _results(mutants[one])[one] not in KILLED)
        low, high = interval(size - len(alive), size)
        print(f"{name:10} {len(all_of_it):6} mutants, {size:5} drawn, {size - len(alive):5} killed: "
              f"{1 - len(alive) / size:6.1%} ({low:.1%} to {high:.1%})", flush=True)  # fmt: skip
        shown = [subprocess.run([sys.executable, "-m", "mutmut", "show", one], capture_output=True, text=True).stdout
                 for one in alive]  # fmt: skip
        Path(f"alive-{name}-{asked.seed}.txt").write_text("\n".join(shown))


if __name__ == "__main__":
    main()
