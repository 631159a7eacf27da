"""Replicas that share one database, and TLS of listeners. Shapes only."""

from sluicegate.config.names import ReplicaName, Url
from sluicegate.config.section import Section
from sluicegate.config.units import FilePath, Flag, Listener


class ListenTls(Section):
    """Without a proxy in front that has the certificate."""

    cert: FilePath
    """The certificate for clients, with the chain above it; PEM."""
    key: FilePath
    """Its private key, without a passphrase."""
    client_ca: FilePath | None = None
    """Who signs the certificates that clients must show at `mcp`, besides their key or token. Unset: none is asked
    for."""


class PeerTls(Section):
    """Both sides of a connection between replicas show this certificate."""

    cert: FilePath
    """Our certificate, with the chain above it; PEM."""
    key: FilePath
    """Its private key, without a passphrase."""
    ca: FilePath
    """Who signs the certificates of all replicas."""


class FleetPeer(Section):
    listen: Listener
    """Where other replicas pass on the requests of our sessions."""
    url: Url
    """Where they reach that: https with `tls`, else http."""
    tls: PeerTls | None = None
    """Certificates of both sides. Without it only loopback may be named."""
    insecure: Flag = False
    """Whether requests may leave the machine without TLS: the network below encrypts them."""


class Fleet(Section):
    name: ReplicaName
    """Of this replica. No other one has it, and it stays the same as long as the audit log's disk."""
    peer: FleetPeer | None = None
    """How replicas reach each other. Without it a session is lost where the balancer sends it to another replica."""
