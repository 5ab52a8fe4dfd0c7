"""`libra reproduce` as a user meets it: plan, table, reasons, exit status, and what is written."""

import base64
import csv
import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from reproduce_helpers import Pretender, make_planner, make_shanghaitech, write_weights
from safetensors.torch import save_file
from typer.testing import CliRunner

from experiments.cli import app
from experiments.commands.reproduce import parse_backbones
from experiments.reproduce import speed
from experiments.reproduce.executors import LocalExecutor
from experiments.reproduce.jobs import with_needs
from experiments.reproduce.paper import Figure, paper_tables
from experiments.reproduce.report import Report
from experiments.reproduce.results import lines
from experiments.reproduce.schedule import Executed, execute
from experiments.reproduce.tables import CLASSIFIER, Entry
from libra_gym import LibraError
from libra_gym.models import find_model


@pytest.fixture
def root(tmp_path):
    return make_shanghaitech(tmp_path / "data")


@pytest.fixture
def pretender(monkeypatch):
    """Runs the jobs of the command."""
    executor = Pretender()
    monkeypatch.setattr("experiments.reproduce.executors.LocalExecutor", lambda width: executor)
    return executor


def reproduce(*arguments, root, out, status=0):
    given = ["reproduce", *arguments, "--root", str(root), "--out", str(out), "--weights", "random"]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def figures(path):
    with path.open() as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------------- the command


def test_a_dry_run_prints_the_plan_and_touches_nothing(root, tmp_path, pretender):
    shown = reproduce("game", "--dry-run", root=root, out=tmp_path / "out")
    assert "pre-train bcnet" in shown
    assert "7 of 7 jobs to run" in shown
    assert "(a guess)" in shown
    assert not (tmp_path / "out").exists()
    assert not pretender.ran


def test_a_table_stands_beside_the_papers_figures_and_the_second_time_costs_nothing(root, tmp_path, pretender):
    shown = reproduce("game", "--budget", "small", root=root, out=tmp_path / "out")
    assert len(pretender.ran) == 7
    assert "GAME3" in shown
    rows = figures(tmp_path / "out" / "game.csv")
    libra = next(row for row in rows if (row["row"], row["metric"]) == ("LibraNet", "GAME0"))
    assert (libra["paper"], libra["ours"], libra["judged_on"]) == ("55.9", "60.0", "test")
    assert float(libra["difference"]) == pytest.approx(4.1)
    again = reproduce("game", "--budget", "small", root=root, out=tmp_path / "out")
    assert "0 of 7 jobs to run" in again
    assert len(pretender.ran) == 7
    assert figures(tmp_path / "out" / "game.csv") == rows


def test_the_first_rows_are_finished_first(root, tmp_path, pretender):
    reproduce("plugin", root=root, out=tmp_path / "out")
    titles = [job.title for job in pretender.ran]
    first = next(i for i, title in enumerate(titles) if title.startswith("pre-train"))
    assert sum("evaluate" in title and "ImageNet" in title for title in titles[:first]) == 4


def test_tables_share_what_they_have_in_common(root, tmp_path, pretender):
    reproduce("game", root=root, out=tmp_path / "out")
    before = len(pretender.ran)
    reproduce("plugin", root=root, out=tmp_path / "out")
    titles = [job.title for job in pretender.ran[before:]]
    assert not any("bcnet" in title for title in titles)
    assert any("tasselnetv2" in title for title in titles)


def test_a_failed_job_empties_its_cells_with_the_reason_and_the_status_says_so(root, tmp_path, pretender):
    pretender.failing = "head_classification on bcnet"
    shown = reproduce("game", root=root, out=tmp_path / "out", status=1)
    assert "some jobs failed" in shown
    rows = figures(tmp_path / "out" / "game.csv")
    assert {row["ours"] for row in rows if row["row"] == "BCNet"} == {""}
    assert all("the sky is green" in row["reason"] for row in rows if row["row"] == "BCNet")
    assert all(row["ours"] and not row["reason"] for row in rows if row["row"] == "LibraNet")
    pretender.failing = ""
    reproduce("game", root=root, out=tmp_path / "out")
    assert all(row["ours"] for row in figures(tmp_path / "out" / "game.csv"))


def test_a_data_set_that_is_not_at_hand_is_no_failure_and_no_number(root, tmp_path, pretender):
    reproduce("sota", root=root, out=tmp_path / "out")
    rows = figures(tmp_path / "out" / "sota.csv")
    missing = [row for row in rows if row["where"] == "UCF-QNRF"]
    assert {(row["ours"], row["difference"], row["reason"]) for row in missing} == {
        ("", "", "ucf_qnrf: not found under ROOT")
    }
    assert {row["paper"] for row in missing} == {"88.1", "143.7"}


def test_without_any_data_the_table_has_the_papers_figures_and_reasons(tmp_path, pretender):
    (tmp_path / "empty").mkdir()
    reproduce("cross", root=tmp_path / "empty", out=tmp_path / "new" / "out")
    rows = figures(tmp_path / "new" / "out" / "cross.csv")
    assert len(rows) == 12
    assert all(row["paper"] and row["reason"] and not row["ours"] for row in rows)


def test_variants_of_a_table_lie_side_by_side(root, tmp_path, pretender):
    make_shanghaitech(root, "B")
    for variant in ((), ("--dataset", "shanghaitech_b"), ("--preset", "paper")):
        reproduce("seeds", "--seeds", "1", *variant, root=root, out=tmp_path / "out")
    names = {"seeds", "seeds-shanghaitech_b", "seeds-paper"}
    assert {path.stem for path in (tmp_path / "out").glob("*.csv")} == names
    page = (tmp_path / "out" / "seeds-shanghaitech_b.md").read_text()
    assert page.splitlines()[0].endswith(": the same on SHT B")
    assert "|  | where | MAE ours | MSE ours | judged on | remark |" in page  # the paper has no such figures
    assert "MAE paper" in (tmp_path / "out" / "seeds-paper.md").read_text()
    rows = figures(tmp_path / "out" / "seeds-shanghaitech_b.csv")
    assert {(row["where"], row["paper"], row["difference"]) for row in rows} == {("SHT B", "", "")}
    assert all(row["ours"] for row in rows)


@pytest.mark.parametrize(
    ("table", "name", "said"),
    [
        ("sota", "shanghaitech_b", "--dataset is not for the table sota, which has data sets of its own"),
        ("game", "shanghai", "'shanghai' is not a data set of photos; those are shanghaitech_a, "),
        ("game", "synthetic", "'synthetic' is not a data set of photos; those are shanghaitech_a, "),
    ],
)
def test_a_data_set_that_is_of_no_use_is_refused(root, tmp_path, pretender, table, name, said):
    with pytest.raises(LibraError, match=said):
        reproduce(table, "--dataset", name, root=root, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_is_named(root, tmp_path, pretender):
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraError, match="file/out cannot be made"):
        reproduce("game", root=root, out=tmp_path / "file" / "out")
    assert not pretender.ran


def test_several_seeds_give_mean_and_deviation(root, tmp_path, pretender):
    submit = pretender.submit

    def vary(job):
        pretender.mae = 70.0 if "seed 1" in job.title else 60.0
        submit(job)

    pretender.submit = vary
    reproduce("seeds", "--seeds", "2", root=root, out=tmp_path / "out")
    mae = next(row for row in figures(tmp_path / "out" / "seeds.csv") if row["metric"] == "MAE")
    assert (mae["paper"], mae["paper_std"], mae["seeds"]) == ("56.4", "1.8", "2")
    assert float(mae["ours"]) == 65.0
    assert float(mae["ours_std"]) == pytest.approx(50**0.5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--jobs", "2", "--ray", "auto"], "--jobs"),
        (["--backbone", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--backbone", "resnet=x"], "resnet"),
    ],
)
def test_mistakes_are_named_before_anything_runs(root, tmp_path, pretender, arguments, named):
    with pytest.raises(LibraError, match=named):
        reproduce("game", *arguments, root=root, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_sets_are_needed_for_all_but_speed(tmp_path, pretender):
    given = ["reproduce", "game", "--out", str(tmp_path / "out"), "--weights", "random"]
    with pytest.raises(LibraError, match="--root"):
        CliRunner().invoke(app, given, catch_exceptions=False)
    given[1] = "speed"
    assert CliRunner().invoke(app, [*given, "--dry-run"], catch_exceptions=False).exit_code == 0


def test_backbones_are_given_for_all_for_a_method_or_for_one_pre_training(tmp_path):
    plain = write_weights(tmp_path / "plain.safetensors")
    assert parse_backbones([str(plain)]) == {"bcnet": plain}
    assert parse_backbones([f"tasselnetv2={plain}", f"bcnet:shanghaitech_b={plain}"]) == {
        "tasselnetv2": plain,
        "bcnet:shanghaitech_b": plain,
    }
    assert parse_backbones([f"bcnet:ucf_cc_50:fold5={plain}"]) == {"bcnet:ucf_cc_50:fold5": plain}
    assert parse_backbones(["dense", "bcnet:shanghaitech_b=street"]) == {
        "bcnet": find_model("dense"),
        "bcnet:shanghaitech_b": find_model("street"),
    }


def test_a_backbone_that_is_no_weights_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "tuned.safetensors").write_bytes(b"weights")
    with pytest.raises(LibraError, match=r"tuned\.safetensors cannot be read as weights"):
        parse_backbones([str(tmp_path / "tuned.safetensors")])
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(LibraError, match=r"other\.safetensors has no 'features\.0\.weight'"):
        parse_backbones([str(tmp_path / "other.safetensors")])
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pth")
    said = CliRunner().invoke(
        app, ["reproduce", "speed", "--weights", str(tmp_path / "other.pth"), "--out", str(tmp_path / "out")]
    )
    assert "has no 'features.0.weight'" in str(said.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("role", ["vgg", "bcnet:paris", "bcnet:ucf_cc_50:fold6", "bcnet:shanghaitech_a:fold1"])
def test_a_backbone_for_nothing_is_refused(tmp_path, role):
    plain = write_weights(tmp_path / "plain.safetensors")
    with pytest.raises(LibraError, match="names no pre-training"):
        parse_backbones([f"{role}={plain}"])


# ---------------------------------------------------------------------------------------------------------- the report


def report(entries, executed=None, notes=()):
    table = paper_tables()["sota"]
    found = lines(table, entries, executed or Executed({}))
    return Report("sota", table, found, list(notes), [], "libra reproduce sota", {"python": "3"})


def test_the_files_hold_no_path_of_the_machine(tmp_path):
    told = report([], notes=[f"The photos are under {tmp_path / 'data'}, the table in {tmp_path}."])
    files = replace(told, places={str(tmp_path): "OUT", str(tmp_path / "data"): "ROOT"}).write(tmp_path)
    for text in (path.read_text() for path in files):
        assert str(tmp_path) not in text
    assert "The photos are under ROOT, the table in OUT." in files[0].read_text()


def test_only_words_lose_the_paths_and_not_the_picture():
    told = report([Entry("LibraNet", "SHT A", reason="gone: /x & y/z, /x & year")], notes=["see /d/e and /disk"])
    apart = replace(told, places={"/d": "ROOT", "/x & y": "OUT"})
    page = apart.html()
    assert "gone: OUT/z, /x &amp; year" in page
    assert "see ROOT/e and /disk" in page
    assert re.findall(r'src="([^"]*)"', page) == re.findall(r'src="([^"]*)"', told.html())
    assert "gone: OUT/z" in apart.csv()


def test_the_page_needs_no_other_file_and_says_everything():
    page = report([Entry("LibraNet", "SHT A", reason="lost <here>")], notes=["a & b"]).html()
    assert "lost &lt;here&gt;" in page
    assert "a &amp; b" in page
    assert "55.9" in page
    assert "CSRNet" in page  # the paper's other rows
    assert "http" not in page
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 1
    picture = base64.b64decode(sources[0].removeprefix("data:image/png;base64,"))
    assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR).shape[1] > 500


def test_markdown_has_a_cell_for_each_column_and_escapes_its_bars():
    text = report([Entry("LibraNet", "SHT A", reason="a | b")]).markdown()
    head, _, line = text.splitlines()[2:5]
    assert r"a \| b" in line
    assert head.count("|") == line.replace(r"\|", "").count("|") == 11
    assert "| 55.9 |  |  | 97.1 |" in line


def test_folds_are_averaged_and_one_that_is_missing_empties_the_line(root, tmp_path):
    jobs = [job for seed in make_planner(root, tmp_path / "out", seeds=2).runs(CLASSIFIER) for job in seed]
    Pretender(mae=10.0).submit(jobs[0])
    entry = Entry("LibraNet", "SHT A", "test", (tuple(jobs),))
    (line,) = report([entry]).lines
    assert line.reason == "not run yet"
    assert all(cell.ours is None for cell in line.cells)
    Pretender(mae=30.0).submit(jobs[1])
    (line,) = report([entry]).lines
    assert [cell.ours for cell in line.cells] == [Figure(20.0), Figure(40.0)]


def test_speed_is_backbone_and_scale_in_milliseconds(monkeypatch):
    asked = []

    def weighing(options, size):
        asked.append(size)
        return {"backbone_s": 0.5, "weigh_s": 0.02}

    monkeypatch.setattr(speed, "weighing", weighing)
    assert speed.measure(None) == {"total ms": 520.0, "backbone ms": 500.0, "LibraNet ms": 20.0}
    assert asked == [(720, 1080)]
    assert set(speed.measure(None)) == set(paper_tables()["speed"].metrics)


# ---------------------------------------------------------------------------------------------------------- everything


@pytest.mark.slow
def test_features_training_and_evaluation_really_run(tmp_path, monkeypatch):
    # On so few photos an agent has its first update late.
    monkeypatch.setattr("experiments.reproduce.planner.SMALL_EPOCHS", {"head": 3, "pretrain": 2, "libra": 100})
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    photo = cv2.imencode(".jpg", pixels)[1].tobytes()
    planner = make_planner(make_shanghaitech(tmp_path / "data", content=photo), tmp_path / "out", budget="small")
    entry = Entry("LibraNet", "SHT A", "test", planner.runs(CLASSIFIER, method=None))
    jobs = with_needs(entry.jobs)
    executed = execute(jobs, LocalExecutor(2), lambda *_: None)
    assert not executed.failed, executed
    (line,) = lines(paper_tables()["sota"], [entry], executed)
    mae, rmse = (cell.ours.mean for cell in line.cells)
    assert 0 < mae <= rmse < 1000
