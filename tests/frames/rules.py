"""What a JSON-RPC message of one revision may look like, by the specification's schema.

`problems(message, revision, methods)` says what is wrong with it. Stricter than the schemas in one point: a key that
a definition has in another revision only is wrong here, for a client of that revision never heard of it. Keys that
no revision knows are a server's own and pass. Knows messages; not who sent them, nor how.
"""

from collections.abc import Collection
from functools import cache
from typing import Any

import jsonschema_rs
from frames.schemas import REVISIONS, Json, definitions_of, schemas

NEWEST_LEGACY, MODERN = REVISIONS[-2:]

# Extensions are negotiated in `initialize` too, though only 2026-07-28 has the key (SEP-1865 does).
ALSO = {"ClientCapabilities": {"extensions"}, "ServerCapabilities": {"extensions"}}
# Not in every revision's definitions, but in every message.
ENVELOPE = {"jsonrpc", "id"}
# Unions that have a `method` because they are of one type only.
UNIONS = {"ClientRequest", "ServerRequest", "ClientNotification", "ServerNotification", "InputRequest"}
# What 2026-07-28 has in another form than `...Request` and `...Result`.
RESULTS = {
    "logging/setLevel": "EmptyResult", "ping": "EmptyResult", "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
}  # fmt: skip
# Whose answer may be a task instead (2025-11-25 basic/utilities/tasks).
TASKS = {"tools/call", "sampling/createMessage", "elicitation/create"}


class Revision:
    """One revision's definitions, found by what messages say."""

    def __init__(self, schema: Json) -> None:
        self.schema = schema
        self.key = "$defs" if "$defs" in self.schema else "definitions"
        self.definitions = definitions_of(self.schema)
        self.methods: dict[str, str] = {}
        self.errors: dict[int, str] = {}
        for definition, what in self.definitions.items():
            known = what.get("properties", {})
            if definition not in UNIONS and isinstance(method := known.get("method", {}).get("const"), str):
                self.methods[method] = definition
            error = known.get("error", {})
            for part in error.get("allOf", [self.definitions.get(error.get("$ref", "").rpartition("/")[2], {})]):
                if (code := part.get("properties", {}).get("code", {}).get("const")) is not None:
                    self.errors[code] = definition
        self._validators: dict[str, Any] = {}

    def result(self, method: str) -> list[str]:
        """The definitions of which its result must meet one."""
        if method in RESULTS:
            return [RESULTS[method]]
        stem = self.methods.get(method, "").removesuffix("Request")
        response = self.definitions.get(f"{stem}ResultResponse")
        if response is not None:
            result = response["properties"]["result"]
            return [part["$ref"].rpartition("/")[2] for part in result.get("anyOf", [result])]
        names = [f"{stem}Result", *(["CreateTaskResult"] if method in TASKS else [])] if stem else []
        return [name for name in names if name in self.definitions]

    def violations(self, definition: str, value: Any) -> list[str]:
        validator = self._validators.get(definition)
        if validator is None:
            schema = {**self.schema, "$ref": f"#/{self.key}/{definition}"}
            validator = self._validators[definition] = jsonschema_rs.validator_for(schema)
        return [f"{definition}{_at(error)}: {error.message[:300]}" for error in validator.iter_errors(value)]


def _at(error: Any) -> str:
    return "".join(f"/{part}" for part in error.instance_path)


@cache
def revisions() -> dict[str, Revision]:
    made = {name: Revision(schema) for name, schema in schemas().items()}
    known: dict[str, set[str]] = {}
    for revision in made.values():
        for definition, what in revision.definitions.items():
            known.setdefault(definition, set()).update(what.get("properties", {}))
    for revision in made.values():
        for definition, what in revision.definitions.items():
            if "properties" in what:
                foreign = known[definition] - what["properties"].keys() - ALSO.get(definition, set()) - ENVELOPE
                what["properties"].update(dict.fromkeys(foreign, False))
    return made


# ---------------------------------------------------------------- one message


def problems(message: Any, revision: str, methods: Collection[str] = ()) -> list[str]:
    """`methods` are what it may be the answer to."""
    rules = revisions()[revision]
    if not isinstance(message, dict):
        return ["not an object"]
    if isinstance(method := message.get("method"), str):
        general = "JSONRPCRequest" if "id" in message else "JSONRPCNotification"
        definition = rules.methods.get(method)
        found = rules.violations(general, message)
        return found if definition is None else found + rules.violations(definition, message)
    if "error" in message:
        return _error_problems(rules, message)
    names = ("JSONRPCResultResponse", "JSONRPCResponse")
    found = rules.violations(next(name for name in names if name in rules.definitions), message)
    if methods:  # of several that used this id at the same time, one must fit
        found += min((_result_problems(rules, method, message.get("result")) for method in methods), key=len)
    return found


def _error_problems(rules: Revision, message: Json) -> list[str]:
    if "id" not in message and "JSONRPCErrorResponse" not in rules.definitions:
        # until 2025-06-18 there is no form for it: the request of that error could not be read
        message = {**message, "id": 0}
    code = message["error"].get("code") if isinstance(message["error"], dict) else None
    general = "JSONRPCErrorResponse" if "JSONRPCErrorResponse" in rules.definitions else "JSONRPCError"
    found = rules.violations(rules.errors.get(code, general), message)
    if code == -32002 and rules is revisions()[MODERN]:
        found.append("-32002 is not of this revision")
    if code == -32042 and code not in rules.errors:
        found.append("-32042 is of 2025-11-25 alone")
    if isinstance(code, int) and -32099 <= code <= -32020 and code not in (-32042, *rules.errors):
        found.append(f"{code} is reserved")
    return found


def _result_problems(rules: Revision, method: str, result: Any) -> list[str]:
    definitions = rules.result(method)
    if not definitions or (isinstance(result, dict) and result.get("resultType") == "task"):
        return []  # of an extension, which has a schema of its own
    if len(definitions) > 1 and "InputRequiredResult" in definitions:
        asks = isinstance(result, dict) and result.get("resultType") == "input_required"
        definitions = ["InputRequiredResult"] if asks else [d for d in definitions if d != "InputRequiredResult"]
    return min((rules.violations(definition, result) for definition in definitions), key=len)
