"""A connection to a server that has ended leaves memory at once: no circle keeps it until the collector comes."""

import gc

import httpx
from scripted_servers import Asked, endpoint, until

from sluicegate.http.client.connection import HttpClientConnection
from sluicegate.http.client.pool import HttpClient

ROUNDS = 8


def alive() -> int:
    return sum(isinstance(one, HttpClientConnection) for one in gc.get_objects())


async def test_connections_that_servers_close_leave_no_circle() -> None:
    async def closing(asked: Asked) -> None:
        await asked.reply({}, Connection="close")

    client = HttpClient()
    async with endpoint(closing) as (url, _):
        gc.collect()
        gc.disable()
        try:
            before = alive()
            for _ in range(ROUNDS):
                assert (await client.exchange(httpx.URL(url), [], b"{}")).status == 200
            await until(lambda: "0 open" in repr(client))
            assert alive() - before <= 1, "the frames of the last one may still be there"
        finally:
            gc.enable()
            await client.aclose()
