"""The sections about rights: which policy there is, endpoints that show a part of what it allows, who agrees to what it
asks a human for, and which services of the operator are asked about calls and results."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, Strict

from sluicegate.config.names import KeyName, ProfileName, Roles, SecretUrl, ServerGlob, webhook_secret
from sluicegate.config.section import Section, written
from sluicegate.config.units import WHOLE, Duration, FilePath, Flag, Moment, Timeout

_Globs = tuple[Annotated[str, Field(min_length=1, max_length=200)], ...]


class HookSection(Section):
    url: SecretUrl
    """Where to: a POST with JSON; redirects are not followed."""
    on: tuple[Literal["call", "result", "approval"], ...] = Field(min_length=1)
    """call: before a call goes on; it may refuse it, or want a person asked. result: before an answer goes on; it may
    withhold it, or redact parts. approval: it is told of each that waits, and may deny it with `key`."""
    servers: _Globs = ()
    """Servers that it is about, as globs; all unless set."""
    tools: _Globs = ()
    """Own names of tools that it is about, as globs; with it the hook hears of no prompts and resources."""
    clients: _Globs = ()
    """Principals or roles that it is about, as globs; all unless set."""
    timeout: Timeout = written("500ms")
    """How long its answer may take."""
    on_failure: Literal["deny", "allow"] = "deny"
    """What happens without a verdict, because it is down, slow or wrong."""
    sees: Literal["masked", "whole"] = "masked"
    """masked: arguments and results as in the audit log, without secrets and bounded. whole: all of them."""
    secret: Annotated[SecretStr, AfterValidator(webhook_secret)] | None = None
    """What it is told is signed with: whsec_ and 24 to 64 bytes in base64."""
    key: KeyName | None = None
    """The name of the client key by which it denies approvals over the admin API. It approves none."""
    form: Literal["json", "opa"] = "json"
    """json: Sluice's own. opa: the data API of Open Policy Agent; `url` names the rule."""


Class = Literal["read", "write", "destroy"]


class Policy(Section):
    use: Literal["open", "personal", "team"] | None = None
    """A policy that comes with Sluice: personal lets everybody read and the owner change things, team knows roles and
    groups, open lets every client that gets in use everything and works on loopback only. Or name `files` of yours."""
    files: tuple[FilePath, ...] = ()
    """Rows of a policy of your own, as CSV; all files together are one policy."""
    model: FilePath | None = None
    """Deprecated, and without effect: rows are read by the one model that comes with Sluice. A file with other
    definitions is an error."""
    arguments: FilePath | None = None
    """A folder of JSON Schemas, SERVER/TOOL.json, that the arguments of calls have to meet."""
    tests: FilePath | None = None
    """What the policy promises. A policy that breaks it is not taken into use."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """shadow lets pass what the rows deny, and logs that they would have denied it; needs `until`."""
    until: Moment | None = None
    """When shadow mode ends and the rows are enforced."""
    on_deny: Literal["hide", "explain"] = "hide"
    """hide answers for a refused name as for an unknown one; explain says which rule refused it."""
    watch: Flag = True
    """Whether this file and the policy's files are taken into use when they change. SIGHUP does it in any case."""


class Profile(Section):
    tier: Literal["self", "other"]
    """self: whoever asked confirms. other: somebody else approves, never whoever asked."""
    approvers: Roles = ()
    """Who may approve, for tier other."""
    quorum: Annotated[int, Strict(), Field(ge=1, le=10), WHOLE] = 1
    """How many of them must, for tier other."""
    via: tuple[Literal["elicitation", "api"], ...] = Field(default=("elicitation", "api"), min_length=1)
    """How it is decided: by a question to the client of whoever asked (tier self only), or over the admin port, as
    `sluice approve` does."""
    expires: Timeout = written("30m")
    """How long there is to decide, and to use what was approved. Silence is a no."""
    remember: tuple[Literal["once", "session", "15m"], ...] = Field(default=("once",), min_length=1)
    """How far an approval may reach: this call; this tool until the session ends, or 30 minutes pass without a call;
    this tool for 15 minutes. Other than once only where one person decides."""
    require_reason: Flag = False
    """Whether who approves has to say why."""

    @property
    def channels(self) -> tuple[Literal["elicitation", "api"], ...]:
        """`via` as it works: with tier other nobody asks the client of whoever asked."""
        return self.via if self.tier == "self" else ("api",)


class Webhook(Section):
    type: Literal["webhook"]
    """A POST of JSON."""
    format: Literal["json", "slack", "teams", "ntfy"] = "json"
    """json: Standard Webhooks, signed. slack: an incoming webhook. teams: a webhook of Workflows. ntfy: a topic."""
    url: SecretUrl
    """Where to; redirects are not followed. A secret where it is the credential, as of Slack and Teams."""
    secret: Annotated[SecretStr, AfterValidator(webhook_secret)] | None = None
    """What the format json is signed with, and needs: whsec_ and 24 to 64 bytes in base64."""
    profiles: tuple[ProfileName, ...] = ()
    """For approvals of these profiles; of all unless set."""


class Approvals(Section):
    hold_for: Duration = written("45s")
    """How long a call waits for its approval before it is answered as pending; below what clients wait for answers."""
    profiles: dict[ProfileName, Profile] = written({})
    """What `p2` rows of the policy may ask for, besides confirm, one-of-leads and two-person."""
    notify: tuple[Webhook, ...] = ()
    """Who is told of approvals that wait."""


Searching = Literal["off", "on", "auto"]
BUDGET: Final = 20_000
_OfServers = tuple[ServerGlob, ...]


class ToolsetSection(Section):
    tools: _OfServers = ()
    """Own tool names as SERVER/GLOB, `!SERVER/GLOB` for what is left out. With globs of this kind alone: all but these.
    """
    prompts: Annotated[_OfServers | None, Field(json_schema_extra=lambda schema: schema.pop("default", None))] = None
    """The same for prompts; unless set, the prompts of the servers that `tools` names."""
    resources: Annotated[_OfServers | None, Field(json_schema_extra=lambda schema: schema.pop("default", None))] = None
    """The same for URIs of resources, as their server has them; unless set, those of the servers that `tools` names."""
    roles: Roles = Field(default=(), alias="for")
    """Roles that may use the toolset; everybody if there are none."""
    default_for: Roles = ()
    """Roles that have this toolset at `/mcp` and with `sluice stdio`, too, and may use it."""

    search: Searching = "off"
    """on: tools are found by `find_tools` and called by `call_tool`, and only those of `pinned` are listed; auto: where
    a client's list is over `budget`."""
    pinned: _OfServers = ()
    """Tools that are listed all the same, as SERVER/GLOB."""
    budget: Annotated[int, Strict(), Field(ge=100, le=10_000_000), WHOLE] = BUDGET
    """About how many tokens of definitions are too many for a list: bytes as sent, divided by 4."""

    def globs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Its lists of globs as they are written, by key."""
        yield from (("tools", self.tools), ("prompts", self.prompts or ()), ("resources", self.resources or ()))
        yield "pinned", self.pinned

    def of_servers(self, globs: tuple[str, ...] | None) -> tuple[str, ...]:
        """These globs, or all of the servers that `tools` names."""
        if globs is not None:
            return globs
        named = dict.fromkeys(glob.partition("/")[0] for glob in self.tools if not glob.startswith("!"))
        without = (glob for glob in self.tools if glob.startswith("!") and glob.endswith("/*"))
        return (*(f"{server}/*" for server in named or (("*",) if self.tools else ())), *without)
