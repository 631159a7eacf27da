"""Servers whose section names a variable or a file that is not there: disabled, while the rest works. Pure."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluicegate.config.finding import ConfigFinding
from sluicegate.config.models import Server
from sluicegate.config.source import Source

_OFF: Final = (False, "false")  # the text is what a `${...}` brought in


@dataclass(slots=True)
class Missing:
    """`sections` hold what can be known of each such server; `disabled` says why, of those that the file enables."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    disabled: dict[str, str] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)  # line and column of the value -> server

    def is_about(self, finding: ConfigFinding) -> bool:
        return (finding.line, finding.column) in self.owners

    def is_tolerable(self, finding: ConfigFinding) -> bool:
        """Whether it says nothing but that."""
        return finding.code in ("unset-variable", "unreadable-file") and self.is_about(finding)

    def judge(self, finding: ConfigFinding) -> ConfigFinding:
        if not self.is_tolerable(finding):
            return finding
        key = self.owners[finding.line, finding.column]
        if key not in self.disabled:
            return replace(finding, severity="warning")
        return replace(finding, message=f"the server {key} is disabled: {finding.message}")


def _section(value: Any, key: Any) -> dict[str, Any] | None:
    """What the file says of that server; None where it is no section."""
    servers = value.get("servers") if isinstance(value, dict) else None
    section = servers.get(key) if isinstance(servers, dict) else None
    return section if isinstance(section, dict) else None


def missing_in_servers(source: Source) -> Missing:
    found = Missing()
    for path, place in source.places.items():
        if path[0] != "servers" or len(path) < 3 or (why := source.missing.get(place.value)) is None:
            continue
        key, section = str(path[1]), _section(source.value, path[1])
        if section is None:
            continue  # it has another shape, which is an error of its own
        found.owners[place.value] = key
        known = found.sections.setdefault(key, _known(section))
        if path[2] in Server.model_fields:
            known.pop(str(path[2]), None)
        if known.get("enabled") not in _OFF:
            found.disabled[key] = f"{found.disabled[key]}, {why}" if key in found.disabled else why
    return found


def _known(section: dict[str, Any]) -> dict[str, Any]:
    """The keys that every kind of server has. How it is reached is left out: it is not going to be."""
    common = {key: value for key, value in section.items() if key in Server.model_fields}
    return {**common, "command": "disabled"}
