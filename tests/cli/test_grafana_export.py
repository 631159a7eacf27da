"""`sluice grafana export`: what it does with what is already in the folder."""

from pathlib import Path

from command_line import run


def test_a_file_that_differs_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    rules = tmp_path / "out/prometheus/rules.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text("groups: []\n")
    refused = run(tmp_path, "grafana", "export", "out")
    assert refused.returncode == 1 and "rules.yaml is there and differs" in refused.stderr and not refused.stdout
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [rules]
    assert rules.read_text() == "groups: []\n"
    assert run(tmp_path, "grafana", "export", "out", "--force").returncode == 0
    assert "SluiceDown" in rules.read_text()


def test_a_second_export_of_the_same_files_succeeds(tmp_path: Path) -> None:
    first, second = (run(tmp_path, "grafana", "export", "out") for _ in range(2))
    assert first.returncode == second.returncode == 0 and first.stdout == second.stdout


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in ("file", "file/below"):
        done = run(tmp_path, "grafana", "export", target)
        assert done.returncode == 1 and "file" in done.stderr and "internal error" not in done.stderr
