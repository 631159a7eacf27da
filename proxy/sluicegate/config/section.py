"""What all sections of the config file share."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


def written(text: str | dict[str, Any]) -> Any:
    """A default as the file would say it."""
    return Field(default=text)


class Section(BaseModel):
    """Closed, frozen, and silent about its values. `later` are keys that a later version has."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, defer_build=True,
    )  # fmt: skip
    later: ClassVar[frozenset[str]] = frozenset()
