"""A stdio server that does what its arguments and its tools' names say. Run as a child process by the tests."""

import json
import os
import signal
import subprocess
import sys
import time

MODES = set(sys.argv[1:])
if "MODES_FILE" in os.environ:  # what it is may change from start to start
    with open(os.environ["MODES_FILE"]) as modes:
        MODES |= set(modes.read().split())
if "STARTS_FILE" in os.environ:
    with open(os.environ["STARTS_FILE"], "a") as starts:
        starts.write("started\n")
IS_MODERN = "modern" in MODES
seen: list[dict] = []
asked: dict[str, int] = {}


def send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def raw(members: str) -> None:
    sys.stdout.write('{"jsonrpc":"2.0",' + members + "}\n")
    sys.stdout.flush()


def answer(id: object, value: object) -> None:
    extra = {"resultType": "complete"} if IS_MODERN else {}
    send(id=id, result={"content": [{"type": "text", "text": json.dumps(value)}], **extra})


def notify(method: str, **params: object) -> None:
    send(method=method, params=params)


def progress(token: object, *values: float) -> None:
    for value in values:
        notify("notifications/progress", progressToken=token, progress=value)


def call(id: int, name: str, params: dict) -> None:  # noqa: C901 - a list of tricks
    token = params.get("_meta", {}).get("progressToken")
    if name == "echo":
        answer(id, params.get("arguments"))
    elif name == "seen":
        answer(id, seen)
    elif name == "progress":
        progress(token, 1, 1, 2)
        progress(987654, 3)
        answer(id, "done")
        progress(token, 4)
    elif name == "slow":  # longer than the timeout in all, but with news in between
        for step in range(1, 8):
            time.sleep(0.2)
            progress(token, step)
        answer(id, "done")
    elif name == "liar":
        sys.stdout.write("this is no JSON\n\n[]\n{}\n" + '{"jsonrpc": "2.0", "id": 1e400, "result": {}}\n')
        send(id=424242, result={"content": "of nobody"})
        send(id=str(id), result={"content": "of a string"})
        send(id=float(id) + 0.5, result={})
        send(id=None, error={"code": 1, "message": "of nothing"})
        answer(id, "truth")
        answer(id, "again")
    elif name == "broken":
        send(id=id, result=["no object"])
    elif name == "infinite":
        raw(f'"id":{id},"result":{{"content":[],"x":[1e999]}}')
    elif name == "infinite meanwhile":
        asked["inf"] = id
        raw(f'"method":"notifications/progress","params":{{"progressToken":{json.dumps(token)},"progress":1e999}}')
        raw('"method":"notifications/message","params":{"level":"info","data":-1E+0400}')
        raw(f'"id":"inf","method":"elicitation/create","params":{{"message":"x","x":{"1" * 400}.5}}')
    elif name == "ask":
        for number, method in enumerate(("roots/list", "sampling/createMessage", "elicitation/create", "ping")):
            asked[f"ask{number}"] = id
            send(id=f"ask{number}", method=method, params={})
    elif name == "logs":
        notify("notifications/message", level="debug", data="low")
        notify("notifications/message", level="error", data="high")
        answer(id, "done")
    elif name == "die":
        sys.exit(3)
    elif name == "last words":
        answer(id, "bye")
        sys.exit(0)
    elif name == "big":
        sys.stdout.write("x" * (9 * 1024 * 1024) + "\n")
        sys.stdout.flush()
    elif name == "many":
        sys.stdout.write('{"jsonrpc":"2.0","method":"x"}\n' * 5_000)
        answer(id, "done")
    elif name.startswith("wide"):  # a notification of as many values first, which is nobody's
        notify("notifications/message", level="error", data=[1] * 1_000)
        head, result = f'"jsonrpc":"2.0","id":{id}', f'"result":{json.dumps({"content": [[]] * 1_000})}'
        sys.stdout.write("{%s,%s}\n" % ((head, result) if name == "wide first" else (result, head)))
        sys.stdout.flush()
    elif name == "flood":
        for _ in range(64):
            sys.stderr.write("e" * (1 << 20) + "\n")
        sys.stderr.write("the end\n")
        sys.stderr.flush()
        answer(id, "done")
    elif name == "inside":
        answer(id, {"env": dict(os.environ), "cwd": os.getcwd(), "fds": sorted(os.listdir("/proc/self/fd"))[:-1]})
    elif name == "fork":
        grandchild = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        answer(id, [os.getpid(), grandchild.pid])
    elif name == "changed":
        notify("notifications/tools/list_changed")
        answer(id, "done")
    elif name == "deaf":
        time.sleep(600)


def discover(id: int) -> None:
    versions = ["2026-07-28"] + (["2025-11-25"] if "dual" in MODES else [])
    capabilities = {"tools": {"listChanged": True}}
    send(id=id, result={"resultType": "complete", "supportedVersions": versions, "capabilities": capabilities})


def serve(message: dict) -> None:  # noqa: C901
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None:
        call_id = asked.pop(message["id"])
        if not asked:
            answer(
                call_id,
                [entry.get("error", {}).get("code", entry.get("result")) for entry in seen if "method" not in entry],
            )
    elif method == "server/discover" and "silent-at-probe" in MODES:
        sys.stderr.write("server/discover? Never heard of it.\n")
    elif method == "initialize" and "exit-at-handshake" in MODES:
        sys.exit(4)
    elif method == "server/discover" and "wide-at-probe" in MODES:
        send(id=id, result={"pad": [1] * 1_000})
    elif method == "server/discover" and "infinite-at-probe" in MODES:
        raw(f'"id":{id},"result":{{"x":1e999}}')
    elif method == "server/discover" and IS_MODERN:
        discover(id)
    elif method == "subscriptions/listen" and IS_MODERN:
        tag = {"io.modelcontextprotocol/subscriptionId": id}
        notify("notifications/subscriptions/acknowledged", _meta=tag, notifications=params["notifications"])
        notify("notifications/tools/list_changed", _meta={"io.modelcontextprotocol/subscriptionId": 5555})
        notify("notifications/tools/list_changed", _meta=tag)
    elif method == "initialize" and (not IS_MODERN or "dual" in MODES):
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        send(
            id=id,
            result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": {"name": "scripted"}},
        )
        if "exit-after-start" in MODES:
            sys.exit(0)
    elif method == "logging/setLevel":
        send(id=id, result={})
    elif method == "tools/list":
        send(
            id=id,
            result={
                "tools": [{"name": "echo", "inputSchema": {"type": "object"}, "execution": {}}],
                "nextCursor": None,
            },
        )
    elif method == "tools/call":
        call(id, params["name"], params)
    elif method == "ping":
        send(id=id, result={})
    elif id is not None:
        if method == "server/discover":
            sys.stderr.write("server/discover is not known here\n")
            sys.stderr.flush()
        send(id=id, error={"code": -32601, "message": "Method not found"})


if "exit-at-start" in MODES:
    sys.exit(1)
if "downloads" in MODES:  # as package runners do: it reads nothing meanwhile
    for step in range(10):
        sys.stderr.write(f"downloading {step}\n")
        sys.stderr.flush()
        time.sleep(0.2 if "slowly" in MODES else 0.1)
if "exit-at-probe" in MODES and "discover" in (first := sys.stdin.readline()):
    sys.exit(1)
elif "exit-at-probe" in MODES:
    seen.append(json.loads(first))
    serve(seen[-1])
if "hang" in MODES:
    time.sleep(600)
if "stubborn" in MODES:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    seen.append(json.loads(line))
    serve(seen[-1])
if "stubborn" in MODES:
    time.sleep(600)
