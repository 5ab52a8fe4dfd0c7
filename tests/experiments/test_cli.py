"""The `libra` command as a user meets it."""

import builtins
import json
import re
import subprocess
import sys
import warnings
from importlib.metadata import entry_points, version

import pytest

from experiments import cli, start
from experiments.cli import load_command

COMMANDS = (
    *("data", "features", "pretrain", "train", "evaluate", "compare", "reproduce"),
    *("count", "release", "show", "gallery", "figures", "bench", "demo"),
)


def libra(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "experiments.cli", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_help_lists_every_command(tmp_path):
    shown = libra("--help", cwd=tmp_path)
    assert shown.returncode == 0
    listed = re.findall(r"^\W ([a-z]+) ", shown.stdout.partition("Commands")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_the_version_is_that_of_the_package(tmp_path):
    shown = libra("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"libra-gym {version('libra-gym')}\n")


def test_every_command_is_there_with_its_options():
    for name in COMMANDS:
        command = load_command(name)
        assert command.name == name
        assert command.params or command.commands


def test_help_imports_no_command_and_a_slip_is_understood(tmp_path):
    asked = "from experiments.cli import app; app(['--help'], standalone_mode=False)"
    code = f"import sys; {asked}; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert shown.stdout.strip().endswith("False")
    assert "Did you mean 'train'" in libra("trian", cwd=tmp_path).stderr


def test_ctrl_c_while_modules_are_imported_is_no_error(monkeypatch):
    def stopped(name, *given, **named):
        if name == "experiments.cli":
            raise KeyboardInterrupt
        return imported(name, *given, **named)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", stopped)
    with pytest.raises(SystemExit) as end:
        start.main()
    assert end.value.code == 130


def test_the_command_begins_where_the_package_says():
    (libra,) = (point for point in entry_points(group="console_scripts") if point.name == "libra")
    assert libra.load() is start.main


def test_a_letter_that_no_font_has_makes_no_noise(monkeypatch):
    message = "Glyph 128106 (\\N{FAMILY}) missing from font(s) DejaVu Sans."
    monkeypatch.setattr(cli, "app", lambda: warnings.warn(message, stacklevel=1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cli.main()
    assert told == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("bench", "--only", "weather"), "weather"),
        (("data", "check", "--dataset", "shanghaitech_a", "--root", "nowhere"), "nowhere"),
        (("evaluate", "no-run", "--bank", "demo"), "no-run"),
        (("train", "--bank", "no-bank", "--out", "run"), "no-bank"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_status_2(tmp_path, arguments, named):
    failed = libra(*arguments, cwd=tmp_path)
    assert failed.returncode == 2
    assert named in failed.stderr
    assert "Traceback" not in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1


def test_benchmarks_are_written_as_one_flat_dict(tmp_path):
    done = libra("bench", "--only", "counts", "--out", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["counts_vs_scipy"] > 300


@pytest.mark.slow
def test_the_demo_counts_and_draws(tmp_path):
    done = libra("demo", "--out", "demo-out", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "scene-0104" in done.stdout
    assert "MAE" in done.stdout
    for picture in ("count_map.png", "weighing.png"):
        assert (tmp_path / "demo-out" / picture).stat().st_size > 20_000
