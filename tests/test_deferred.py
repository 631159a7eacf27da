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
