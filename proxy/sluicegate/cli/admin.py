"""How every command asks the Sluice that runs with its config.

That of a desktop client answers at a socket in the state directory, any other one at `listen.admin`. Who asks shows a
client key, or is the operator.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec

import httpx
import typer

from sluicegate import config
from sluicegate.app.instance_lock import InstanceLock
from sluicegate.cli.options import ConfigFile
from sluicegate.cli.output import Code, Stopped, info, load_sound, printable, stop, with_config
from sluicegate.cli.output import Unreachable as Unreachable
from sluicegate.config import Address, Config, ConfigError
from sluicegate.config.units import read_address
from sluicegate.store.keys import OPERATOR_ADDRESS, OPERATOR_TOKEN

TIMEOUT: Final = 10.0
FROM_ALL_WORKERS: Final = 45.0
"""Longer than the admin port waits for a worker that stands still, so that its answer says so."""
KEY_VARIABLE: Final = "SLUICE_KEY"
MAX_KEY: Final = 65_536
_KEY: Final = re.compile(r"[!-~]{1,65536}")

AdminKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", show_default=False,
                 help="A client key. Other users of this machine can see it: use --key-file or $SLUICE_KEY instead."),
]  # fmt: skip
KeyFile = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", show_default=False,
                 help="A file that holds a client key; - reads stdin. "
                      "Else $SLUICE_KEY, else the operator token in state.dir."),
]  # fmt: skip
AsOperator = Annotated[bool, typer.Option("--operator", help="Use the operator token even if $SLUICE_KEY is set.")]
P = ParamSpec("P")


def asks_running(command: Callable[Concatenate["Admin", P], None]) -> Callable[..., None]:
    """A command that asks the running Sluice: it has the options that say which one, and with which credential.

    The command itself has the parameter `admin` in their place.
    """

    def asked(
        config_file: ConfigFile = None, key_file: KeyFile = None, key: AdminKey = None, operator: AsOperator = False,
        **own: Any,
    ) -> None:  # fmt: skip
        command(Admin(config_file, key_of(key_file, key), operator), **own)  # type: ignore[call-arg]  # typer gives what P names

    shared = list(signature(asked).parameters.values())[:-1]
    own = list(signature(command).parameters.values())[1:]
    is_json = own[-1:] if own and own[-1].name == "as_json" else []
    made = signature(command).replace(parameters=[*own[: len(own) - len(is_json)], *shared, *is_json])
    asked.__name__, asked.__doc__ = command.__name__, command.__doc__
    asked.__annotations__ = {name: one.annotation for name, one in made.parameters.items()}
    setattr(asked, "__signature__", made)  # noqa: B010 - typer reads options from it; mypy does not know the attribute
    return asked


@dataclass(frozen=True, slots=True)
class GivenKey:
    """A key to show, and what a person calls the source that it comes from."""

    value: str = field(repr=False)
    source: str


def key_of(key_file: str | None, key: str | None, *, may_read_stdin: bool = True) -> GivenKey | None:
    """The key of a command line: from a file, from its arguments, or from the environment. Exits 2 for one that is no
    key; an error never shows it."""
    if key_file is not None and key is not None:
        stop(Code.USAGE, "--key-file and --key exclude one another")
    if key is not None:
        info("warning: other users of this machine can see a key in --key; use --key-file FILE or $SLUICE_KEY")
    if key_file is None:
        found = key or os.environ.get(KEY_VARIABLE)
        return GivenKey(found, "the key of --key" if key else f"the key in ${KEY_VARIABLE}") if found else None
    is_stdin = key_file == "-"
    if is_stdin and not may_read_stdin:
        stop(Code.USAGE, "stdin carries MCP here: --key-file takes a file")
    source = "stdin" if is_stdin else key_file
    try:
        with open(0 if is_stdin else key_file, "rb", closefd=not is_stdin) as file:
            value = file.read(MAX_KEY + 1).decode("ascii").strip()
    except OSError as error:
        stop(Code.USAGE, f"cannot read the key from {source}: {error.strerror}")
    except UnicodeDecodeError:
        value = ""
    if not _KEY.fullmatch(value):
        stop(Code.USAGE, f"{source} does not hold a key: one line without spaces")
    return GivenKey(value, f"the key from {source}")


class Admin:
    """The Sluice that runs with a config, as one who asks it: with a key, or as the operator."""

    def __init__(self, config_file: Path | None, key: GivenKey | None = None, as_operator: bool = False) -> None:
        if key and as_operator and not key.source.endswith(KEY_VARIABLE):
            stop(Code.USAGE, "--operator excludes --key and --key-file")
        self._named = config_file
        self._load(config_file)
        self._key = None if as_operator or key is None else key.value
        self._credential = key.source if key else ""
        self._is_named = self._is_told = False
        self._instance_lock = InstanceLock(self._loaded.state.dir, self.path)

    def _load(self, named: Path | None) -> None:
        """Of a file that is no YAML, nothing but the socket of its Sluice can be told: the socket's name is made of the
        file's path. Raises `ConfigError` where no Sluice has that."""
        self._has_port = True
        try:
            self.path, self._loaded, self._broken = load_sound(named)
        except ConfigError as error:
            self.path, self._has_port, self._broken = config.find_config(named), False, error
            directory = config.state_dir_of(self.path)
            if directory is None or InstanceLock(directory, self.path).admin() is None:
                raise
            self._loaded = config.without_servers({"state": {"dir": str(directory)}}, self.path.parent)

    def command(self, words: str) -> str:
        """As a hint shows it."""
        return with_config(f"sluice {words}", self._named)

    @property
    def config(self) -> Config:
        """Raises `ConfigError` where the file has errors: the Sluice that runs goes by what it said before."""
        if self._broken is not None:
            raise self._broken
        return self._loaded

    @property
    def is_broken(self) -> bool:
        """Whether the file has errors."""
        return self._broken is not None

    @property
    def state_dir(self) -> Path:
        return self._loaded.state.dir

    @property
    def mcp_url(self) -> str:
        """The port for clients, at the public name where it has a certificate, as that is for this name."""
        listen = self._loaded.listen
        here = f"{listen.scheme}://{reachable(listen.mcp)}/mcp"
        return here if listen.tls is None else listen.public_url or here

    @property
    def has_console(self) -> bool:
        return self._loaded.console.enabled

    @property
    def is_operator(self) -> bool:
        return self._key is None

    def exchange(
        self, what: str, params: Mapping[str, str] | None = None, body: Any = None, method: str = "",
        within: float = TIMEOUT,
    ) -> "httpx.Response":  # fmt: skip
        """One request to `/api/v1/`, a POST where there is a body. Raises `Unreachable`; exits if it is refused."""
        method = method or ("GET" if body is None else "POST")
        with self.client() as client:
            try:
                timeout = httpx.Timeout(TIMEOUT, read=within)
                response = client.request(method, what, params=params, json=body, timeout=timeout)
            except httpx.HTTPError as error:
                raise self.unanswered(client, error) from None
        self.check(response)
        return response

    def client(self) -> "httpx.Client":
        """Shows the credential with every request to `/api/v1/`. Raises `Unreachable` where there is nobody to ask, and
        `ConfigError` if that is so and the file has errors."""
        try:
            return self._client()
        except Unreachable:
            if self._broken is not None and not self._is_told:
                raise self._broken from None
            raise

    def _client(self) -> "httpx.Client":
        key, socket = self._key, self._instance_lock.admin()
        transport = httpx.HTTPTransport(uds=socket, verify=False)
        if not (socket or self._has_port):
            raise Unreachable(f"no Sluice runs with {self.path} any more", *start_hints(self._named))
        address = Address("localhost", 80) if socket else reachable(self._loaded.listen.admin)
        if key is None and socket:
            self._credential = f"the operator, by the socket in {self.state_dir}"
        elif key is None:
            key, address = self._operator()
        if sys.stderr.isatty():
            self.name_credential()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # trust_env: a proxy from the environment must never see the token
        return httpx.Client(
            base_url=f"http://{address}/api/v1/", headers=headers, transport=transport, trust_env=False, timeout=TIMEOUT
        )

    def clients(self) -> str | None:
        """The address of the socket for clients; None where they come in at `listen.mcp`."""
        address = self._instance_lock.clients()
        if self._broken is not None and not (address or self._has_port):
            raise self._broken  # its Sluice has just ended
        return address

    def unanswered(self, client: "httpx.Client", error: "httpx.HTTPError") -> Exception:
        """What to raise."""
        address = client.base_url.netloc.decode("ascii")
        where = f"{address} ({self._why(address)})" if ":" in address else f"the socket in {self.state_dir}"
        return self.nobody(f"no Sluice answers at {where}: {type(error).__name__}")

    def nobody(self, why: str) -> Exception:
        """What to raise where no Sluice answers: with errors in the file, those, unless one has answered before."""
        if self._broken is not None and not self._is_told:
            return self._broken
        return Unreachable(why, *start_hints(self._named))

    def check(self, response: "httpx.Response") -> None:
        """Exits if it is refused: says which credential was, and what is missing."""
        self.tell_broken()
        if response.status_code in (401, 403):
            self.stop(Code.AUTH, f"Sluice refuses this credential ({response.status_code})", *reasons(response))

    def tell_broken(self) -> None:
        """Once: what is wrong with the file, although somebody answers."""
        if self._broken is not None and not self._is_told:
            for finding in self._broken.findings:
                info(str(finding))
            info("the Sluice that runs goes on with what the file said before, and is asked")
        self._is_told = True

    def stop(self, code: Code, *reasons: str) -> NoReturn:
        self.name_credential()
        stop(code, *reasons)

    def name_credential(self) -> None:
        """Once, on stderr."""
        if not self._is_named:
            is_variable = self._credential.endswith(KEY_VARIABLE)
            info(f"credential: {self._credential}" + ("; --operator uses the operator token" if is_variable else ""))
        self._is_named = True

    def _why(self, address: str) -> str:
        """Why that is asked."""
        is_configured = address == str(reachable(self._loaded.listen.admin))
        return "listen.admin" if is_configured else "where the last one listened; listen.admin is another address"

    def _operator(self) -> tuple[str, Address]:
        """The token of the running Sluice, and where that listens: `listen.admin` may have changed since its start, and
        something else may listen there. Made at its start, readable for its own user, good from loopback."""
        path = self.state_dir / OPERATOR_TOKEN
        self._credential = f"the operator token in {path}"
        try:
            token = path.read_text("ascii").strip()  # first: see `publish_operator_token`
            where, _, file = path.with_name(OPERATOR_ADDRESS).read_bytes().partition(b"\n")
            address = reachable(read_address(where.decode("ascii").strip()))
        except FileNotFoundError as missing:
            reason = f"no Sluice runs with {self.path}: there is no socket for it and no {missing.filename}"
            raise Unreachable(reason, *start_hints(self._named)) from None
        except (OSError, ValueError):
            stop(Code.AUTH, f"cannot read the operator token {path} and its address; "
                            f"give a key with --key-file or ${KEY_VARIABLE}")  # fmt: skip
        is_ours = not file or file == os.fsencode(os.path.realpath(self.path))
        if not is_ours and address != reachable(self._loaded.listen.admin):  # several may share a folder
            reason = f"no Sluice runs with {self.path}: that of {path.parent} was started with {os.fsdecode(file)}"
            raise Unreachable(reason, *start_hints(self._named))
        if not address.is_loopback:
            stop(Code.AUTH, f"the operator token is for loopback only; give a key with --key-file or ${KEY_VARIABLE}")
        return token, address


def start_hints(named: Path | None) -> list[str]:
    hints = [f"start it: your desktop client does, or `{with_config('sluice serve', named)}`"]
    if sys.platform == "win32":
        hints += ["on Windows a desktop client's Sluice has no socket: pins, approvals and keys work without one"]
    return hints


def reasons(response: "httpx.Response") -> list[str]:
    try:
        return [printable(str(response.json()["error"]))]
    except (ValueError, KeyError, TypeError):
        return []


def answer(response: "httpx.Response") -> Any:
    """What stands in it, or the exit code that says why there is nothing."""
    if response.status_code == 404:
        stop(Code.NEGATIVE, *(reasons(response) or ["not found"]))
    try:
        if response.status_code == 200:
            return response.json()
    except ValueError:
        pass
    stop(Code.UNREACHABLE, f"what answers at {response.url} is no Sluice ({response.status_code})")


def reachable(address: config.Address) -> config.Address:
    """Where a listener on every address is reached from this machine."""
    if address.host in ("0.0.0.0", "::"):
        return config.Address("::1" if ":" in address.host else "127.0.0.1", address.port)
    return address


def running_servers(path: Path) -> list[dict[str, Any]] | None:
    """The servers of the Sluice that runs with this config, as its operator sees them; None where none answers."""
    try:
        with Admin(path, as_operator=True).client() as client:
            response = client.get("servers")
            return list(response.json()["servers"]) if response.status_code == 200 else None
    except (Unreachable, Stopped, httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
