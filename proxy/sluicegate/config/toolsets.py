"""The section `toolsets` of the config file: endpoints that show a part of what policy allows."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, Strict

from sluicegate.config.names import Roles, ServerGlob
from sluicegate.config.section import Section
from sluicegate.config.units import WHOLE

Searching = Literal["off", "on", "auto"]
BUDGET: Final = 20_000
_Globs = tuple[ServerGlob, ...]


class ToolsetSection(Section):
    tools: _Globs = ()
    """Own tool names as SERVER/GLOB, `!SERVER/GLOB` for what is left out. With globs of this kind alone: all but these.
    """
    prompts: Annotated[_Globs | None, Field(json_schema_extra=lambda schema: schema.pop("default", None))] = None
    """The same for prompts; unless set, the prompts of the servers that `tools` names."""
    resources: Annotated[_Globs | None, Field(json_schema_extra=lambda schema: schema.pop("default", None))] = None
    """The same for URIs of resources, as their server has them; unless set, those of the servers that `tools` names."""
    roles: Roles = Field(default=(), alias="for")
    """Roles that may use the toolset; everybody if there are none."""
    default_for: Roles = ()
    """Roles that have this toolset at `/mcp` and with `sluice stdio`, too, and may use it."""

    search: Searching = "off"
    """on: tools are found by `find_tools` and called by `call_tool`, and only those of `pinned` are listed; auto: where
    a client's list is over `budget`."""
    pinned: _Globs = ()
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
