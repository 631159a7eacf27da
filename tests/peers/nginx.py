"""A real nginx as a reverse proxy: where it comes from, and how a test runs one. Knows nothing of what is behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.debian import provide
from peers.fleet import free_port, running, wait_for_port


@contextmanager
def nginx(locations: str, folder: Path) -> Iterator[str]:
    """nginx with these locations: its origin. Nothing else is configured, so that its defaults count."""
    program, port = provide("nginx", "nginx-light"), free_port()
    file, log = folder / "nginx.conf", folder / "nginx.log"
    paths = " ".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr warn;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n"
        f"server {{ listen 127.0.0.1:{port};\n{locations}\n}} }}\n"
    )
    with running([program, "-c", str(file), "-e", "stderr"], log) as process:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}"
