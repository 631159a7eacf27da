"""A library that is imported at its first use."""

import subprocess
import sys

PRELUDE = "import sys; from sluicegate.deferred import defer; defer('colorsys'); import colorsys; "


def shown(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_naming_it_imports_nothing_and_using_it_does() -> None:
    is_there = "print('ONE_THIRD' in vars(sys.modules['colorsys']));"
    assert shown(f"{is_there} colorsys.hsv_to_rgb(0, 0, 0); {is_there}") == ["False", "True"]


def test_who_looks_through_all_modules_does_not_import_it() -> None:
    looks = "import inspect; inspect.getmodule(lambda: 0);"
    code = f"{looks} print('ONE_THIRD' in vars(colorsys), 'colorsys' in sys.modules)"
    assert shown(code) == ["False", "True"]


def test_every_file_gets_the_same_classes() -> None:
    code = "used = colorsys.rgb_to_hls; import colorsys as again; print(used is again.rgb_to_hls)"
    assert shown(code) == ["True"]


def test_what_is_imported_already_or_missing_is_left_alone() -> None:
    deferred = "import json; defer('json'); defer('no_such');"
    code = f"{deferred} print(sys.modules['json'] is json, 'no_such' in sys.modules, 'dumps' in vars(json))"
    assert shown(code) == ["True", "False", "True"]


def test_a_module_of_a_deferred_package_comes_without_the_rest() -> None:
    is_there = "print(*(f'email.{one}' in sys.modules for one in ('charset', 'parser')))"
    assert shown(f"defer('email'); from email import charset; {is_there}") == ["True", "False"]


def test_a_deferred_package_has_its_own_names_when_they_are_asked_for() -> None:
    code = (
        "defer('json'); from json.decoder import JSONDecodeError; import json;"
        "print('dumps' in vars(json), json.dumps([1]), json.JSONDecodeError is JSONDecodeError)"
    )
    assert shown(f"sys.modules.pop('json', None); {code}") == ["False", "[1]", "True"]


def test_a_deferred_module_is_found_through_the_one_around_it() -> None:
    code = "import logging; defer('logging.config'); import logging.config;"
    assert shown(f"{code} print(callable(logging.config.dictConfig))") == ["True"]


DATACLASSES = """
from dataclasses import dataclass, FrozenInstanceError, replace
from sluicegate.deferred import defer_methods
defer_methods()

@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = ""

"""


def test_deferred_methods_of_dataclasses_are_those_that_it_would_have() -> None:
    code = (
        "one, two = Named(1, name='a'), Named(x=1, y=2, name='a')\n"
        "print(repr(one).replace(' ', ''), one == two, hash(one) == hash(two), one == Point(1), replace(one, y=3).y)\n"
        "for wrong in (lambda: setattr(one, 'x', 2), Named, lambda: Point(1, 2, 3), lambda: delattr(one, 'x')):\n"
        "    try: wrong()\n"
        "    except (FrozenInstanceError, TypeError) as error: print(type(error).__name__)"
    )
    done = shown(DATACLASSES + code)
    assert done[:5] == ["Named(x=1,y=2,name='a')", "True", "True", "False", "3"]
    assert done[5:9] == ["FrozenInstanceError", "TypeError", "TypeError", "FrozenInstanceError"]


def test_a_deferred_method_is_compiled_once() -> None:
    code = "before = Point.__init__; Point(1); after = Point.__init__; Point(2);"
    code += "print(before is after, after is Point.__init__)"
    expected = ["False", "True"] if sys.version_info < (3, 13) else ["True", "True"]
    assert shown(DATACLASSES + code) == expected


def test_an_annotation_that_is_text_is_compiled_where_it_is_asked_for() -> None:
    code = (
        "import typing; from sluicegate.deferred import defer_annotations; defer_annotations();"
        "events = []; sys.addaudithook(lambda event, _: events.append(event));"
        "made = typing.TypedDict('made', {'one': 'list[int]'});"
        "print('compile' in events, typing.get_type_hints(made, globals())['one'], 'compile' in events)"
    )
    assert shown(code) == ["False", "list[int]", "True"]


def test_a_deferred_pattern_finds_what_the_expression_finds() -> None:
    code = "from sluicegate.deferred import deferred_pattern; one = deferred_pattern('a(b+)');"
    assert shown(f"{code} print(one.search('xabb')[1], one.sub('-', 'abab'), one.pattern)") == ["bb", "--", "a(b+)"]
