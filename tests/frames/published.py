"""The definitions of one revision as the Python SDK has them: `python published.py REVISION` prints a JSON Schema.

Run by the interpreter of the SDK 2.x, whose package `mcp_types` is generated from the specification's schemas of the
two newest revisions. Made as strict as those: pydantic takes null for what may be left out, they do not.
"""

import importlib
import inspect
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema


def main(revision: str) -> None:
    module = importlib.import_module(f"mcp_types._v{revision.replace('-', '_')}")
    models = [
        found for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, BaseModel) and found.__module__ == module.__name__
    ]  # fmt: skip
    _, schema = models_json_schema([(model, "validation") for model in models], by_alias=True)
    definitions = {name: strict(what) for name, what in schema["$defs"].items()}
    definitions["EmptyResult"] = {"$ref": "#/$defs/Result"}  # a name for it, and no class
    json.dump({"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}, sys.stdout)


def strict(value: Any) -> Any:
    if isinstance(value, list):
        return [strict(item) for item in value]
    if not isinstance(value, dict):
        return value
    options = value.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options and value.get("default", ...) is None:
        left = [option for option in options if option != {"type": "null"}]
        kept = {key: part for key, part in value.items() if key not in ("anyOf", "default")}
        value = kept | (left[0] if len(left) == 1 else {"anyOf": left})
    return {key: strict(part) for key, part in value.items()}


if __name__ == "__main__":
    main(sys.argv[1])
