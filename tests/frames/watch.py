"""Watches all that Sluice says: taps towards its clients and its servers, and every frame of its own judged at the end.

with Watch(folder) as watch:
    servers = watch.behind(servers)      # the `servers:` section, with a tap in front of each
    url = watch.front(url)               # Sluice's own endpoint, with a tap in front of it
    command = watch.front_pipe(command)  # the same over stdio

Leaving the block fails if a frame that Sluice wrote is not one of its revision.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from frames.record import Frame, Web, pipe_frames
from frames.tap import Tap, tee

Json = dict[str, Any]


class Watch:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "frames"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._fronts: list[Tap] = []
        self._backs: list[Tap] = []

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._stack.close()
        if kind is None:
            self.check()

    def front(self, url: str) -> str:
        self._fronts.append(self._stack.enter_context(Tap(url)))
        return self._fronts[-1].url

    def front_pipe(self, command: list[str]) -> list[str]:
        return tee(command, self._folder / "front")

    def behind(self, servers: Json) -> Json:
        return {key: self._tapped(key, server) for key, server in servers.items()}

    def _tapped(self, key: str, server: Json) -> Json:
        if "url" in server:
            tap = self._stack.enter_context(Tap(server["url"]))
            self._backs.append(tap)
            return {**server, "url": tap.url}
        command, *arguments = tee([server["command"], *server.get("args", [])], self._folder / f"back-{key}")
        return {**server, "command": command, "args": arguments}

    # ------------------------------------------------------------ what was said

    def frames(self) -> Iterator[Frame]:
        """All that Sluice wrote."""
        for tap in self._fronts:
            yield from (frame for frame in Web().frames(tap.connections) if frame.by_server)
        for tap in self._backs:
            yield from (frame for frame in Web().frames(tap.connections) if not frame.by_server)
        for file in sorted(self._folder.iterdir()):
            is_front = file.name.startswith("front")
            yield from (frame for frame in pipe_frames(file) if frame.by_server == is_front)

    def check(self) -> None:
        frames = list(self.frames())
        assert frames, "nothing was said: the taps are not in the way"
        found = Counter(problem for frame in frames for problem in frame.problems())
        text = "\n".join(f"{count}x {problem}" for problem, count in found.most_common(20))
        assert not found, f"{sum(found.values())} of {len(frames)} frames are not of their revision:\n{text}"
