"""Rules between hooks and the rest of the config. Pure."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from sluicegate.config.finding import Problem
from sluicegate.config.models import Config
from sluicegate.config.names import LOCAL_URL


def _hooks_are_told_over_https(config: Config) -> Iterator[Problem]:
    for name, hook in config.hooks.items():
        url = hook.url.get_secret_value()
        if not url.lower().startswith("https://") and not LOCAL_URL.match(url):
            message = "arguments and results would go over the network as plain text"
            yield Problem(("hooks", name, "url"), "plain-http", message, "write https://", severity="warning")


def _hooks_are_about_something(config: Config) -> Iterator[Problem]:
    for name, hook in config.hooks.items():
        for at, glob in enumerate(hook.servers):
            if not any(fnmatchcase(key, glob) for key in config.servers):
                hint = f"servers are {', '.join(sorted(config.servers)) or 'none'}"
                yield Problem(("hooks", name, "servers", at), "unknown-server", "no server is called so", hint)


def _hooks_on_approvals_can_be_believed(config: Config) -> Iterator[Problem]:
    for name, hook in config.hooks.items():
        path = ("hooks", name)
        if "approval" in hook.on and hook.secret is None:
            yield Problem(path, "missing-key", "what it is told of approvals is signed: set secret", at_key=True)
        if hook.key is not None and "approval" not in hook.on:
            hint = "write on: [approval], or remove this key"
            yield Problem((*path, "key"), "wrong-value", "with a key it denies approvals", hint, at_key=True)
        if hook.key is not None and hook.key not in config.clients.keys:
            hint = f"keys are {', '.join(sorted(config.clients.keys)) or 'none'}"
            yield Problem((*path, "key"), "unknown-key-name", f"there is no client key {hook.key}", hint)


def _judged_results_are_whole(config: Config) -> Iterator[Problem]:
    for key, server in config.servers.items():
        judging = (name for name, hook in config.hooks.items() if "result" in hook.on and _is_about(hook.servers, key))
        if server.results_over == "page" and (name := next(judging, "")):
            message = f"the hook {name} cannot judge a result that is only read in parts"
            yield Problem(("servers", key, "results_over"), "page-and-hook", message, "remove this key")


def _is_about(globs: tuple[str, ...], key: str) -> bool:
    return not globs or any(fnmatchcase(key, glob) for glob in globs)


def _clients_can_be_matched(config: Config) -> Iterator[Problem]:
    for name, hook in config.hooks.items():
        for at, glob in enumerate(hook.clients):
            if ":" not in glob and "*" not in glob and glob not in ("local", "anonymous"):
                hint = "write key:NAME, jwt:ISSUER#SUB, role:NAME, group:NAME, local or anonymous"
                yield Problem(("hooks", name, "clients", at), "wrong-value", "no client or role is called so", hint)


def _nothing_is_ignored(config: Config) -> Iterator[Problem]:
    for name, hook in config.hooks.items():
        for key in ("timeout", "on_failure", "sees", "form"):
            if set(hook.on) == {"approval"} and key in hook.model_fields_set:
                message = "it is without effect where a hook is only told of approvals"
                yield Problem(("hooks", name, key), "wrong-value", message, "remove this key", at_key=True)


RULES: Final[tuple[Callable[[Config], Iterator[Problem]], ...]] = (
    _hooks_are_told_over_https, _hooks_are_about_something, _hooks_on_approvals_can_be_believed,
    _judged_results_are_whole, _clients_can_be_matched, _nothing_is_ignored,
)  # fmt: skip
