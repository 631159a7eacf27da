"""The section about hooks: services of the operator that are asked about calls and results."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from sluicegate.config.names import KeyName, SecretUrl, webhook_secret
from sluicegate.config.section import Section, written
from sluicegate.config.units import Timeout

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
