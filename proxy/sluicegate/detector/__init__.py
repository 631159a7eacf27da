"""A hook that comes along: a small HTTP service that finds secrets in arguments and results. Sluice asks it as any.

It answers what Sluice asks of a hook: arguments with a secret are denied, a result's are redacted or withheld.
What cannot be read is refused with a status, which is no verdict. What is read and cannot be judged whole is denied or
withheld. Nothing that was asked is logged, and an answer names a secret's kind alone.
"""

from typing import Final

import anyio.to_thread
import standardwebhooks
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sluicegate.detector.secrets import Scanner
from sluicegate.hooks.messages import MAX_POINTER, MAX_POINTERS, MAX_REASON
from sluicegate.protocol.jsonrpc import Json, Malformed, decode, inside

_HELD: Final = {"call": "arguments", "result": "result"}
_MAX_NODES: Final = 200_000


class DetectorService:
    """An ASGI application. `at_once` texts are scanned at a time. `secret` signs questions, empty for none. A result
    with a secret is redacted, or withheld where it `withholds`."""

    def __init__(self, scanner: Scanner, secret: str, withholds: bool, at_once: int) -> None:
        self._scanner, self._withholds = scanner, withholds
        self._webhook = standardwebhooks.Webhook(secret) if secret else None
        self._turns = CapacityLimiter(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405, headers={"allow": "POST"})
        body = await request.body()  # bounded by the port
        async with self._turns:
            status, answer = await anyio.to_thread.run_sync(self._judge, body, dict(request.headers))
        return JSONResponse(answer, status)

    def _judge(self, body: bytes, headers: dict[str, str]) -> tuple[int, Json]:
        if self._webhook is not None:
            try:
                self._webhook.verify(body, headers, json_parse=False)
            except (standardwebhooks.WebhookVerificationError, ValueError):
                return 401, {"error": "the signature is missing, old or wrong"}
        try:
            asked = decode(body, max_nodes=_MAX_NODES)
        except Malformed:
            return 400, {"error": f"no JSON, or more than {_MAX_NODES} values"}
        on = inside(asked, "on")
        if not isinstance(on, str) or on not in _HELD or not isinstance(inside(asked, _HELD[on]), dict):
            return 400, {"error": "this is no question about a call or a result"}
        return 200, self._verdict(on, asked)

    def _verdict(self, on: str, asked: Json) -> Json:
        refusal = "deny" if on == "call" else "withhold"
        if asked.get("masked") is not False or asked.get("cut") is not False:
            return {"verdict": refusal, "reason": "the detector must see values whole: set sees: whole at this hook"}
        try:
            places = self._scanner.places(asked[_HELD[on]], MAX_POINTERS, MAX_POINTER)
        except TimeoutError:
            return {"verdict": refusal, "reason": "the search for secrets took too long"}
        if not places.kinds:
            return {"verdict": "allow"}
        reason = f"there is a secret in the {_HELD[on]}: {', '.join(places.kinds)}"[:MAX_REASON]
        if on == "call" or self._withholds or places.pointers is None:
            return {"verdict": refusal, "reason": reason}
        return {"verdict": "redact", "reason": reason, "redact": list(places.pointers)}
