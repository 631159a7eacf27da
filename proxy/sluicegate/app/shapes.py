"""The shapes of a server's section, by kind and own name."""

from sluicegate.config import AnyServer
from sluicegate.config.models import ShapeSection
from sluicegate.protocol.model import Kind
from sluicegate.protocol.shape import Shape


def shapes(server: AnyServer) -> dict[tuple[Kind, str], Shape]:
    written: list[tuple[Kind, dict[str, ShapeSection]]] = [
        ("tool", server.tools.shape), ("prompt", server.prompts.shape)
    ]  # fmt: skip
    found = {}
    for kind, sections in written:
        for name, one in sections.items():
            texts = {"title": one.title, "description": one.description}
            told = {key: text for key, text in texts.items() if text is not None}
            found[kind, name] = Shape(one.name, told, one.defaults, one.hidden)
    return found
