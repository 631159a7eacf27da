"""What has ended at a listener leaves memory at once: no circle keeps it until the collector comes to what is old."""

import gc

from listen_harness import call, open_session, site, until

from sluicegate.listen.http_session import HttpSession
from sluicegate.listen.resumable_response import ResumableResponse

ROUNDS = 8


def alive(kind: type) -> int:
    return sum(isinstance(one, kind) for one in gc.get_objects())


async def test_answers_and_sessions_of_legacy_clients_leave_no_circle() -> None:
    async with site() as here:
        gc.collect()
        gc.disable()
        try:
            answers, sessions = alive(ResumableResponse), alive(HttpSession)
            for _ in range(ROUNDS):
                async with here.client() as client:
                    await open_session(client)
                    for name in ("echo", "progress"):
                        answer = await client.post("/mcp", json=call(name))
                        assert answer.status_code == 200
                    assert (await client.delete("/mcp")).is_success
            await until(lambda: not here.handler.listening)
            here.handler.calls.clear()
            assert alive(ResumableResponse) - answers <= 1, "the frames of the last one may still be there"
            assert alive(HttpSession) - sessions <= 1
        finally:
            gc.enable()
