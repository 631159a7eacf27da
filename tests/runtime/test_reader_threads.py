"""Of what reads long, two are at work at once."""

import threading

import anyio

from sluicegate.runtime.reader_threads import MAX_READERS, asker, in_reader_thread


async def test_so_many_read_at_once_and_no_more() -> None:
    lock, both, counts = threading.Lock(), threading.Barrier(MAX_READERS), list[int]()
    reading = 0

    def read() -> None:
        nonlocal reading
        with lock:
            reading += 1
            counts.append(reading)
        both.wait(20)
        with lock:
            reading -= 1

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(4 * MAX_READERS):
                asker.set(f"key:{number}")
                group.start_soon(in_reader_thread, read)
    assert max(counts) == MAX_READERS and len(counts) == 4 * MAX_READERS
