"""Logins over the admin API: who sees them, begins one and ends one, and what is written down of that."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_schema import as_described
from command_line import run
from e2e.sluice_process import ROOT
from e2e.test_logins import log_in, said, site
from peers.login.browser import Browser
from peers.login.misbehaving import Misbehaving
from policy_bed import Bed, bearer, bed, client_keys, reason

Json = dict[str, Any]
ROWS = """\
p, role:everyone, mail, *, *, allow
p, local, sluice, admin:*, *, allow
p, key:lea, sluice, admin:*, *, allow
p, key:max, sluice, admin:logins, *, allow
"""
__all__ = ["site"]


@contextmanager
def served(folder: Path, site: Misbehaving, *arguments: str, **login: Any) -> Iterator[Bed]:
    server: Json = {"url": site.mcp, "required": False} | ({"login": login} if login else {})
    keys = client_keys(ann=[], lea=[], max=[])
    more: Json = {"arguments": list(arguments)} if arguments else {}
    with bed(folder, ROWS, {"mail": server, "gone": {"command": "true", "required": False}},
             clients={"keys": keys}, **more) as there:  # fmt: skip
        yield there


def operator(there: Bed) -> dict[str, str]:
    return {"Authorization": f"Bearer {(there.folder / 'state' / 'operator.token').read_text().strip()}"}


def ask(there: Bed, method: str, what: str, who: str = "", body: Json | None = None) -> httpx.Response:
    headers = bearer(who) if who else operator(there)
    return as_described(httpx.request(method, f"{there.process.admin}/api/v1/{what}", headers=headers, json=body))


def rows(there: Bed, who: str = "") -> list[Json]:
    found: list[Json] = ask(there, "GET", "logins", who).json()["logins"]
    return found


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_logins_are_seen_and_ended_by_who_may(tmp_path: Path, site: Misbehaving, arguments: list[str]) -> None:
    with served(tmp_path, site, *arguments) as there:
        assert rows(there) == []
        log_in(tmp_path, "--as", "ann")
        (row,) = rows(there)
        assert (row["server"], row["principal"], row["kind"], row["state"]) == ("mail", "key:ann", "client", "ok")
        assert row["issuer"] == site.issuer and row["renewed_at"] and row["expires_at"] and row["last_error"] == ""
        assert not [secret for secret in site.secrets() if secret in json.dumps(row)]
        assert rows(there, "lea") == [row]
        assert ask(there, "GET", "logins", "ann").status_code == 403
        there.until(lambda: "mail__echo" in there.names("ann"))
        for who in ("ann", "lea"):  # a wildcard gives no right to write logins
            refused = ask(there, "DELETE", f"logins/{row['id']}", who)
            assert refused.status_code == 403 and "admin:logins, write" in refused.json()["error"]
        assert not site.of("revoke")
        ended = ask(there, "DELETE", f"logins/{row['id']}", "max").json()
        assert ended == {"id": row["id"], "server": "mail", "principal": "key:ann", "revoked": True}
        assert site.of("revoke") and rows(there) == []
        assert ask(there, "DELETE", f"logins/{row['id']}").status_code == 404
        there.until(lambda: reason(there.call("ann", "mail__echo", text="x")) == "login_required")
        acts = [one for one in there.audit() if one.get("act") == "login_end"]
        assert [(one["by"], one["server"], one["whose"], one["login"]) for one in acts] == [
            ("key:max", "mail", "key:ann", row["id"])
        ]


def test_the_operator_begins_a_login_and_the_running_sluice_finishes_it(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        begun = ask(there, "POST", "logins", body={"server": "mail", "as": "ann"}).json()
        assert (begun["server"], begun["principal"]) == ("mail", "key:ann")
        assert begun["url"].startswith(f"{site.url}/authorize?")
        again = ask(there, "POST", "logins", body={"server": "mail", "as": "key:ann"}).json()
        assert again == begun  # one that waits is enough
        with Browser("ann") as browser:
            assert "Logged in" in browser.login(begun["url"]).text
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert json.loads(said(there.call("ann", "mail__whoami")))["subject"] == "ann"
        own = ask(there, "POST", "logins", "max", {"server": "mail"}).json()
        assert own["principal"] == "key:max" and own["url"] != begun["url"]
        acts = [(one["by"], one["whose"]) for one in there.audit() if one.get("act") == "login_begin"]
        assert acts == [("local", "key:ann")] * 2 + [("key:max", "key:max")]


def test_a_login_that_an_operator_began_ends_with_the_operators_key(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site, per="gateway") as there:
        begun = ask(there, "POST", "logins", "max", {"server": "mail"}).json()
        other = ask(there, "POST", "logins", body={"server": "mail"}).json()
        assert begun["url"] != other["url"], "a link is of whoever asked for it"
        with Browser("max") as browser:
            callback = browser.stop_at(begun["url"], "http://127.0.0.1:")
            assert run(ROOT, "keys", "revoke", "max", "-c", str(there.process.config)).returncode == 0
            there.until(lambda: ask(there, "GET", "logins", "max").status_code == 401)
            assert "may not log in there any more" in browser.open(callback).text
            assert reason(there.call("ann", "mail__echo")) == "login_required"
            assert "Logged in" in browser.login(other["url"]).text, "that of the operator goes on"
        there.until(lambda: "mail__whoami" in there.names("ann") and "login_done" in str(there.audit()))
        done = [one["by"] for one in there.audit() if one["type"] == "identity" and one["what"] == "login_done"]
        assert done == ["local"]


def test_what_cannot_be_begun_is_said(tmp_path: Path, site: Misbehaving) -> None:
    with served(tmp_path, site) as there:
        for body, status, why in (
            ({"server": "nope"}, 404, "there is no server nope"),
            ({"server": "gone"}, 404, "there is no server gone that one can log in to"),
            ({"server": "mail", "as": "nobody"}, 404, "no such client: nobody"),
            ({"server": "mail", "x": 1}, 400, "the body is"),
        ):
            answer = ask(there, "POST", "logins", body=body)
            assert (answer.status_code, why in answer.json()["error"]) == (status, True), answer.text
        for who in ("ann", "lea"):
            assert ask(there, "POST", "logins", who, {"server": "mail"}).status_code == 403
        site.switches.prm["authorization_servers"] = [f"{site.issuer}/"]
        answer = ask(there, "POST", "logins", body={"server": "mail"})
        assert answer.status_code == 409 and "names another issuer" in answer.json()["error"]
        assert not [one for one in site.of("register")]


def test_nobody_logs_in_to_an_account_of_sluices_own(tmp_path: Path, site: Misbehaving) -> None:
    site.authority.add_client("sluice", "s3cret-of-a-machine")
    login = {"per": "gateway", "grant": "client_credentials", "client_id": "sluice",
             "client_secret": "s3cret-of-a-machine"}  # fmt: skip
    with served(tmp_path, site, **login) as there:
        answer = ask(there, "POST", "logins", body={"server": "mail"})
        assert answer.status_code == 409 and "account of Sluice's own" in answer.json()["error"]
        there.until(lambda: "mail__whoami" in there.names("ann"))
        assert [(row["principal"], row["kind"]) for row in rows(there)] == [("gateway", "machine")]
