"""Files of pipes for an event loop, each closed once."""

import asyncio
import io


def pipe_file(descriptor: int, mode: str) -> io.FileIO:
    """What `connect_read_pipe` and `connect_write_pipe` of the running loop take; the loop closes the descriptor.

    uvloop closes the descriptor, and then the file. Between the two a thread may have got the same number: for the log,
    the store, or a handle on another child's end. Only asyncio's own loops leave the closing to the file."""
    is_left_to_file = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    return io.FileIO(descriptor, mode, closefd=is_left_to_file)
