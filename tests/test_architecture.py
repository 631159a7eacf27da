"""The layers, the size of files and where broad excepts may stand: the shape of the code, kept by a test."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "proxy" / "sluicegate").rglob("*.py"))

LAYERS = {
    0: {"protocol", "telemetry", "config", "deferred", "__init__"},
    1: {"catalog", "outcomes", "oauth"},
    2: {"policy", "approval", "audit", "hub", "store", "metrics", "tracing", "series", "http", "runtime", "hooks"},
    3: {"guards", "router", "catalog_cache", "listen", "downstream", "login", "issuer", "admin", "console", "detector"},
    4: {"app", "cli", "desktop", "__main__", "demo"},
}
LAYER = {room: layer for layer, rooms in LAYERS.items() for room in rooms}
# Inside layer 3 rooms never import one another, but the router is made of the lists it answers from.
ALLOWED_BESIDE = {("router", "catalog_cache")}
# One third-party library, one home.
HOMES = {
    "prometheus_client": {"metrics"},
    "structlog": {"telemetry"},
    "opentelemetry": {"tracing"},
    "pydantic": {"config"},
    "pydantic_core": {"protocol", "config"},
    "sqlite3": {"store"},
    "psycopg": {"store"},
    "cryptography": {"store"},
    "nacl": {"audit"},
    "casbin": {"policy"},
    "jsonschema_rs": {"policy"},
    "httpx": {"approval", "downstream", "audit", "http", "cli", "demo", "admin", "listen", "hooks"},
    "httpx_sse": {"http"},
    "regex": {"audit"},
    "standardwebhooks": {"approval", "hooks", "detector"},
    "httptools": {"http", "listen"},
    "jwt": {"listen", "cli", "oauth"},
    "uvicorn": {"listen"},
    "starlette": {"admin", "app", "console", "detector"},
    "typer": {"cli", "__main__"},
    "rich": {"cli"},
    "ruamel": {"config", "desktop", "policy"},
}
DECLARED = """
anyio
casbin
cryptography
httptools
httpx
httpx_sse
jsonschema_rs
jwt
nacl
opentelemetry
prometheus_client
psycopg
pydantic
pydantic_core
regex
rich
ruamel
sluicegate
standardwebhooks
starlette
structlog
typer
uvicorn
uvloop
"""
IO_MODULES = {"anyio", "asyncio", "socket", "httpx", "subprocess", "sqlite3", "threading", "ssl"}
BROAD_EXCEPTS = {
    "proxy/sluicegate/guards/__init__.py": "the guard chain",
    "proxy/sluicegate/policy/judge.py": "a decision",
    "proxy/sluicegate/downstream/session/connection.py": "a connection's task",
    "proxy/sluicegate/listen/listener.py": "a listener's request",
    "proxy/sluicegate/listen/jsonrpc_session.py": "a listener's request",
    "proxy/sluicegate/listen/asgi.py": "a listener's request",
    "proxy/sluicegate/audit/log.py": "a record that is composed",
    "proxy/sluicegate/telemetry.py": "supervise",
    "proxy/sluicegate/app/reload.py": "files that are judged and not taken into use",
    "proxy/sluicegate/store/sqlite.py": "a job in the store's thread",
    "proxy/sluicegate/config/os_keyring.py": "a keyring's backend",
    "proxy/sluicegate/__main__.py": "the command line's main",
    "proxy/sluicegate/cli/__init__.py": "the command line's main",
}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT / "proxy" / "sluicegate").with_suffix("").parts
    return parts[0]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((submodule(node.module or "", alias.name), node.lineno) for alias in node.names)


def submodule(package: str, name: str) -> str:
    """`from package import module` imports the module, not what the package makes of it."""
    path = ROOT.joinpath("proxy", *package.split("."), name)
    return f"{package}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else package


def own_imports(path: Path) -> set[str]:
    return {name for name, _ in imports(path) if name == "sluicegate" or name.startswith("sluicegate.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_only_rooms_below_it(path: Path) -> None:
    here = room(path)
    assert here in LAYER, f"room {here} has no layer"
    for name in own_imports(path):
        there = name.split(".")[1] if "." in name else "__init__"
        if there in (here, "__init__") or (here, there) in ALLOWED_BESIDE:
            continue
        if there == "config":
            assert LAYER[here] == 4, f"{path} imports config: rooms get slices of it"
        elif LAYER[here] not in (0, 2, 4):
            assert LAYER[there] < LAYER[here], f"{path} imports {name}"
        else:  # vocabulary, services and the composition root may use one another
            assert LAYER[there] <= LAYER[here], f"{path} imports {name}"


def test_there_are_no_import_circles() -> None:
    graph = {module(path): own_imports(path) for path in FILES}
    assert graph.keys() >= set().union(*graph.values()), "an import that names no file cannot be followed"
    done: set[str] = set()

    def visit(node: str, above: tuple[str, ...]) -> None:
        assert node not in above, f"import circle: {' -> '.join((*above[above.index(node) :], node))}"
        if node not in done:
            for target in graph.get(node, ()):
                visit(target, (*above, node))
            done.add(node)

    for start in graph:
        visit(start, ())


def module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT / "proxy").with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_a_class_name_exists_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600, "over 600 lines: give a part of it a name and a file"
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a file opens with what it does and may not know"
    assert "upstream" not in text.lower(), "peers are named by what they are to MCP: client, server"
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    long = [one.name for one in classes if (one.end_lineno or 0) - one.lineno >= 250]
    assert not long, "over 250 lines: give a part of it a class of its own"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_stand_at_the_top_and_libraries_have_one_home(path: Path) -> None:
    top = set(top_lines(ast.parse(path.read_text()).body))
    for name, line in imports(path):
        assert line in top, f"{path}:{line}: import of {name} is not at the top"
        library = name.split(".")[0]
        if library in HOMES:
            assert room(path) in HOMES[library], f"{library} is at home in {HOMES[library]}"


def top_lines(body: list[ast.stmt]) -> Iterator[int]:
    """`if sys.platform ...:` at the top is the one condition an import may stand under."""
    for node in body:
        yield node.lineno
        if isinstance(node, ast.If) and "sys.platform" in ast.unparse(node.test):
            yield from top_lines(node.body + node.orelse)


PURE = [path for path in FILES if room(path) in ("protocol", "catalog", "oauth", "policy") and path.stem != "model"]


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.stem)
def test_pure_rooms_do_no_io(path: Path) -> None:
    used = {name.split(".")[0] for name, _ in imports(path)}
    assert not used & IO_MODULES
    assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_broad_excepts_stand_only_at_the_named_boundaries(path: Path) -> None:
    broad = [node for node in ast.walk(ast.parse(path.read_text())) if is_broad(node)]
    if str(path.relative_to(ROOT)) not in BROAD_EXCEPTS:
        assert not broad, f"line {broad[0].lineno}: except Exception outside the named boundaries"


def is_broad(node: ast.AST) -> bool:
    """One that cleans up and raises again swallows nothing."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    last = node.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    return node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")


def test_every_import_is_declared() -> None:
    declared = set(DECLARED.split())
    used = {name.split(".")[0] for path in FILES for name, _ in imports(path)}
    assert used - declared - set(sys.stdlib_module_names) == set()


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names alone: of two that are equal, it collects one in a fresh clone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
