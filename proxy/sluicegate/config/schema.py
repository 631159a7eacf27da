"""The JSON Schema of the config file. What a key means is the docstring below it, which is read when somebody asks for
the schema: pydantic's `use_attribute_docstrings` would parse the source of every section at every start."""

import ast
import inspect
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from sluicegate.config.models import Config

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class DocumentedSchema(GenerateJsonSchema):
    """Adds to each property what its docstring says."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _docstrings(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name].setdefault("description", text)
        return made


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Of a section's fields, those of the sections it is made of included."""
    found: dict[str, str] = {}
    for part in (one for one in reversed(model.__mro__) if one is not BaseModel and issubclass(one, BaseModel)):
        (node,) = ast.parse(inspect.getsource(part)).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                    name = field.target.id
                    known = part.model_fields.get(name)
                    found[(known.alias if known else None) or name] = inspect.cleandoc(text.value.value)
    return found


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return {"$schema": _DIALECT, **Config.model_json_schema(schema_generator=DocumentedSchema)}
