"""A server on the official SDK 1.x that does what it is told with files, sockets and processes. Run with that SDK's
Python, on stdio."""

import os
import socket
import subprocess
from collections.abc import Callable

from mcp.server.fastmcp import FastMCP

server = FastMCP("prying")


def told(act: Callable[[], object]) -> str:
    try:
        return f"ok {act()}"
    except OSError as error:
        return f"no {error.strerror}"


@server.tool()
def read(path: str) -> str:
    return told(lambda: open(path).read())


@server.tool()
def write(path: str, text: str) -> str:
    def act() -> int:
        with open(path, "w") as file:
            return file.write(text)

    return told(act)


@server.tool()
def reach(port: int) -> str:
    return told(lambda: socket.create_connection(("127.0.0.1", port), 5).close())


@server.tool()
def about() -> dict[str, str]:
    """Its home folder, its working directory, the folders at the root, its rights, its session, and how many processes
    it sees."""
    home = os.environ["HOME"]
    with open("/proc/self/status") as status:
        rights = next(line.split()[1] for line in status if line.startswith("CapEff"))
    return {
        "home": f"{home} {os.listdir(home)}", "cwd": os.getcwd(), "root": " ".join(sorted(os.listdir("/"))),
        "token": os.environ.get("TOKEN", ""), "others": str(len([one for one in os.listdir("/proc") if one.isdigit()])),
        "rights": rights, "session": str(os.getsid(0)),
    }  # fmt: skip


@server.tool()
def leave() -> str:
    """Starts a process in a session of its own."""
    subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    return "ok"


server.run()
