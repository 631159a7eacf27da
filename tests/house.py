"""What the code looks like, in figures: of this tree, or of a commit of it beside this tree.

    python tests/house.py [--before COMMIT] [--names]

Lines of code are those without comments, docstrings and blank lines. `--names` prints what the counts consist of.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Words that a reader of HTTP and MCP does not expect as identifiers, or that meant several things at once.
BANNED = {
    "ballot", "desk", "ear", "gate", "kept", "known", "law", "matter", "meaning", "means", "meeting", "page",
    "pinboard", "place", "said", "seat", "share", "shelf", "shelves", "sight", "stance", "told", "way", "ways", "world",
}  # fmt: skip
# Modules that are found by their folder or are started by name, so that nothing needs to import them.
PLUGINS = ("guards", "cli", "demo", "downstream/transport", "audit/sinks")
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Source:
    """One module, parsed once."""

    def __init__(self, path: Path, package: Path) -> None:
        self.name = str(path.relative_to(package))
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def code_lines(self) -> int:
        rows = {row for one in self.tokens if one.type not in SKIPPED for row in range(one.start[0], one.end[0] + 1)}
        return len(rows - set(self._docstring_rows()))

    @property
    def comments(self) -> int:
        """Rows that hold a comment for readers; directives to tools are none."""
        said = (one for one in self.tokens if one.type == tokenize.COMMENT)
        return len({one.start[0] for one in said if not one.string.startswith(("# fmt:", "# type:", "# noqa", "#!"))})

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def identifiers(self) -> Iterator[str]:
        return (one.string for one in self.tokens if one.type == tokenize.NAME)

    def imports(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def _docstring_rows(self) -> Iterator[int]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
                match node.body[0]:
                    case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=last):
                        yield from range(first, (last or first) + 1)


def figures(root: Path) -> dict[str, tuple[float, list[str]]]:
    """What is counted -> the figure, and what it consists of."""
    package = root / "proxy" / "sluicegate" if (root / "proxy" / "sluicegate").is_dir() else root / "proxy"
    sources = [Source(path, package) for path in sorted(package.rglob("*.py"))]
    tests = [Source(path, root) for path in sorted((root / "tests").rglob("*.py"))]
    dotted = {one.name: package.name + "." + one.name.removesuffix(".py").replace("/", ".") for one in sources}
    importers = defaultdict[str, set[str]](set)
    for one in sources:
        for name in one.imports():
            importers[name].add(one.name)
    lonely = [
        one.name for one in sources
        if len(importers[dotted[one.name]]) == 1 and not one.name.startswith(PLUGINS) and "__" not in one.name
    ]  # fmt: skip
    homes = defaultdict[str, list[str]](list)
    classes = [(one.name, node) for one in sources for node in one.classes]
    for file, node in classes:
        homes[node.name].append(file)
    twice = [f"{name}: {', '.join(files)}" for name, files in sorted(homes.items()) if len(files) > 1]
    banned = Counter(name.strip("_") for one in sources for name in one.identifiers() if name.strip("_") in BANNED)
    large = [f"{file} {node.name}" for file, node in classes if (node.end_lineno or 0) - node.lineno >= 250]
    code = sum(one.code_lines for one in sources)
    comments = sum(one.comments for one in sources)
    sleeps = [one.name for one in tests for _ in range(one.text.count("sleep("))]
    skips = [f"{one.name}: {why}" for one in tests for why in skip_reasons(one)]
    return {
        "files of the product": (len(sources), []),
        "lines": (sum(one.lines for one in sources), []),
        "lines of code": (code, []),
        "comments per 100 lines of code": (round(100 * comments / code, 1), []),
        "modules with one importer": (len(lonely), lonely),
        "class names defined more than once": (len(twice), twice),
        "banned identifiers": (banned.total(), [f"{name} {count}" for name, count in banned.most_common()]),
        "classes over 250 lines": (len(large), large),
        "modules over 600 lines": (len(long := [one.name for one in sources if one.lines > 600]), long),
        "sleeps in tests": (len(sleeps), [f"{name} {count}" for name, count in Counter(sleeps).most_common()]),
        "places in tests that skip": (len(skips), skips),
    }


def skip_reasons(source: Source) -> Iterator[str]:
    """The text of each `pytest.skip`, `skipif` and `importorskip`, as it stands in the file."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "skip" in node.func.attr:
            yield " ".join(ast.unparse(node).split())[:150]


def at_commit(commit: str, folder: Path) -> Path:
    """That commit's files, in a folder of their own."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="print that commit's figures beside this tree's")
    parser.add_argument("--names", action="store_true", help="print what the counts consist of")
    options = parser.parse_args()
    now = figures(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        before = figures(at_commit(options.before, Path(folder))) if options.before else {}
    for what, (figure, names) in now.items():
        print(f"{what:38}{before[what][0] if before else '':>10}{figure:>10}")
        if options.names:
            print(*(f"    {name}" for name in names), sep="\n")


if __name__ == "__main__":
    main()
