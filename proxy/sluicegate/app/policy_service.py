"""The judge, wired: the law that it starts with, how a new one comes into force, and who is told."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from sluicegate import telemetry
from sluicegate.app import policy_loading
from sluicegate.app.clients import client_of, without_revoked
from sluicegate.app.reload import Reload
from sluicegate.config import Config
from sluicegate.metrics import PolicyState
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.judge import AcceptedDefinitions, PolicyEngine
from sluicegate.policy.rulebook import nobody_accepted
from sluicegate.protocol.model import Client, Target
from sluicegate.store.revoked import Revoked

PROBE_EVERY: Final = 0.5

log = logging.getLogger(__name__)


class PolicyService:
    """`on_change` is called when rights may have changed, those of a server or all; `on_config` before that if a reload
    brought a new config into force."""

    def __init__(
        self, config: Config, loaded: LoadedPolicy, file: Path | None, running: Iterable[str], transport: str
    ) -> None:
        self._running = tuple(running)
        self._revoked = Revoked(Path(config.state.dir))
        self._config = without_revoked(config, self._revoked)
        self.bearer_of: Callable[[str], Client | None] = lambda principal: None
        self.token_end: Callable[[str], float | None] = lambda principal: None
        self._accepted = AcceptedDefinitions(nobody_accepted)
        self.judge = PolicyEngine(policy_loading.make(config, loaded, self._running, self._accepted))
        self.reload = Reload(config, loaded.policy.revision, file, transport, self._apply)
        self.on_change: Callable[[str | None], None] = lambda server: None
        self.on_config: list[Callable[[Config], None]] = []

    @property
    def config(self) -> Config:
        """What is in force, as far as it can be without a restart; keys that were revoked are not."""
        return self._config

    def client_of(self, principal: str) -> Client | None:
        """Whoever may come in under that name: the config knows, or `bearer_of` does, of tokens that were shown."""
        return client_of(self._config, principal) or self.bearer_of(principal)

    def ask(self, has_accepted: Callable[[Target], bool]) -> None:
        """Whose word counts for what a person has accepted."""
        self._accepted.ask = has_accepted

    def forget_accepted(self, server: str) -> None:
        """What a person accepted counts for a tool's class, and so for who may use it."""
        self._accepted.forget()
        self.judge.renew()
        self.on_change(server)

    async def run(self) -> None:
        """Notices that nothing can be decided any more, and that shadow mode is over."""
        while True:
            await anyio.sleep(PROBE_EVERY)
            self.look()
            if self._revoked.look():
                self._take(self.reload.config)
                self.on_change(None)

    def look(self) -> None:
        if self.judge.check(time.time()):
            self.on_change(None)

    def state(self) -> PolicyState:
        judge, reload = self.judge, self.reload
        return PolicyState(judge.revision(), judge.law.is_shadow, judge.errors, not reload.problems, reload.at)

    def notes(self) -> list[str]:
        """What an operator should know although everything is ready."""
        notes = [f"not in force: {problem}" for problem in self.reload.problems]
        notes += [f"not in force: {text}" for text in self.reload.kept]
        notes += [f"needs a restart: {part}" for part in self.reload.restart]
        until = self.config.policy.until
        return notes + ([f"the policy is in shadow mode until {until}"] if self.judge.law.is_shadow else [])

    def _apply(self, config: Config, loaded: LoadedPolicy) -> None:
        self.judge.law = policy_loading.make(config, loaded, self._running, self._accepted)
        if config.log != self.config.log:
            telemetry.configure(config.log.level, config.log.format)
        self._take(config)
        self.on_change(None)

    def _take(self, config: Config) -> None:
        before = self._config.clients.keys.keys()
        self._config = without_revoked(config, self._revoked)
        for name in before & config.clients.keys.keys() - self._config.clients.keys.keys():
            log.info("key revoked", extra={"key": name})
        for tell in self.on_config:
            tell(self._config)


@asynccontextmanager
async def open_policy_service(config: Config, file: Path | None, transport: str) -> AsyncIterator[PolicyService]:
    """Raises `PolicyError` where the policy cannot be used. Its tasks run as long as the block."""
    loaded = await anyio.to_thread.run_sync(policy_loading.load, config)
    for finding in loaded.warnings:
        log.warning(str(finding))
    running = [key for key, server in config.servers.items() if server.enabled]
    made = PolicyService(config, loaded, file, running, transport)
    async with anyio.create_task_group() as group:
        group.start_soon(telemetry.supervise, "decisions", made.run)
        group.start_soon(telemetry.supervise, "reload", made.reload.run)
        yield made
        group.cancel_scope.cancel()
