"""What clients see of a server that they are not logged in to: what a person has accepted, and nothing else."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.sluice_process import clean_environment
from e2e.test_logins import command, expire, log_in, said, site
from peers.login.misbehaving import Misbehaving
from policy_bed import Bed, bed, client_keys, reason

Json = dict[str, Any]
ROWS = """\
p, role:everyone, mail, *, *, allow
p, key:eve, mail, tool:echo, *, deny
p, local, sluice, admin:*, *, allow
"""
__all__ = ["site"]


@contextmanager
def served(folder: Path, site: Misbehaving, *arguments: str, **login: Any) -> Iterator[Bed]:
    server: Json = {"url": site.mcp, "required": False} | ({"login": login} if login else {})
    keys = client_keys(ann=[], bob=[], eve=[])
    with bed(folder, ROWS, {"mail": server}, clients={"keys": keys}, arguments=arguments) as there:
        yield there


def accept(folder: Path, *what: str) -> None:
    done = subprocess.run(command(folder, "pins", "accept", *what), capture_output=True, text=True,
                          env=clean_environment())  # fmt: skip
    assert done.returncode == 0, done.stderr


def known(there: Bed) -> None:
    log_in(there.folder, "--as", "ann")
    there.until(lambda: "mail__echo" in there.names("ann"))


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_what_a_person_accepted_is_shown_and_a_call_of_it_asks_for_the_login(
    tmp_path: Path, site: Misbehaving, arguments: tuple[str, ...]
) -> None:
    with served(tmp_path, site, *arguments) as there:
        assert there.names("bob") == []
        known(there)
        assert there.names("bob") == []  # nobody has looked at them
        accept(tmp_path, "mail", "echo")
        there.until(lambda: there.names("bob") == ["mail__echo"])
        assert there.names("eve") == []  # the policy denies it
        sent = len(site.calls())
        assert reason(there.call("bob", "mail__echo", text="x")) == "login_required"
        hidden = there.call("bob", "mail__whoami").json()
        assert hidden["error"]["code"] == -32602
        assert len(site.calls()) == sent
        log_in(tmp_path, "--as", "bob", user="bert")
        there.until(lambda: "mail__whoami" in there.names("bob"))
        assert json.loads(said(there.call("bob", "mail__whoami")))["subject"] == "bert"


def test_it_is_so_after_a_restart_and_for_whoever_comes_then(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        known(there)
        accept(tmp_path, "mail", "echo")
    with served(tmp_path, site) as there:
        there.until(lambda: there.names("bob") == ["mail__echo"])


def test_where_lists_are_ones_own_nothing_is_shown(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site, list="own") as there:
        known(there)
        accept(tmp_path, "mail", "echo")
        assert there.names("bob") == []
        log_in(tmp_path, "--as", "bob", user="bert")
        there.until(lambda: "mail__echo" in there.names("bob"))


def test_who_was_logged_out_sees_what_a_person_accepted(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        known(there)
        accept(tmp_path, "mail", "echo")
        for grant in site.authority.refresh.values():
            grant.ended = True
        expire(site)
        assert reason(there.call("ann", "mail__echo", text="x")) == "login_required"
        there.until(lambda: "mail__echo" in there.names("ann"))
        there.until(lambda: there.names("bob") == ["mail__echo"])
