"""Records in the words of others: OCSF API Activity events, and documents of the Elastic Common Schema. Pure.

Every record becomes one event, so that sequence and count can be compared; what has no word there is kept under a
name of our own.
"""

from datetime import UTC, datetime
from typing import Any, Final

from sluicegate import __version__
from sluicegate.protocol.methods import READING

Record = dict[str, Any]

OCSF_VERSION: Final = "1.8.0"
ECS_VERSION: Final = "8.17.0"
_CLASS: Final = 6003
_BY_CLASS: Final = {"read": 2, "write": 3, "destroy": 4}
_ACTIVITIES: Final = {2: "Read", 3: "Update", 4: "Delete", 99: "Other"}
_STATUS: Final = {0: "Unknown", 1: "Success", 2: "Failure"}
_NOT_LET_IN: Final = (
    None, "login_failed", "refresh_failed", "issuer_changed", "client_login_failed", "client_refused",
)  # fmt: skip
_COMMON: Final = frozenset({
    "v", "writer", "epoch", "seq", "prev", "type", "time", "call", "method", "principal", "roles", "groups", "client",
    "revision", "server", "own", "decision", "outcome", "reason", "seconds", "code", "trace",
})  # fmt: skip


def _milliseconds(time: str) -> int:
    moment = datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(time[20:23])


def _rest(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in _COMMON}


def _uid(record: Record) -> str:
    return f"{record['writer']}-{record['epoch']}-{record['seq']}"


def _outcome(record: Record) -> str:
    """As a call's outcome. Who was not let in has failed, and so has a login that ended so. A decision without a call
    is a refusal. For other records, that they were written is what they say."""
    if record["type"] == "identity":
        return "denied" if record.get("what") in _NOT_LET_IN else "ok"
    if record["type"] == "decision" or record.get("act") == "console_refused":
        return "denied"
    return str(record.get("outcome", "unknown" if record["type"] == "intent" else "ok"))


# ---------------------------------------------------------------- OCSF


def ocsf(record: Record) -> Record:
    """OCSF 1.8 class 6003, API Activity, with the profiles security_control and trace."""
    activity, status = _activity(record), {"ok": 1, "unknown": 0, "waiting": 0}.get(_outcome(record), 2)
    event: Record = {
        "category_uid": 6,
        "class_uid": _CLASS,
        "activity_id": activity,
        "activity_name": _ACTIVITIES[activity],
        "type_uid": _CLASS * 100 + activity,
        "time": _milliseconds(record["time"]),
        "severity_id": 1 if status != 2 else 2,
        "status_id": status,
        "status": _STATUS[status],
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "Sluice", "vendor_name": "mcp-sluice", "version": __version__},
            "profiles": ["security_control", "trace"],
            "uid": _uid(record),
            "sequence": record["seq"],
            "log_name": record["writer"],
            "event_code": record["type"],
        },
        "actor": _actor(record),
        "api": _api(record),
        "src_endpoint": {"svc_name": _client_name(record), "uid": str(record.get("principal", "sluice"))},
        "unmapped": {"sluice": _rest(record)},
    }
    if "call" in record:
        event["metadata"]["correlation_uid"] = record["call"]
    if "server" in record:
        event["dst_endpoint"] = {"svc_name": record["server"]}
        event["resources"] = [{"name": str(record.get("own", "")), "type": str(record.get("kind", "")), "role_id": 1}]
    if "seconds" in record:
        event["duration"] = round(record["seconds"] * 1000)
    if "reason" in record:
        event["status_detail"] = record["reason"]
    if "trace" in record:
        event["trace"] = {"uid": record["trace"]}
    return event | _control(record)


def _activity(record: Record) -> int:
    by_class = _BY_CLASS.get(record.get("class", ""))
    if by_class is not None:
        return by_class
    method = record.get("method", "")
    return 2 if method in READING else 99


def _client(record: Record) -> Record:
    """What it says about itself: of a client's login, its name is all that is known."""
    client = record.get("client", {})
    return client if isinstance(client, dict) else {"name": client}


def _client_name(record: Record) -> str:
    return str(_client(record).get("name") or "unknown") if "client" in record else "sluice"


def _actor(record: Record) -> Record:
    if "principal" not in record:
        return {"app_name": "sluice"}
    groups = [{"name": name, "type": "role"} for name in record.get("roles", [])]
    groups += [{"name": name, "type": "group"} for name in record.get("groups", [])]
    return {"user": {"uid": record["principal"], "groups": groups}, "app_name": _client_name(record)}


def _api(record: Record) -> Record:
    api: Record = {"operation": str(record.get("method", f"sluice/{record['type']}")), "service": {"name": "mcp"}}
    if "revision" in record:
        api["version"] = record["revision"]
    if "call" in record:
        api["request"] = {"uid": record["call"]}
    if "code" in record:
        api["response"] = {"code": record["code"], "error": str(record.get("outcome", ""))}
    return api


def _control(record: Record) -> Record:
    """Profile security_control: what the policy made of it."""
    decision = record.get("decision")
    if not isinstance(decision, dict):
        return {}
    is_denied = decision.get("verdict") == "deny"
    policy = {"uid": str(decision.get("rule", ""))}
    if "policy" in decision:
        policy["version"] = decision["policy"]
    return {
        "action_id": 2 if is_denied else 1,
        "action": "Denied" if is_denied else "Allowed",
        "disposition_id": 2 if is_denied else 1,
        "disposition": "Blocked" if is_denied else "Allowed",
        "authorizations": [{"decision": str(decision.get("verdict", "")), "policy": policy}],
    }


# ---------------------------------------------------------------- Elastic Common Schema


def ecs(record: Record) -> Record:
    """A document with ECS field names, nested."""
    outcome = {"ok": "success", "unknown": "unknown", "waiting": "unknown"}.get(_outcome(record), "failure")
    decision = record.get("decision") if isinstance(record.get("decision"), dict) else None
    types = ["access"] if "method" in record else ["info"]
    if decision is not None:
        types.append("denied" if decision.get("verdict") == "deny" else "allowed")
    document: Record = {
        "@timestamp": record["time"],
        "ecs": {"version": ECS_VERSION},
        "event": {
            "id": _uid(record),
            "kind": "event",
            "category": ["authentication"] if record["type"] == "identity" else ["api"],
            "type": ["start"] if record["type"] == "identity" else types,
            "action": record.get("method", record["type"]),
            "outcome": outcome,
            "sequence": record["seq"],
            "dataset": "sluice.audit",
            "provider": record["writer"],
        },
        "service": {"name": "sluice", "version": __version__},
        "sluice": {"record": record["type"], "epoch": record["epoch"], "prev": record["prev"], **_rest(record)},
    }
    if "seconds" in record:
        document["event"]["duration"] = round(record["seconds"] * 1_000_000_000)
    if "reason" in record:
        document["event"]["reason"] = record["reason"]
    if "principal" in record:
        document["user"] = {"name": record["principal"], "roles": [*record.get("roles", []), *record.get("groups", [])]}
        document["user_agent"] = _client(record)
    if decision is not None:
        document["rule"] = {"id": decision.get("rule"), "version": decision.get("policy", "")}
    if "trace" in record:
        document["trace"] = {"id": record["trace"]}
    if "call" in record:
        document["transaction"] = {"id": record["call"]}
    if "server" in record:
        document["destination"] = {"domain": record["server"]}
    for name in ("own", "outcome", "code", "revision"):
        if name in record:
            document["sluice"][name] = record[name]
    return document
