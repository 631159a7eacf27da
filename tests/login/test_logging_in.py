"""A person logs in: what is found, asked and refused on the way, against servers that misbehave on demand."""

import sqlite3
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest
from login_bench import BACK, Bench
from small_authorization_server import METADATA, PRM, AuthorizationServer, ProtectedServer, listening, reply

from sluicegate.login.model import LoginFailed, LoginNeeded, LoginUnavailable


def asked(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


async def test_a_person_logs_in_and_the_token_is_good(bench: Bench) -> None:
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")
    flow = await bench.logins.begin("srv", "local", BACK)
    assert asked(flow.url)["resource"] == bench.server.mcp
    info = await bench.logins.finish(bench.at.authorize(flow.url), BACK)
    bearer = await bench.logins.bearer("srv", "local")
    assert bench.at.is_good(bearer.token) and bearer.login == info.id and bearer.generation == info.generation == 1
    cached = bench.logins.cached("srv", "local")
    assert cached is not None and cached.bearer == bearer
    assert bench.logins.cached("srv", "other") is None
    assert (info.state, info.can_refresh, info.issuer) == ("ok", True, bench.at.issuer)
    assert bench.told() == ["login_asked", "login_done"]
    assert await bench.logins.wait(flow) == info
    assert await bench.logins.all() == [info]


async def test_one_registration_serves_all_who_log_in(bench: Bench) -> None:
    async with anyio.create_task_group() as group:
        for whose in "abcdef":
            group.start_soon(bench.log_in, whose)
    await bench.make().begin("srv", "x", BACK)
    assert len(bench.at.clients) == 1
    await bench.logins.begin("srv", "x", "http://127.0.0.1:9999/callback")
    assert len(bench.at.clients) == 2


async def test_a_client_that_was_registered_for_fewer_scopes_is_registered_anew(bench: Bench) -> None:
    for scope, clients in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        await bench.logins.begin("srv", "local", BACK, challenge=[bench.server.challenge(scope=scope)])
        assert len(bench.at.clients) == clients


async def test_a_registration_whose_secret_ends_is_made_anew(bench: Bench) -> None:
    bench.at.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await bench.log_in()
    made = bench.at.clients["client-1"]
    assert made["token_endpoint_auth_method"] == "client_secret_post"

    def ends_soon(seen: Any) -> Any:
        bench.at.clients["x"] = {**made, "client_id": "x"}
        late = {"client_id": f"late-{len(bench.at.seen)}", "client_secret_expires_at": bench.clock() + 60}
        return reply(made | late, 201)

    bench.at.pages["/register"] = ends_soon
    other = "http://127.0.0.1:1/callback"
    first = asked((await bench.logins.begin("srv", "local", other)).url)["client_id"]
    assert asked((await bench.logins.begin("srv", "local", other)).url)["client_id"] != first


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
async def test_each_way_of_client_authentication_works(bench: Bench, method: str) -> None:
    bench.at.metadata = {"token_endpoint_auth_methods_supported": [method]}
    assert (await bench.log_in()).state == "ok"


async def test_an_authorization_server_of_the_python_sdk_is_logged_in_to(bench: Bench) -> None:
    """Those of its versions 1 and 2 list both ways with a secret, and want `client_id` in the form with each."""
    bench.at.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"]}
    for path, answer in (("/token", bench.at.token), ("/revoke", bench.at.revoke)):
        bench.at.pages[path] = lambda seen, answer=answer: (  # type: ignore[misc]
            answer(seen) if "client_id" in seen.form else reply({"error": "invalid_client"}, 401)
        )
    assert (await bench.log_in()).state == "ok"
    assert await bench.logins.logout("srv", "local") is True


async def test_a_client_of_the_config_registers_nothing_and_its_secret_is_kept_nowhere(bench: Bench) -> None:
    bench.configure(client_id="pre", client_secret="open-sesame")
    await bench.log_in()
    assert bench.at.clients == {} and await bench.logins.logout("srv", "local") is True
    bench.configure(client_id="other")
    await bench.log_in()
    bench.configure(client_id="pre")
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")


async def test_a_document_is_the_client_where_the_authorization_server_takes_them(bench: Bench) -> None:
    bench.configure(client_document="https://sluice.example.com/client.json")
    bench.at.metadata = {"client_id_metadata_document_supported": True}
    flow = await bench.logins.begin("srv", "local", BACK)
    assert asked(flow.url)["client_id"] == "https://sluice.example.com/client.json" and not bench.at.clients


async def test_where_nobody_registers_the_person_is_told_what_to_register(bench: Bench) -> None:
    bench.at.drop = ("registration_endpoint",)
    with pytest.raises(LoginFailed, match=r"redirect URI http://127\.0\.0\.1:7412/callback"):
        await bench.logins.begin("srv", "local", BACK)


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    "resource",
    ["https://evil.example.com/mcp", "{url}/mcp2", "{url}/x/../mcp", "{url}%2fmcp", "http://u@{host}/mcp", "", 5],
)
async def test_metadata_of_another_resource_leads_to_no_authorization_request(bench: Bench, resource: Any) -> None:
    host = bench.server.url.removeprefix("http://")
    named = resource.format(url=bench.server.url, host=host) if isinstance(resource, str) else resource
    bench.server.prm = {"resource": named}
    with pytest.raises(LoginFailed):
        await bench.logins.begin("srv", "local", BACK)
    assert bench.at.seen == []


@pytest.mark.parametrize("issuer", ["{}/", "{}:443", "HTTP:{}", "https://evil.example.com"])
async def test_metadata_of_another_issuer_is_refused(bench: Bench, issuer: str) -> None:
    bench.at.metadata = {"issuer": issuer.format(bench.at.url).replace("HTTP:http", "HTTP")}
    with pytest.raises(LoginFailed, match="another issuer"):
        await bench.logins.begin("srv", "local", BACK)
    assert bench.at.clients == {}


@pytest.mark.parametrize(
    "endpoint",
    ["file:///etc/passwd", "javascript:alert(1)", "https://h/$(id)", "https://h/\nx", "http://h.example.com/a", "https://u@h/"],
)
async def test_nobody_is_sent_to_a_bad_authorization_endpoint(bench: Bench, endpoint: str) -> None:
    bench.at.metadata = {"authorization_endpoint": endpoint}
    with pytest.raises(LoginFailed):
        await bench.logins.begin("srv", "local", BACK)
    assert bench.at.clients == {}


async def test_without_s256_nobody_logs_in_unless_the_operator_says_so(bench: Bench) -> None:
    for bench.at.drop, bench.at.metadata in (
        (("code_challenge_methods_supported",), {}),
        ((), {"code_challenge_methods_supported": ["plain"]}),
    ):
        with pytest.raises(LoginFailed, match="S256"):
            await bench.logins.begin("srv", "local", BACK)
    bench.configure(pkce="assume")
    assert (await bench.log_in()).state == "ok"


@pytest.mark.parametrize("page", [(500, {}, b""), None, (503, {}, b"x"), (429, {}, b"")])
async def test_metadata_that_fails_is_not_taken_for_absent(bench: Bench, page: Any) -> None:
    bench.server.named = False
    bench.server.pages[f"{PRM}/mcp"] = page
    with pytest.raises(LoginUnavailable):
        await bench.logins.begin("srv", "local", BACK)
    assert bench.server.paths(PRM) == [] and bench.server.paths(METADATA) == [] and bench.at.seen == []


async def test_metadata_that_was_there_is_missed_and_no_older_rule_is_used(bench: Bench) -> None:
    await bench.logins.begin("srv", "local", BACK)
    bench.server.prm = None
    with pytest.raises(LoginFailed, match="no longer"):
        await bench.logins.begin("srv", "local", BACK)
    assert bench.server.paths(METADATA, "/register") == []


@pytest.mark.parametrize("has_document", [True, False])
async def test_a_server_of_2025_03_26_is_its_own_authorization_server(bench: Bench, has_document: bool) -> None:
    class Old(AuthorizationServer):
        def answer(self, seen: Any) -> Any:
            if seen.path == METADATA and not has_document:
                return reply({}, 404)
            if seen.path.startswith("/mcp"):
                return reply({}, 401)
            return super().answer(seen)

    old = Old(metadata={"authorization_response_iss_parameter_supported": has_document})
    async with listening(old):
        bench.configure(url=f"{old.url}/mcp", identity=old.url)
        flow = await bench.logins.begin("srv", "local", BACK)
        assert "resource" not in asked(flow.url)
        await bench.logins.finish(old.authorize(flow.url), BACK)
        document = next(seen for seen in old.seen if seen.path == METADATA)
        assert document.headers["mcp-protocol-version"] == "2025-03-26"
        assert old.is_good((await bench.logins.bearer("srv", "local")).token)


async def test_a_server_that_asks_for_nothing_needs_no_login(bench: Bench) -> None:
    bench.server.open, bench.server.prm = True, None
    with pytest.raises(LoginFailed, match="asks for no login"):
        await bench.logins.begin("srv", "local", BACK)


async def test_a_legacy_server_is_provoked_in_its_own_words(bench: Bench) -> None:
    bench.server.legacy, bench.server.scope = True, "read"
    flow = await bench.logins.begin("srv", "local", BACK)
    assert asked(flow.url)["scope"] == "read"
    assert [seen.method for seen in bench.server.seen if seen.path == "/mcp"] == ["POST", "POST", "POST", "DELETE"]


async def test_another_authorization_server_gets_neither_the_old_client_nor_the_old_tokens(bench: Bench) -> None:
    await bench.log_in()
    used = await bench.logins.bearer("srv", "local")
    moved = AuthorizationServer()
    async with listening(moved):
        bench.server.at = moved
        with pytest.raises(LoginNeeded):
            await bench.refused(replace(used), challenge=bench.server.challenge())
        assert "issuer_changed" in bench.told() and bench.at.grants == ["authorization_code"]
        flow = await bench.logins.begin("srv", "local", BACK)
        await bench.logins.finish(moved.authorize(flow.url), BACK)
        everything = b"".join(seen.body + str(seen.headers).encode() + seen.path.encode() for seen in moved.seen)
        assert not any(secret.encode() in everything for secret in bench.at.secrets)
        assert moved.is_good((await bench.logins.bearer("srv", "local")).token)


async def test_a_client_of_the_config_goes_to_no_second_authorization_server(bench: Bench) -> None:
    bench.configure(client_id="pre", client_secret="open-sesame")
    await bench.log_in()
    moved = AuthorizationServer()
    async with listening(moved):
        bench.server.at = moved
        with pytest.raises(LoginFailed, match="another authorization server"):
            await bench.logins.begin("srv", "local", BACK)
        bench.configure(issuer=moved.issuer)
        flow = await bench.logins.begin("srv", "local", BACK)
        assert (await bench.logins.finish(moved.authorize(flow.url), BACK)).issuer == moved.issuer


async def test_a_machines_secret_goes_to_no_second_authorization_server(bench: Bench) -> None:
    bench.configure(grant="client_credentials", client_id="m", client_secret="open-sesame")
    used = await bench.logins.bearer("srv", "gateway")
    moved = AuthorizationServer()
    async with listening(moved):
        bench.server.at = moved
        with pytest.raises(LoginNeeded):
            await bench.refused(used, "gateway", challenge=bench.server.challenge())
        for logins in (bench.logins, bench.make()):
            with pytest.raises(LoginUnavailable, match="another authorization server than before"):
                await logins.bearer("srv", "gateway")
        assert moved.paths("/token") == []
        bench.configure(issuer=moved.issuer)
        assert (await bench.logins.bearer("srv", "gateway")).issuer == moved.issuer


async def test_a_pinned_authorization_server_must_be_one_of_the_servers(bench: Bench) -> None:
    bench.configure(issuer="https://login.example.com")
    with pytest.raises(LoginFailed, match=r"login\.issuer"):
        await bench.logins.begin("srv", "local", BACK)
    bench.server.prm = {"authorization_servers": ["https://first.example.com", bench.at.issuer]}
    bench.configure(issuer=bench.at.issuer)
    assert (await bench.log_in()).issuer == bench.at.issuer


async def test_endpoints_of_the_config_need_no_metadata(bench: Bench) -> None:
    bench.at.pages[METADATA] = bench.server.pages[f"{PRM}/mcp"] = reply({}, 404)
    bench.server.named = False
    bench.configure(
        authorize=f"{bench.at.url}/authorize", token=f"{bench.at.url}/token", revoke=f"{bench.at.url}/revoke",
        client_id="pre", resource=bench.server.mcp,
    )  # fmt: skip
    flow = await bench.logins.begin("srv", "local", BACK)
    await bench.logins.finish(bench.at.authorize(flow.url, iss=""), BACK)
    assert await bench.logins.logout("srv", "local") is True and bench.at.clients == {}


async def test_two_servers_of_one_authorization_server_get_tokens_of_their_own(bench: Bench) -> None:
    second = ProtectedServer(at=bench.at)
    async with listening(second):
        settings = replace(bench.settings, server="two", identity=second.mcp, url=second.mcp)
        bench.logins.configure({"srv": bench.settings, "two": settings})
        await bench.log_in()
        flow = await bench.logins.begin("two", "local", BACK)
        await bench.logins.finish(bench.at.authorize(flow.url), BACK)
        one, two = await bench.logins.bearer("srv", "local"), await bench.logins.bearer("two", "local")
        resources = [seen.form.get("resource") for seen in bench.at.seen if seen.path == "/token"]
        assert one.token != two.token and one.login != two.login and resources == [bench.server.mcp, second.mcp]


@pytest.mark.parametrize(
    "name", ["https://169.254.169.254", "https://10.0.0.1", "https://[::ffff:127.0.0.1]", "http://10.0.0.1", "https://localhost"]
)
async def test_what_metadata_names_is_not_reached_where_it_may_not_be(bench: Bench, name: str) -> None:
    strict = bench.make(allowed=())
    bench.server.prm = {"authorization_servers": [name]}
    with pytest.raises(LoginFailed):
        await strict.begin("srv", "local", BACK)
    bench.server.prm = {}
    bench.at.metadata = {"token_endpoint": f"{name}/token"}
    info = bench.logins
    with pytest.raises(LoginFailed):
        flow = await info.begin("srv", "local", BACK)
        await info.finish(bench.at.authorize(flow.url), BACK)


# ---------------------------------------------------------------- scopes


async def test_scopes_come_from_the_challenge_and_stay_within_bounds(bench: Bench) -> None:
    bench.server.prm = {"scopes_supported": ["read", "write", "admin"]}
    assert asked((await bench.logins.begin("srv", "local", BACK)).url)["scope"] == "read write admin"
    bench.configure(max_scopes=("re*",))
    assert asked((await bench.logins.begin("srv", "local", BACK)).url)["scope"] == "read"
    challenge = bench.server.challenge(scope="admin")
    with pytest.raises(LoginFailed, match="max_scopes"):
        await bench.logins.begin("srv", "local", BACK, challenge=[challenge])


async def test_a_step_up_asks_for_all_and_two_an_hour_are_enough(bench: Bench) -> None:
    bench.server.scope = "base"
    await bench.log_in()
    urls = []
    for number in range(2):
        used = await bench.logins.bearer("srv", "local")
        challenge = bench.server.challenge("insufficient_scope", f"more{number}")
        for _ in range(3):
            with pytest.raises(LoginNeeded) as needed:
                await bench.refused(used, status=403, challenge=challenge)
        assert needed.value.scopes == (f"more{number}",)
        assert (await bench.logins.bearer("srv", "local")).token == used.token, "what it may, it still may"
        flow = await bench.logins.begin("srv", "local", BACK, challenge=[challenge])
        urls.append(asked(flow.url)["scope"])
        await bench.logins.finish(bench.at.authorize(flow.url), BACK)
    assert [set(url.split()) for url in urls] == [{"more0", "base"}, {"more1", "more0", "base"}]
    used = await bench.logins.bearer("srv", "local")
    with pytest.raises(LoginUnavailable, match="refuses every token"):
        await bench.refused(used, status=403, challenge=bench.server.challenge("insufficient_scope", "more2"))
    assert bench.told().count("scopes_added") == 2 and "refresh_token" not in bench.at.grants


async def test_rights_beyond_the_bounds_are_never_asked_for(bench: Bench) -> None:
    bench.configure(max_scopes=("read",))
    await bench.log_in(challenge=(bench.server.challenge(scope="read"),))
    used = await bench.logins.bearer("srv", "local")
    for scope, error in (("admin", LoginUnavailable), ("read admin", LoginNeeded)):
        challenge = bench.server.challenge("insufficient_scope", scope)
        with pytest.raises(error):
            await bench.refused(used, status=403, challenge=challenge)
    flow = await bench.logins.begin("srv", "local", BACK, challenge=[challenge])
    assert asked(flow.url)["scope"] == "read"


# ---------------------------------------------------------------- the answer


@pytest.mark.parametrize(
    ("more", "why"),
    [({"iss": "https://evil.example.com"}, "another authorization server"), ({"iss": ""}, "does not say"),
     ({"iss": "https://evil.example.com", "error": "LOOK", "error_description": "LOOK"}, "another authorization")],
)  # fmt: skip
async def test_a_mixed_up_answer_sends_its_code_nowhere_and_shows_nothing(bench: Bench, more: Any, why: str) -> None:
    with pytest.raises(LoginFailed, match=why) as failed:
        await bench.log_in(**more)
    assert bench.at.paths("/token") == [] and "LOOK" not in str(failed.value)
    assert bench.told()[-1] == "login_failed"


async def test_an_answer_counts_once_and_a_wrong_one_ends_nothing(bench: Bench) -> None:
    flow = await bench.logins.begin("srv", "local", BACK)
    good = bench.at.authorize(flow.url)
    for bad in ("", "code=x", "state=wrong&code=x", good.replace("state=", "state=x"), f"{good}&code=y"):
        with pytest.raises(LoginFailed):
            await bench.logins.finish(bad, BACK)
    with pytest.raises(LoginFailed, match="another address"):
        await bench.logins.finish(good, f"{BACK}/other")
    ended: list[str] = []

    async def answer(number: int) -> None:
        try:
            await (bench.logins, bench.make())[number % 2].finish(good, BACK)
            ended.append("done")
        except LoginFailed as error:
            ended.append(error.text)

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(answer, number)
    assert sorted(ended) == ["done", *["this answer was used already"] * 5]
    assert bench.at.grants == ["authorization_code"]


@pytest.mark.parametrize("stranger", [{}, {"browser": "another"}, {"browser": "first", "whose": "key:another"}])
async def test_a_login_goes_on_only_in_the_browser_and_for_the_person_that_began_it(
    bench: Bench, stranger: dict[str, str]
) -> None:
    """RFC 9700 4.7: else a person is logged in with the account of whoever sent them the link."""
    flow = await bench.logins.begin("srv", "local", BACK, browser="first")
    answer = bench.at.authorize(flow.url)
    with pytest.raises(LoginFailed, match="another browser or person"):
        await bench.logins.finish(answer, BACK, **stranger)  # type: ignore[arg-type]
    assert bench.at.grants == []
    assert (await bench.logins.finish(answer, BACK, browser="first", whose="local")).state == "ok"


@pytest.mark.parametrize("more", [{"identity": "other"}, {"client_id": "other"}, {"resource": ""}])
async def test_an_answer_counts_only_while_the_config_is_that_of_its_beginning(bench: Bench, more: Any) -> None:
    flow = await bench.logins.begin("srv", "local", BACK)
    bench.configure(**more)
    with pytest.raises(LoginFailed, match="has changed"):
        await bench.logins.finish(bench.at.authorize(flow.url), BACK)
    assert bench.at.paths("/token") == []


async def test_a_code_of_somebody_else_is_refused_by_its_verifier(bench: Bench) -> None:
    mine, theirs = [await bench.logins.begin("srv", whose, BACK) for whose in ("alice", "bob")]
    stolen = dict(parse_qsl(bench.at.authorize(theirs.url)))["code"]
    with pytest.raises(LoginFailed, match="invalid_grant"):
        await bench.logins.finish(bench.at.authorize(mine.url, code=stolen), BACK)
    with pytest.raises(LoginFailed, match="invalid_grant"):
        await bench.logins.wait(mine)
    assert [info.whose for info in await bench.logins.all()] == []


async def test_who_waits_hears_of_the_end_from_another_process(bench: Bench) -> None:
    flow = await bench.logins.begin("srv", "local", BACK)
    elsewhere = bench.make()
    async with anyio.create_task_group() as group:
        group.start_soon(elsewhere.finish, bench.at.authorize(flow.url), BACK)
        info = await bench.logins.wait(flow)
    assert info is not None and info.state == "ok"
    denied = await bench.logins.begin("srv", "local", BACK)
    with pytest.raises(LoginFailed, match="access_denied"):
        await elsewhere.finish(bench.at.authorize(denied.url, approve=False), BACK)
    with pytest.raises(LoginFailed, match="access_denied"):
        await bench.logins.wait(denied)
    late = await bench.logins.begin("srv", "local", BACK)
    bench.clock.added = 700
    assert await bench.logins.wait(late) is None
    with pytest.raises(LoginFailed, match="too old"):
        await bench.logins.finish(bench.at.authorize(late.url), BACK)


async def test_of_many_flows_the_oldest_go(bench: Bench) -> None:
    first = await bench.logins.begin("srv", "local", BACK)
    other = await bench.logins.begin("srv", "somebody", BACK)
    challenge = [bench.server.challenge()]
    for _ in range(105):
        await bench.logins.begin("srv", "local", BACK, challenge=challenge)
    with sqlite3.connect(bench.path / "state" / "sluice.db") as database:
        (count,) = database.execute("SELECT count(*) FROM item WHERE key LIKE 'login-flow/%'").fetchone()
    assert count == 101
    with pytest.raises(LoginFailed, match="replaced"):
        await bench.logins.finish(bench.at.authorize(first.url), BACK)
    assert (await bench.logins.finish(bench.at.authorize(other.url), BACK)).whose == "somebody"


@pytest.mark.parametrize(
    "page",
    [(500, {}, b"{}"), (200, {}, b"<html>"), (200, {}, b"x" * 2_000_000), None, (302, {"location": "/doc"}, b""),
     (200, {}, b'{"access_token":"' + b"a" * 20_000 + b'","token_type":"bearer"}')],
)  # fmt: skip
async def test_a_login_ends_plainly_whatever_the_token_endpoint_does(bench: Bench, page: Any) -> None:
    flow = await bench.logins.begin("srv", "local", BACK)
    bench.at.pages["/token"] = page
    with pytest.raises(LoginFailed) as failed:
        await bench.logins.finish(bench.at.authorize(flow.url), BACK)
    assert len(failed.value.text) < 300 and bench.at.paths("/token", "/doc") == ["/token"]
    assert await bench.logins.all() == []
