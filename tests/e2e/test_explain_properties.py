"""`explain` and the guards never differ: for random policies, roles, classes, pins, argument rules, grants and servers,
what is explained is what becomes of the call. The facts are those of the process, and those of its store."""

import time
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Front, Scripted

from sluicegate import config
from sluicegate.app import explain_facts, policy_loading
from sluicegate.app import settings as room_settings
from sluicegate.approval.eligibility import VoteRequest
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.validity import ApprovalDeps
from sluicegate.audit.redact import Redactor
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.guards import ORDER, chain
from sluicegate.guards.approve import ApproveDeps, approve
from sluicegate.guards.enforce import enforce
from sluicegate.guards.name import name
from sluicegate.policy.facts import Facts
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.judge import PolicyEngine
from sluicegate.policy.pins import WORDS, Wanted
from sluicegate.policy.schemas import ArgumentRules, Schema
from sluicegate.policy.target import KINDS
from sluicegate.protocol.jsonrpc import Json, Notification
from sluicegate.protocol.model import REASON, Call, Client, Outcome, Result, Target, Trail, Verdict
from sluicegate.store.memory import MemoryStore
from tests.policy.policies import PROFILES, build, clients, lines

TOOLS = ["get_x", "get_y", "delete_x", "x", "put[x]"]
URIS = ["file:///a", "file:///a/../b", "x:y"]
RULES = ArgumentRules({("git", "get_x"): Schema({"properties": {"n": {"maximum": 1}}})}, {("git", "get_x"): "1"})
LEAD = Client("key:lea", ("role:lead", "role:ops"), "lea")
TERMS = {one.name: replace(one, remember=("once", "session", "15m")) for one in PROFILES.values()}

definitions = st.dictionaries(
    st.sampled_from(TOOLS),
    st.sampled_from([{}, {"readOnlyHint": True}, {"destructiveHint": True}, {"readOnlyHint": "yes"}]),
    min_size=2,
)
sections = st.fixed_dictionaries(
    {
        "command": st.just("x"),
        "pin": st.sampled_from(["review", "block", "review", "warn", "off"]),
        "tools": st.fixed_dictionaries(
            {
                "allow": st.sampled_from([["*"], ["*"], ["get_*", "x"]]),
                "deny": st.sampled_from([[], [], ["*delete*"]]),
                "classes": st.dictionaries(
                    st.sampled_from(["get_*", "delete_x", "x"]), st.sampled_from(["read", "write", "destroy"])
                ),
            }
        ),
    }
)
alone = st.sampled_from(
    [{}, {}, {"prefix": "hub"}, {"prefix": ""}, {"prefix": "", "unlisted": "forward", "pin": "warn"}]
)
toolsets = st.sampled_from([
    {}, {}, {"tools": ["git/get_*"]}, {"tools": ["!git/delete_*", "!k8s/x"]},
    {"tools": ["*/*"], "resources": ["git/file:///a", "!git/x:*"]}, {"tools": ["k8s/*"]},
])  # fmt: skip
questions = st.one_of(
    st.tuples(
        st.just("tools/call"), st.sampled_from([*TOOLS, *TOOLS, "nothing", "GET_X"]), st.sampled_from([{}, {"n": 2}])
    ),
    st.tuples(st.just("resources/read"), st.sampled_from(URIS), st.none()),
)


async def reached(call: Call) -> Outcome:
    return Result({"content": [], "contents": []})


class Town:
    """The guards that decide, with everything that they go by, in front of scripted servers."""

    def __init__(self, made: config.Config, rows: Any, shadow: bool, catalog: dict[str, Json]) -> None:
        self.config, self.store = made, MemoryStore()
        self.board = DefinitionPins(room_settings.pins(made), self.store)
        loaded = LoadedPolicy(build(rows, shadow), RULES, (), ())
        self.judge = PolicyEngine(policy_loading.make(made, loaded, None, self.board.has_accepted))
        self.book = policy_loading.make(made, loaded).rulebook
        servers = []
        for key in made.servers:
            server = Scripted(key, tools=_listed(catalog))
            server.identity = made.servers[key].identity
            server.answers |= dict.fromkeys(("tools/call", "resources/read"), reached)
            servers.append(server)
        about = room_settings.lists(made, made.servers, "http")
        told = {one: getattr(about, one) for one in ("prefixes", "transparent", "forward_unlisted", "plain")}
        self.front = Front(*servers, may_list=self.judge.may_list, may_see=self.judge.may_see, store=self.store,
                           pins=self.board, **told)  # fmt: skip
        self.desk = ApprovalQueue(
            self.store, replace(room_settings.approvals(made), hold_for=0.0, profiles=TERMS), self._world()
        )
        guards = dict.fromkeys(ORDER)
        self.handler = chain(
            {
                **guards,
                "name": name(self.front.resolver.resolve, lambda key: self.front.lists.namings[key].uris),
                "enforce": enforce(self.judge.decide, self.judge.check_arguments, self.judge.explains),
                "approve": approve(self.desk, self._means()),
            },
            self.front.router,
        )

    def _world(self) -> ApprovalDeps:
        async def tell(fields: Json) -> bool:
            return True

        return ApprovalDeps(roles_of=lambda who: frozenset(who.roles) | {who.principal},
                     client_of=lambda who, roles, is_operator: room_settings.client_of(self.config, who),
                     is_gone=partial(room_settings.is_gone, self.config), token_end=lambda principal, roles: None,
                     identity_of=partial(room_settings.identity_of, self.config),
                     revision=self.judge.revision, tell=tell)  # fmt: skip

    def _means(self) -> ApproveDeps:
        async def renew(call: Call, target: Target) -> Target | None:
            return target

        return ApproveDeps(
            decide=self.judge.decide, check_arguments=self.judge.check_arguments, renew=renew,
            current=lambda client: client, classify=self.judge.classify,
            review=self.board.review, elicits=lambda client: "", page_url=lambda approval: "",
            command=lambda words, approval: "", redactor=Redactor(b"k" * 32),
        )  # fmt: skip

    async def change(self, client: Client, key: str, definitions: dict[str, Json]) -> None:
        """What the server lists from now on."""
        self.front.servers[key].items["tools/list"] = _listed(definitions)
        self.front.lists.publish(key, None, Notification("notifications/tools/list_changed", {}))
        await self.front.lists.snapshot(key, client)

    async def accept(self, key: str, names: list[str]) -> None:
        kinds = {word: kind for kind, word in WORDS.items()}
        rows = [row for row in self.board.rows(key) if row["name"] in names]
        wanted = {Wanted(kinds[row["kind"]], row["name"], row["current"]) for row in rows}
        assert not isinstance(await self.board.accept(key, wanted, "local"), str) or not wanted

    async def happens(self, client: Client, method: str, params: Json) -> tuple[Verdict, str]:
        """What becomes of the call, and the approval that it waits for."""
        before = sum(server.count(method) for server in self.front.servers.values())
        outcome = await self.handler(Call(client, method, params, trail=Trail("c")))
        if sum(server.count(method) for server in self.front.servers.values()) > before:
            return Verdict.ALLOW, ""
        if isinstance(outcome, Result) and outcome.value["_meta"][REASON] == "approval_pending":
            return Verdict.ASK, outcome.value["_meta"]["dev.sluice/approval"]["id"]
        is_pending = (getattr(outcome, "data", None) or {}).get("reason") == "approval_pending"
        return Verdict.ASK if is_pending else Verdict.DENY, ""

    async def check(self, client: Client, method: str, key: str, own: str, arguments: Json | None) -> str:
        """Everything that is explained of it is what happens. Returns the approval that the call waits for."""
        field = "uri" if method == "resources/read" else "name"
        public = self._public(method, key, own)
        params: Json = {field: public} | ({} if arguments is None else {"arguments": arguments})
        explained = [
            await self.explain(client, method, text, arguments, is_stored)
            for text in (f"{key}/{own}", public) for is_stored in (False, True)
        ]  # fmt: skip
        happened, id = await self.happens(client, method, params)
        assert explained == [happened] * 4, (method, public, client, explained, happened)
        return id

    def _public(self, method: str, key: str, own: str) -> str:
        naming = self.front.lists.namings[key]
        if method == "resources/read":
            return naming.uris.public(own)
        entries = self.front.lists.catalogs.of(key)[0].whole
        listed = entries.by_own.get(own) if entries else None
        return listed.target.public if listed else f"{naming.prefix}__{own}" if naming.prefix else own

    async def explain(self, client: Client, method: str, text: str, arguments: Json | None, is_stored: bool) -> Verdict:
        revision = self.judge.revision()
        if is_stored:
            copy = MemoryStore()
            for place, value in (await self.store.scan("")).items():
                await copy.put(place, value)
            found = await explain_facts.stored(self.config, self.book.policy, copy, time.time())
            known = replace(found, profiles=TERMS)
        else:
            known = explain_facts.live(self.front.lists, self.board, self.desk, client, revision, self.store)
        found = await known.candidates(client, method, text, self.config.servers)
        facts = Facts.read(Facts(known.servers, found, client.roles).as_json())
        return self.book.explain_by(facts, client, KINDS[method], arguments).verdict


def _listed(definitions: dict[str, Json]) -> list[Json]:
    return [
        {"name": own, "inputSchema": {"type": "object"}} | ({"annotations": hints} if hints else {})
        for own, hints in definitions.items()
    ]


@settings(max_examples=150, deadline=None)
@given(
    lines, clients, sections, alone, definitions, definitions,
    st.lists(st.sampled_from(TOOLS)), st.lists(questions, min_size=1, max_size=4), st.booleans(), st.booleans(),
    toolsets,
)  # fmt: skip
def test_what_is_explained_is_what_happens(  # type: ignore[no-untyped-def]
    rows, client, section, single, first, then, accepted, asked, shadow, is_changed, toolset
) -> None:
    servers = {"git": section | single} | ({} if single else {"k8s": {"command": "y"}})
    roles = client.roles
    named = {one.principal: [role for role in one.roles if role.startswith("role:")] for one in (LEAD, client)}
    ways = {
        "keys": {
            name.removeprefix("key:"): {"hash": f"sha256:{sha256(name.encode()).hexdigest()}", "roles": own}
            for name, own in named.items() if name.startswith("key:")
        },
        "anonymous": {"roles": []},
    }  # fmt: skip
    settings_of = {"policy": {"use": "personal"}, "servers": servers, "clients": ways}
    made = config.make(settings_of | ({"toolsets": {"dev": toolset}} if toolset else {}), Path("/nowhere"))
    client, lead = (room_settings.client_of(made, one.principal) or one for one in (client, LEAD))
    client = replace(client, roles=roles, toolset="dev" if toolset else "")  # groups come with tokens alone

    async def main() -> None:
        town = Town(made, rows, shadow, first)
        async with town.front:
            with anyio.fail_after(60):
                for key in made.servers:
                    await town.front.lists.snapshot(key, client)
                await town.accept("git", accepted[::2])
                if is_changed:
                    await town.change(client, "git", then)
                    await town.accept("git", accepted[1::2])
                for method, own, arguments in asked:
                    id = await town.check(client, method, "git", own, arguments)
                    approval = await town.desk.get(id) if id else None
                    if approval is not None:
                        who = client if approval.binding.terms.tier == "self" else lead
                        ballot = VoteRequest("approve", seen=approval.binding.digest, scope="15m", comment="yes")
                        await town.desk.decide(id, who, ballot, "api")
                        await town.check(client, method, "git", own, {"other": 1})
        assert town.judge.errors == 0

    anyio.run(main)
