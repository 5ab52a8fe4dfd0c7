"""`libra compare`: runs of every kind side by side."""

import csv
import io
import json
import math

import pytest
from banks import make_bank
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli import app
from experiments.compare import comparison_figure, fitting_table, group_runs, notes, read_run
from libra_gym import LibraError

COLUMNS = ("rollout/epoch", "validation/mae", "validation/rmse", "validation/game_3", "validation/mean_steps")
COLUMNS += ("time/total_timesteps", "time/seconds")


def write_run(path, maes, columns=COLUMNS, **changes):
    """The files of a run that `libra compare` reads; 1000 transitions and 90 seconds an epoch."""
    config = {"algo": "libra_dqn", "preset": "default", "seed": 0, "epochs": len(maes), "settings": {"gamma": 0.9}}
    config |= {"fingerprint": "abc", "validation_split": "validation", "bank": "/some/where", "wandb": None}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config | changes))
    if maes:
        with (path / "progress.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore")
            table.writeheader()
            for epoch, mae in enumerate(maes, 1):
                figures = (epoch, mae, mae + 1, mae + 2, 4.5, 1000 * epoch, 90.0 * epoch)
                table.writerow(dict(zip(COLUMNS, figures)) | {"time/time_elapsed": 77})
    return path


def compare(*arguments, status=0):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_errors_are_of_the_best_epoch_and_costs_of_the_whole_run(tmp_path):
    record = read_run(write_run(tmp_path / "run", [30.0, 10.0, 20.0], epochs=5))
    assert (record.best_epoch, record.mae, record.rmse, record.game_3) == (2, 10.0, 11.0, 12.0)
    assert (record.epochs, record.transitions, record.seconds, record.steps_per_patch) == (3, 3000, 270.0, 4.5)
    assert [point.mae for point in record.curve] == [30.0, 10.0, 20.0]
    assert notes(group_runs([record])) == [f"{tmp_path / 'run'} has finished 3 of 5 epochs."]


def test_an_error_of_zero_counts_and_one_that_is_no_number_does_not(tmp_path):
    assert read_run(write_run(tmp_path / "run", [math.nan, 0.0, 20.0])).best_epoch == 2
    with pytest.raises(LibraError, match="no finished epoch"):
        read_run(write_run(tmp_path / "other", [math.nan]))


def test_a_run_of_an_older_version_tells_what_it_can(tmp_path):
    record = read_run(write_run(tmp_path / "run", [3.0], [*COLUMNS[:4], "time/time_elapsed"]))
    assert (record.seconds, record.transitions, record.steps_per_patch) == (77.0, None, None)
    assert comparison_figure(group_runs([record])).axes[1].lines[0].get_xdata().size == 0


def test_the_plot_says_how_many_epochs_lie_beyond_its_edge(tmp_path):
    good = write_run(tmp_path / "good", [21.0, *[10.0] * 6])
    bad = write_run(tmp_path / "bad", [900.0, 41.0, 20.0])
    figure = comparison_figure(group_runs([read_run(good), read_run(bad)]))
    assert figure.get_suptitle() == "2 epochs above 40 not shown"
    assert figure.axes[0].get_ylim() == (0, 40)
    worse = comparison_figure(group_runs([read_run(bad)])).axes[0]  # most of it is above
    assert worse.get_yscale() == "log"
    assert worse.get_ylim()[1] > 900
    level = write_run(tmp_path / "level", [20.0, 10.0])
    assert comparison_figure(group_runs([read_run(level)])).get_suptitle() == ""


def test_runs_that_differ_by_their_seed_only_are_averaged(tmp_path):
    paths = [write_run(tmp_path / f"a{seed}", [mae], seed=seed) for seed, mae in enumerate((10.0, 12.0, 14.0))]
    moved = {
        "bank": "/else/where",
        "also": ["/further/off"],
        "wandb": "id",
        "matmul": "highest",
    }  # the others are older
    paths.append(write_run(tmp_path / "moved", [16.0], seed=3, **moved))
    paths.append(write_run(tmp_path / "b", [9.0], settings={"gamma": 0.0}))
    out = tmp_path / "out"
    shown = compare(*reversed(paths), "--out", out, "--json", tmp_path / "all.json").output
    assert "13.00 ± 2.58" in shown
    assert "0:01:30 ± 0:00:00" in shown
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "all.json").read_text())
    assert [run["mae"] for run in told["runs"]] == [9.0, 10.0, 12.0, 14.0, 16.0]
    (group,) = told["groups"]
    assert group["seeds"] == [0, 1, 2, 3]
    assert group["mean"]["mae"] == 13.0
    assert group["deviation"]["mae"] == pytest.approx(2.582, abs=1e-3)
    assert told["errors"] == []


@pytest.mark.parametrize("width", [60, 80, 100, 180])
def test_no_figure_is_cut_off_in_a_narrow_terminal(tmp_path, width):
    runs = [write_run(tmp_path / f"a-long-name-{seed}", [1234.5678, 30.0], seed=seed) for seed in (0, 1)]
    groups = group_runs([read_run(run) for run in runs])
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
    table, without = fitting_table(groups, console)
    console.print(table)
    printed = console.file.getvalue()
    assert "…" not in printed
    assert printed.count("30.00") >= 2
    assert ("transitions" in without) == ("2,000" not in printed)
    assert (width < 180) == bool(without)


def test_curves_of_a_group_share_a_colour_and_a_name(tmp_path):
    write_run(tmp_path / "a0", [40.0, 10.0])
    write_run(tmp_path / "a1", [30.0, 11.0], seed=1)
    write_run(tmp_path / "b", [30.0, 20.0], settings={"gamma": 0.0})
    write_run(tmp_path / "c", [30.0, 21.0], algo="ppo")
    time, transitions = comparison_figure(group_runs(read_run(tmp_path / name) for name in ("a0", "a1", "b", "c"))).axes
    assert [line.get_color() for line in time.lines] == ["C0", "C0", "C1", "C2"]
    assert list(time.lines[0].get_xdata()) == [1.5, 3.0]
    assert list(transitions.lines[0].get_xdata()) == [1000, 2000]
    _, names = transitions.get_legend_handles_labels()
    assert names == ["libra_dqn, default (a0)", "libra_dqn, default (b)", "ppo, default"]


def test_what_cannot_be_compared_is_said(tmp_path):
    runs = [read_run(write_run(tmp_path / name, [9.0], fingerprint=name)) for name in ("a", "b")]
    assert len(group_runs(runs)) == 2
    assert "different banks" in notes(group_runs(runs))[0]
    both = [read_run(write_run(tmp_path / name, [3.0], fingerprint=name)) for name in ("abc+also", "abc")]
    assert notes(group_runs(both)) == []  # what is learnt from besides does not matter


def test_directories_that_are_no_runs_are_named_and_the_others_listed(tmp_path):
    good, early = write_run(tmp_path / "good", [5.0]), write_run(tmp_path / "early", [])
    (tmp_path / "empty").mkdir()
    (write_run(tmp_path / "damaged", [5.0]) / "config.json").write_text("{")
    (write_run(tmp_path / "strange", [5.0]) / "config.json").write_text('{"method": "bcnet"}')
    (write_run(tmp_path / "columns", [5.0]) / "progress.csv").write_text("rollout/epoch\n1\n")
    bad = [early, *(tmp_path / name for name in ("empty", "damaged", "strange", "columns", "nowhere"))]
    result = compare(*bad, good, good, "--out", tmp_path, "--json", tmp_path / "all.json", status=2)
    assert result.stdout.count("5.00") == 1  # named twice, listed once
    assert "'" + str(early) + "' has no finished epoch" in result.stderr
    assert [line for line in result.stderr.splitlines() if "Traceback" in line] == []
    for path in bad:
        assert str(path) in result.stderr
    assert len(json.loads((tmp_path / "all.json").read_text())["errors"]) == len(bad)
    with pytest.raises(LibraError, match="is no run"):
        compare(tmp_path / "empty", "--out", tmp_path)
    with pytest.raises(LibraError, match="give another --out"):
        compare(good, "--out", good / "config.json")


def test_heads_imitators_and_agents_stand_in_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.runs.pictures.draw", lambda *_: {})
    make_bank().save(tmp_path / "bank.safetensors")
    small = (
        "--set",
        "num_envs=16",
        "--set",
        "learning_starts=20",
        "--set",
        "update_every=10",
        "--set",
        "policy_kwargs.network.hidden=[8]",
    )
    kinds = {"libra_dqn": small, "dagger": small, "head_classification": ()}
    for algo, changes in kinds.items():
        line = ["train", "--bank", str(tmp_path / "bank.safetensors"), "--algo", algo, "--epochs", "1", *changes]
        result = CliRunner().invoke(app, [*line, "--out", str(tmp_path / algo)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    shown = compare(*(tmp_path / algo for algo in kinds), "--out", tmp_path, "--json", tmp_path / "all.json").output
    for algo in kinds:
        assert algo in shown
    told = {run["algo"]: run for run in json.loads((tmp_path / "all.json").read_text())["runs"]}
    assert told["head_classification"]["steps_per_patch"] is None
    assert told["head_classification"]["transitions"] == 48  # the patches of four training images
    assert all(run["seconds"] > 0 for run in told.values())
    assert told["dagger"]["transitions"] > 48
