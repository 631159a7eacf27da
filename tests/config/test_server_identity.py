"""What makes a server the same one, whatever it is called and wherever its program is installed."""

from sluicegate.config.models import HttpServer, StdioServer


def test_a_program_is_its_name_and_arguments_wherever_it_is_installed() -> None:
    one = StdioServer(command="/usr/bin/npx", args=("-y", "server@1"))
    assert one.identity == StdioServer(command="npx", args=("-y", "server@1"), cwd="/", env={"A": "1"}).identity
    others = [StdioServer(command="npx", args=("-y", "server@2")), StdioServer(command="npx", args=("-y server@1",)),
              StdioServer(command="uvx", args=("-y", "server@1"))]  # fmt: skip
    assert len({one.identity, *(other.identity for other in others)}) == 4


def test_a_url_is_a_server_of_its_own() -> None:
    one = HttpServer(url="https://a.test/mcp")
    assert one.identity == HttpServer(url="https://a.test/mcp", headers={"X": "1"}).identity
    assert one.identity != HttpServer(url="https://a.test/mcp2").identity
    assert one.identity != StdioServer(command="https://a.test/mcp").identity


def test_another_sluice_is_one_for_each_key() -> None:
    """Its lists are those of the key: what one of them was shown is not kept for another."""

    def reached(key: str) -> HttpServer:
        server = HttpServer(url="https://a.test/mcp", headers={"Authorization": key})
        server.as_sluice()
        return server

    assert reached("Bearer one").identity == reached("Bearer one").identity
    assert len({reached("Bearer one").identity, reached("Bearer two").identity}) == 2
    assert "one" not in reached("Bearer one").identity
