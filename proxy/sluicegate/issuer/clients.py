"""Who clients say they are: registered here (RFC 7591), or by a document at their own URL."""

import logging
import time
from typing import Any, Final

from sluicegate.http.fetch import Fetcher, Unfetched
from sluicegate.oauth import Unfit, read_json, urls
from sluicegate.oauth.issuing import RegisteredClient, read_client
from sluicegate.store.keys import Sealer

_PURPOSE: Final = "client registration"
_FRESH: Final = 300.0
_MAX_KNOWN: Final = 256
MAX_ID: Final = 8192

log = logging.getLogger(__name__)


class ClientDirectory:
    """`issuer` is whose clients these are: another one's ids are unknown."""

    def __init__(self, sealer: Sealer, fetcher: Fetcher, issuer: str) -> None:
        self._sealer, self._fetcher, self._issuer = sealer, fetcher, issuer
        self._documents: dict[str, tuple[float, RegisteredClient]] = {}

    def register(self, document: dict[str, Any]) -> dict[str, Any]:
        """The answer to a registration. Clients have no secrets here: whoever installs one could read it. Raises
        `Unfit`."""
        client = read_client(document, "")
        registered = {"name": client.name, "redirect_uris": list(client.redirect_uris)}
        id = self._sealer.seal(_PURPOSE, registered, self._issuer)
        if len(id) > MAX_ID:
            raise Unfit("the registration is too large")
        return {
            "client_id": id, "client_name": client.name, "redirect_uris": list(client.redirect_uris),
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }  # fmt: skip

    def is_at_hand(self, id: str) -> bool:
        """Whether `find` asks nobody else."""
        cached = self._documents.get(id)
        return not id.startswith("https://") or (cached is not None and cached[0] > time.monotonic())

    async def find(self, id: str) -> RegisteredClient:
        """Raises `Unfit`, also where its document cannot be had."""
        if not id or len(id) > MAX_ID:
            raise Unfit("there is no such client")
        if id.startswith("https://"):
            return await self._described(id)
        registered = self._sealer.unseal(_PURPOSE, id, self._issuer)
        if registered is None:
            raise Unfit("there is no such client")
        return RegisteredClient(id, registered["name"], tuple(registered["redirect_uris"]))

    async def _described(self, url: str) -> RegisteredClient:
        """draft-ietf-oauth-client-id-metadata-document 3 and 4: an https URL with a path, and its own `client_id`."""
        if urls.split(url).path in ("", "/"):
            raise Unfit("a client ID URL has a path")
        cached = self._documents.get(url)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        try:
            document = read_json(await self._fetcher.get(url, "", f"client {urls.host(url)}"))
        except Unfetched as error:
            # Strangers name the URL and see the page: it says nothing of what a name inside means.
            log.warning("the document of a client cannot be had", extra={"host": urls.host(url), "why": str(error)})
            raise Unfit("the document of this client cannot be had") from None
        if document.get("client_id") != url or document.get("token_endpoint_auth_method", "none") != "none":
            raise Unfit("the document of this client is another one's, or asks for a secret")
        client = read_client(document, url)
        if len(self._documents) >= _MAX_KNOWN:
            self._documents.clear()
        self._documents[url] = time.monotonic() + _FRESH, client
        return client
