"""How a method, a guard and a sink are added: to a copy of the package, so that what is shown is the whole change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sluicegate

PACKAGE = Path(sluicegate.__file__).parent

CALL_IT = '''
import json
import anyio
from sluicegate.audit.record import needs_intent
from sluicegate.guards import ORDER, chain
from sluicegate.guards.commit import commit
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.protocol import legacy_client, modern_client
from sluicegate.protocol.jsonrpc import Request
from sluicegate.protocol.model import Call, Client, Decision, Result, Target, Verdict
from sluicegate.protocol.revisions import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION

reached, intents = [], []

async def resolve(call):
    return Target("files", "tool", call.params["name"], "files__" + call.params["name"])

def decide(call, target):
    return Decision(Verdict.DENY if target.own == "secret" else Verdict.ALLOW, "row 1", "because")

async def spend(key, seconds):
    return True

async def intend(call, approval):
    if needs_intent(call):
        intents.append(call.params.get("name"))
    return True

async def server(call):
    reached.append(call.params.get("name"))
    return Result({"done": True})

guards = dict.fromkeys(ORDER) | {
    "name": name(resolve, {"files": None}.__getitem__),
    "enforce": enforce(decide, lambda target, arguments: None, lambda: False),
    "commit": commit(spend, intend),
}
handler = chain(guards, server)
meta = {PROTOCOL_VERSION: "2026-07-28", CLIENT_INFO: {"name": "c", "version": "1"}, CLIENT_CAPABILITIES: {}}

async def main():
    answers = {}
    for own in ("open", "secret"):
        outcome = await handler(Call(Client("alice"), "made/up", {"name": own}))
        answers[own] = getattr(outcome, "message", "done")
    modern = modern_client.parse(Request(1, "made/up", {"name": "open", "_meta": meta}), None)
    legacy = legacy_client.parse(Request(1, "made/up", {"name": "open"}), "2025-11-25", None)
    edges = [isinstance(one, modern_client.Parsed) for one in (modern, legacy)]
    print(json.dumps({"answers": answers, "reached": reached, "intents": intents, "edges": edges}))

anyio.run(main)
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "sluicegate", ignore=shutil.ignore_patterns("__pycache__")))


def add_line(file: Path, after: str, line: str) -> None:
    text = file.read_text()
    assert text.count(after) == 1
    file.write_text(text.replace(after, after + line))


def run(package: Path, script: str) -> Any:
    environment = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=package.parent, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def with_row(package: Path, row: str) -> Any:
    add_line(package / "protocol" / "methods.py", "_ROWS: Final = (\n", f"    {row},\n" if row else "")
    return run(package, CALL_IT)


def test_a_method_without_a_row_does_not_exist(package: Path) -> None:
    missing = "Method not found"
    assert with_row(package, "") == {
        "answers": {"open": missing, "secret": missing}, "reached": [], "intents": [], "edges": [False, False],
    }  # fmt: skip


@pytest.mark.parametrize("target", ["", ', target_field="name", kind="tool"'])
def test_a_method_whose_row_does_not_say_what_judges_it_is_refused(package: Path, target: str) -> None:
    refused = "Denied: no rule can be about made/up."
    assert with_row(package, f'Method("made/up"{target})') == {
        "answers": {"open": refused, "secret": refused}, "reached": [], "intents": [], "edges": [True, True],
    }  # fmt: skip


def test_a_method_with_one_row_is_judged_and_gets_an_intent(package: Path) -> None:
    row = 'Method("made/up", judged_by="target", target_field="name", kind="tool")'
    assert with_row(package, row) == {
        "answers": {"open": "done", "secret": "Unknown tool: secret"}, "reached": ["open"], "intents": ["open"],
        "edges": [True, True],
    }  # fmt: skip


def test_an_intent_is_waived_by_name(package: Path) -> None:
    row = 'Method("made/up", _MODERN, judged_by="target", target_field="name", kind="tool", intent="waived")'
    assert with_row(package, row) == {
        "answers": {"open": "done", "secret": "Unknown tool: secret"}, "reached": ["open"], "intents": [],
        "edges": [True, False],
    }  # fmt: skip


def test_a_method_that_has_no_target_passes_only_where_its_row_says_so(package: Path) -> None:
    assert with_row(package, 'Method("made/up", judged_by="none")')["reached"] == ["open", "secret"]


# ---------------------------------------------------------------- a guard

GUARD = '''"""closed: nothing is called at night."""

from sluicegate.protocol.model import Call, Guard, Handler, Outcome, refuse


def closed(is_night: bool) -> Guard:
    async def guard(call: Call, inner: Handler) -> Outcome:
        return refuse(call.method, "denied", "Closed.") if is_night else await inner(call)

    return guard
'''

PASS_IT = '''
import json
import anyio
from sluicegate.guards import ORDER, RESUMED, chain
from sluicegate.guards.closed import closed
from sluicegate.protocol.model import Call, Client, Result

async def server(call):
    return Result({"done": True})

async def main():
    call = Call(Client("alice"), "tools/call", {"name": "x"})
    guards = dict.fromkeys(ORDER) | {"closed": closed(is_night=True)}
    reasons = [(await chain(guards, server, order)(call)).reason for order in (ORDER, RESUMED)]
    try:
        chain({name: None for name in ORDER if name != "closed"}, server)
    except ValueError:
        reasons.append("not wired")
    print(json.dumps(reasons))

anyio.run(main)
'''


def test_a_guard_is_one_file_and_its_name_in_each_chain_that_it_is_of(package: Path) -> None:
    (package / "guards" / "closed.py").write_text(GUARD)
    add_line(package / "guards" / "__init__.py", '    "quota",  # per-tool rate\n', '    "closed",\n')
    assert run(package, PASS_IT) == ["denied", None, "not wired"]  # the pipeline must say what it makes of it


# ---------------------------------------------------------------- a sink

SINK = '''"""Records into one file that is not ours."""


class FileChannel:
    def __init__(self, settings):
        self._file = open(settings.headers["path"], "ab")

    def send(self, records):
        self._file.writelines(line + b"\\n" for _, line in records)
        self._file.flush()

    def close(self):
        self._file.close()
'''

SEND_IT = '''
import json
from pathlib import Path
from sluicegate.audit.settings import SinkSettings
from sluicegate.audit.sinks import open_channel
from sluicegate.config.audit import Sink

Sink.model_validate({"name": "disk", "to": "file://host/x"})
channel = open_channel(SinkSettings("disk", "file://host/x", {"path": "records"}))
channel.send([(None, b"one"), (None, b"two")])
channel.close()
print(json.dumps(Path("records").read_text().split()))
'''


def test_a_sink_is_one_file_and_its_scheme(package: Path) -> None:
    (package / "audit" / "file_sink.py").write_text(SINK)
    sinks = package / "audit" / "sinks.py"
    add_line(sinks, "Callable[[SinkSettings], Channel]]] = {\n", '    "file": FileChannel,\n')
    import_line = "from sluicegate.audit.file_sink import FileChannel\n"
    add_line(sinks, "from sluicegate.audit.follow import Follower\n", import_line)
    add_line(package / "config" / "audit.py", "SINK_SCHEMES: Final = (", '"file", ')
    assert run(package, SEND_IT) == ["one", "two"]
