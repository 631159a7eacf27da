"""What may be connected to, wired: the rules of the config, and the audit log that is told of what they refuse."""

from sluicegate.audit.log import AuditLog
from sluicegate.config import Config
from sluicegate.http.egress import AddressRefused, Egress


def open_egress(config: Config, audit: AuditLog | None) -> Egress:
    def note(refused: AddressRefused) -> None:
        if audit is not None:
            place = {"for": refused.whose, "host": refused.host, "address": refused.address}
            audit.note("decision", {"what": "ssrf_blocked", **place, "why": refused.why})

    return Egress(config.network.allow_private, config.network.proxy, note)
