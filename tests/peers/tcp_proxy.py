"""A TCP relay between a program and its database, which a test can cut as a broken network does: nothing arrives any
more, and nobody is told."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class TcpProxy:
    def __init__(self, port: int) -> None:
        self._to = port
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._passes.clear()

    def mend(self) -> None:
        """What was sent meanwhile arrives now."""
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += here, there
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._relay, args=pair, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._passes.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def tcp_proxy(port: int) -> Iterator[TcpProxy]:
    """To that port of this machine."""
    proxy = TcpProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
