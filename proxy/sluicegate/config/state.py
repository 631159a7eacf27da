"""Where state is kept. Shapes only."""

from pydantic import SecretStr

from sluicegate.config.names import Ring
from sluicegate.config.section import Section, written
from sluicegate.config.units import FilePath, Flag, Idle


class StateKeys(Section):
    """Each is one or more base64 keys of 32 bytes, a line each, the newest last."""

    seal: Ring
    """Seals cursors and questions that clients hold."""
    digest: Ring
    """Makes the marks and digests of the audit log."""
    sign: Ring
    """Signs checkpoints of the audit log."""
    login: Ring | None = None
    """Seals logins to servers. Without it people log in again after a move to another machine."""

    def text(self, name: str) -> str:
        """Of the ring of that name."""
        ring: SecretStr = getattr(self, name)
        return ring.get_secret_value()


class State(Section):
    later = frozenset({"redis"})

    dir: FilePath = written("~/.local/state/sluice")
    """Where keys, the operator token and last known lists are kept; mode 0700."""
    url: SecretStr | None = None
    """URL of a PostgreSQL database, as libpq reads it. It keeps approvals, grants, logins and pins.
    Needs the extra `postgres`. Without `fleet` one Sluice at a time runs on a database."""
    password: SecretStr | None = None
    """The password for `url`, where the URL has none."""
    replicated: Flag = False
    """Whether the database is known to keep what it confirmed when it fails over, by means that Sluice cannot see."""
    stale: Idle = written("60s")
    """How long a replica of a fleet goes on without a word from the database: keys may be revoked meanwhile.
    `never` does not stop it."""
    keys: StateKeys | None = None
    """Keys that are in files of `dir` otherwise. `url` needs them: on another machine these files are not there."""
