"""What a server wrote to stderr after a position: each line once, none lost, and no secret that begins before it."""

import pytest

from sluicegate.downstream.server_output import MAX_STDERR, ServerHealth, StderrTail
from sluicegate.downstream.settings import ServerSettings

SECRET = "correct horse battery"


class Output:
    def __init__(self) -> None:
        self.tail = StderrTail()
        settings = ServerSettings("a", "id", command=("x",), env={"PASS": SECRET}, redact=lambda text: text)
        self._health = ServerHealth(settings, lambda: self.tail)
        self.position = ""

    def new(self, position: str | None = None) -> list[str]:
        found = self._health.output(self.position if position is None else position)
        self.position = found["position"]
        return list(found["lines"])


def test_each_line_comes_once_also_equal_ones_and_those_that_grow() -> None:
    output = Output()
    assert output.new() == []
    for text, lines in (("a\na\n", ["a", "a"]), ("a\n", ["a"]), ("", []), ("half", []), (" whole\n", ["half whole"])):
        output.tail.add(text.encode())
        assert output.new() == lines
    assert output.new("") == ["a", "a", "a", "half whole"], "without a position all that is left"
    output.tail.add(b"its last words")
    assert output.new() == [], "it may go on"
    output.tail.exit = "it ended with code 1"
    assert output.new() == ["its last words"] and output.new() == []


def test_more_than_is_kept_is_shown_from_its_first_whole_line_on() -> None:
    output = Output()
    output.tail.add(b"first\n")
    output.new()
    output.tail.add(b"".join(b"line %d\n" % number for number in range(5_000)))
    lines = output.new()
    assert lines[-1] == "line 4999" and all(line.startswith("line ") for line in lines)
    assert sum(map(len, lines)) <= MAX_STDERR and output.new() == []


@pytest.mark.parametrize(
    "position", ["x", "-", "0" * 8, "0" * 8 + "-1", "0" * 8 + "-" + "9" * 50, ",,,", "\u0661-\u0661"]
)
def test_a_position_of_another_process_or_of_none_brings_all(position: str) -> None:
    output = Output()
    output.tail.add(b"one\n")
    assert output.new(position) == ["one"]


def test_a_position_is_found_among_those_of_all_workers() -> None:
    output, other = Output(), Output()
    output.tail.add(b"one\n")
    output.new()
    other.new()
    both = f"{other.position},{output.position}"  # as the port of all workers puts them together
    output.tail.add(b"two\n")
    assert output.new(both) == ["two"] and other.new(both) == []


def test_a_secret_that_comes_in_two_parts_is_masked_as_a_whole() -> None:
    output = Output()
    output.tail.add(f"pass {SECRET[:9]}".encode())
    assert output.new() == [], "the rest of the line may be the rest of the secret"
    output.tail.add(f"{SECRET[9:]}\nnext\n".encode())
    assert output.new() == ["pass [env:PASS]", "next"]
    output.tail.add("pass cor\u202erect horse\u200b battery\nhid\u202eden\n".encode())
    assert output.new() == ["pass [env:PASS]", "hid\u27e8U+202E\u27e9den"]
