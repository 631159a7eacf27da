"""What every test shares: asyncio is the event loop that Sluice runs on, and Hypothesis draws the same in every run."""

import os
import signal
import ssl
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from socketserver import StreamRequestHandler
from typing import Any

import pytest
from dear_files import order_of
from httpx._config import DEFAULT_TIMEOUT_CONFIG, create_ssl_context
from httpx._transports import default
from hypothesis import HealthCheck, settings
from quick import EXAMPLES, is_quick

from sluicegate.audit import bounded
from sluicegate.protocol import jsonrpc
from sluicegate.runtime import loop_budget

# How busy a machine is is no reason to fail, and what fails once fails again. Others are drawn with
# `--hypothesis-profile=default`.
settings.register_profile("calm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("calm"), max_examples=EXAMPLES)
settings.load_profile("calm")

# The tests' own clients wait 60 seconds for a busy machine, and not the 5 of httpx. The clients of the product name
# their own timeouts, which this does not change.
for _part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _part, 60.0)

# A text has 0.03 s of processor time to be searched for secrets. Here CPython's collector alone takes 0.2 s of it when
# it walks thousands of tests; a Sluice keeps what it imported out of that walk.
bounded._START = 1.0  # type: ignore[misc]


@cache
def _machines_trust(trust_env: bool, *_where: str | None) -> ssl.SSLContext:
    return create_ssl_context(trust_env=trust_env)


def _shared_trust(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is not True or cert:
        return create_ssl_context(verify, cert, trust_env)
    return _machines_trust(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


# A client of httpx reads the authorities that the machine trusts, also for plain HTTP, and that takes 20 ms of the
# processor. The suite makes thousands of clients, so those of one process read them once.
default.create_ssl_context = _shared_trust


# What checks addresses for jsonschema compiles a grammar for each kind of them when it is imported: a second for each
# worker. No test has formats checked.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: cannot be imported

# A server of the standard library writes a head and its body apart. The second would wait 40 ms for the peer's word on
# the first, in each answer but the first of a connection.
StreamRequestHandler.disable_nagle_algorithm = True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def no_piece_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have one turn behind each piece of work, so that pieces can be counted however fast the machine is, and
    however busy."""
    monkeypatch.setattr(loop_budget, "_SHORT", 0.0)
    monkeypatch.setattr(loop_budget, "_OTHERS", 0)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all messages that come to the decoder."""
    sizes: list[int] = []
    from_json = jsonrpc.from_json

    def count(data: bytes, **options: Any) -> Any:
        sizes.append(len(data))
        return from_json(data, **options)

    monkeypatch.setattr(jsonrpc, "from_json", count)
    return sizes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-turns", action="store_true", help="name the steps of the event loop of more than 5 ms")
    parser.addoption("--rewrite-pictures", action="store_true", help="make the pictures of docs/images anew")
    parser.addoption("--quick", action="store_true", help="leave out what starts processes or takes long")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and config.getoption("--quick") and not is_quick(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A quick run takes one event loop of the two. What takes longest begins first."""
    if config.getoption("--quick"):
        items[:] = [item for item in items if "asyncio" not in item.name.partition("[")[2].rstrip("]").split("-")]
    order = order_of([item.path for item in items])
    items.sort(key=lambda item: order(item.path))


def pytest_configure(config: pytest.Config) -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would all that tests start. Every Sluice that a test
    starts as a process writes its slow steps where `--slow-turns` reads them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--quick"):
        settings.load_profile("quick")
    if config.getoption("--slow-turns"):
        os.environ.setdefault("SLUICE_SLOW_TURNS", os.path.join(tempfile.mkdtemp(prefix="slow-turns-"), "turns"))


def _show_slow_turns(terminalreporter: pytest.TerminalReporter) -> None:
    file = Path(os.environ.get("SLUICE_SLOW_TURNS", ""))
    places: dict[str, list[float]] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        took, _, where = line.partition(" ")
        places.setdefault(where, []).append(float(took))
    terminalreporter.section("steps of the event loop over 5 ms: how many, the longest, where")
    for where, found in sorted(places.items(), key=lambda entry: -max(entry[1])):
        terminalreporter.line(f"{len(found):6d} {max(found):8.1f} ms  {where}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time goes, in continuous integration; and what held up the event loop, where that is asked for."""
    if terminalreporter.config.getoption("--slow-turns"):
        _show_slow_turns(terminalreporter)
    if "CI" not in os.environ:
        return
    seconds: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::")[0].rpartition("/")[0]] += report.duration
    terminalreporter.section("minutes of one worker, by folder")
    for folder, spent in seconds.most_common():
        terminalreporter.line(f"{spent / 60:6.1f}  {folder}")
