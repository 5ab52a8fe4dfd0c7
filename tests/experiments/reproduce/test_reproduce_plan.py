"""The plan: every row of the paper's tables becomes commands that `libra` takes, and names decide what is reused."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from reproduce_helpers import Pretender, make_planner, make_shanghaitech, make_ucf_cc_50, write_weights

from agents.registry import parse_changes
from experiments.cli import load_command
from experiments.reproduce.costs import estimate, rates, whole
from experiments.reproduce.jobs import with_needs
from experiments.reproduce.paper import paper_tables
from experiments.reproduce.planner import PATCHES
from experiments.reproduce.tables import CLASSIFIER, LIBRA, ON_ONE_DATASET, TABLES, build, paper_rewards
from libra_gym import LibraError


@pytest.fixture
def root(tmp_path):
    return make_shanghaitech(tmp_path / "data")


def plan(table, root, out, **settings):
    planner = make_planner(root, out, **settings)
    entries = build(table, planner)
    return planner, entries, with_needs(job for entry in entries for job in entry.jobs)


def kinds(jobs):
    return [job.kind for job in jobs]


@pytest.mark.parametrize("table", TABLES)
def test_lines_are_the_papers_and_their_commands_are_ones_that_libra_takes(table, root, tmp_path):
    make_shanghaitech(root, "B")
    make_ucf_cc_50(root)
    _, entries, jobs = plan(table, root, tmp_path / "out")
    printed = paper_tables()[table].rows
    ours = {(entry.row, entry.where) for entry in entries}
    rows = {row for row, _ in ours} & printed.keys()
    assert {(row, where) for row in rows for where in printed[row]} <= ours
    assert jobs
    for job in jobs:
        for call in filter(None, (job.begin, job.resume)):
            if call.module == "experiments.cli":
                name, *arguments = call.arguments
                load_command(name).make_context(name, arguments)  # raises where an option is unknown or missing


def test_a_data_set_that_is_not_at_hand_has_a_reason_and_no_jobs(root, tmp_path):
    _, entries, jobs = plan("sota", root, tmp_path / "out")
    reasons = {entry.where: entry.reason for entry in entries}
    assert reasons["UCF-QNRF"] == f"ucf_qnrf: not found under {root}"
    assert reasons["SHT A"] is None
    assert all("shanghaitech_a" in job.title for job in jobs)


def test_cross_validation_has_a_run_for_each_fold_that_never_sees_its_test_photos(root, tmp_path):
    make_ucf_cc_50(root)
    planner, _, _ = plan("game", root, tmp_path / "out", dataset="ucf_cc_50")
    assert any("the mean over 5 folds" in note and "last epoch" in note for note in planner.notes)
    _, entries, _ = plan("sota", root, tmp_path / "out")
    (folds,) = next(entry.runs for entry in entries if entry.where == "UCF_CC_50")
    assert [job.settings["split"] for job in folds] == [f"fold{k}-test" for k in range(1, 6)]
    for k, job in enumerate(folds, 1):
        run = job.needs[0]
        assert run.settings["splits"] == [f"fold{k}-train", f"fold{k}-validation"]
        assert "test" not in str(run.settings)
        assert job.needs[1] == run.needs[0]
        assert f"{run.output / 'last.safetensors'}" in job.begin.arguments  # four photos are too few to choose by
    file = write_weights(tmp_path / "tuned.safetensors")
    _, _, jobs = plan("sota", root, tmp_path / "out", backbones={"bcnet": file})
    banks = [job for job in jobs if job.kind == "features" and job.settings["dataset"] == "ucf_cc_50"]
    assert [bank.settings["split"] for bank in banks] == ["all"]  # divided five times
    other = write_weights(tmp_path / "fold.safetensors", 1.0)
    given = {"bcnet": file, "bcnet:ucf_cc_50:fold2": other}
    planner, entries, jobs = plan("sota", root, tmp_path / "out", backbones=given)
    assert len([job for job in jobs if job.kind == "features" and job.settings["dataset"] == "ucf_cc_50"]) == 2
    assert "bcnet features of ucf_cc_50 fold2 come from the given backbone fold.safetensors." in planner.notes
    (folds,) = next(entry.runs for entry in entries if entry.where == "UCF_CC_50")
    assert [str(other) in job.needs[1].begin.arguments for job in folds] == [False, True, False, False, False]


def test_the_test_split_judges_where_it_is_at_hand_and_else_the_validation_split_which_the_notes_say(tmp_path):
    whole_set = make_shanghaitech(tmp_path / "whole")
    planner, entries, _ = plan("game", whole_set, tmp_path / "out")
    assert {entry.judged for entry in entries} == {"test"}
    assert not any("not comparable" in note for note in planner.notes)
    part = make_shanghaitech(tmp_path / "part", test=False)
    planner, entries, jobs = plan("game", part, tmp_path / "out")
    assert {entry.judged for entry in entries} == {"validation"}
    assert any("not comparable" in note for note in planner.notes)
    assert kinds(jobs).count("features") == 1  # the bank to learn from has the validation photos


def test_a_data_set_that_is_not_whole_is_noted(root, tmp_path):
    planner, _, _ = plan("game", root, tmp_path / "out")
    assert any("lacks 296 of 300 photos" in note for note in planner.notes)


def test_backbones_are_pre_trained_unless_a_file_is_given(root, tmp_path):
    _, _, jobs = plan("game", root, tmp_path / "out")
    assert kinds(jobs)[:2] == ["pretrain", "features"]
    assert str(jobs[0].output / "best.safetensors") in jobs[1].begin.arguments
    file = write_weights(tmp_path / "tuned.safetensors")
    planner, _, jobs = plan("game", root, tmp_path / "out", backbones={"bcnet": file})
    assert "pretrain" not in kinds(jobs)
    assert str(file) in jobs[0].begin.arguments
    assert any("tuned.safetensors" in note for note in planner.notes)


def test_a_given_backbone_looks_at_photos_in_the_size_that_it_learnt_them_in(root, tmp_path):
    make_shanghaitech(root, "B")
    plain = write_weights(tmp_path / "plain.safetensors")
    large = write_weights(tmp_path / "large.safetensors", scale=1.5)
    given = {"bcnet:shanghaitech_a": large, "bcnet:shanghaitech_b": plain}
    planner, entries, jobs = plan("cross", root, tmp_path / "out", backbones=given)
    for job in jobs:
        if job.kind == "features":
            enlarged = str(large) in job.begin.arguments
            assert (" --scale 1.5 " in " ".join(job.begin.arguments)) == enlarged
            assert job.settings.get("scale") == (1.5 if enlarged else None)
    assert any("large.safetensors, which looks at photos 1.5 times as large" in note for note in planner.notes)
    assert sum(entry.reason is None for entry in entries) == 2


def test_backbones_learn_and_look_in_the_precision_that_is_asked_for(root, tmp_path):
    _, _, plain = plan("game", root, tmp_path / "out")
    _, _, half = plan("game", root, tmp_path / "out", precision="bf16")
    for job in half:
        assert ("bf16" in job.begin.arguments) == (job.kind in ("pretrain", "features"))
    assert not any("--precision" in job.begin.arguments for job in plain)
    assert not {job.key for job in plain} & {job.key for job in half}
    file = write_weights(tmp_path / "tuned.safetensors")
    keys = [
        {job.key for job in plan("game", root, tmp_path / "out", backbones={"bcnet": file}, precision=precision)[2]}
        for precision in (None, "fp32")
    ]
    assert keys[0] == keys[1]  # features are in single precision if nothing is said


def test_a_transfer_looks_at_the_second_data_set_with_the_eyes_of_the_first(root, tmp_path):
    make_shanghaitech(root, "B")
    _, entries, _ = plan("cross", root, tmp_path / "out")
    (job,) = next(entry.jobs for entry in entries if entry.where == "A → B")
    run, bank = job.needs
    assert bank.settings["dataset"] == "shanghaitech_b"
    assert bank.needs == run.needs[0].needs
    assert bank.needs[0].settings["dataset"] == "shanghaitech_a"
    assert sum(entry.reason is None for entry in entries) == 2  # the other four need UCF-QNRF


def test_the_ablations_change_the_paper_s_rewards_and_nothing_else(root, tmp_path):
    _, entries, _ = plan("ablation", root, tmp_path / "out")
    settings = {entry.row: entry.jobs[0].needs[0].settings["settings"] for entry in entries if entry.jobs}
    full = settings["Full Designs"]
    assert full["env"]["rewards"] == {"shape": "paper"}
    assert (full["gamma"], full["loss"], full["quantile"]) == (0.0, "mse", 0.5)
    for row, switch in {
        "W/O Guiding": "guiding",
        "W/O Force Ending": "force_ending",
        "W/O Squeezing": "squeezing",
    }.items():
        assert settings[row].pop("env") == {"rewards": {"shape": "paper", switch: False}}
        assert settings[row] == {key: value for key, value in full.items() if key != "env"}


@pytest.mark.parametrize(
    ("table", "row", "changes"),
    [
        ("steps", "4", {"env": {"rewards": {"shape": "error"}, "max_steps": 4}}),
        ("steps", "8", {}),
        ("tolerance", "0.1", {"env": {"rewards": {"shape": "paper", "squeeze_tolerance": 0.1}}}),
        ("tolerance", "0.5", {}),
    ],
)
def test_rows_of_the_paper_s_own_setting_are_runs_of_the_other_tables(root, tmp_path, table, row, changes):
    def settings(table, row):
        _, entries, _ = plan(table, root, tmp_path / "out")
        return next(entry.jobs[0].needs[0].settings["settings"] for entry in entries if entry.row == row)

    base = settings("ablation", "our default rewards" if table == "steps" else "Full Designs")
    assert settings(table, row) == base | changes


def test_command_lines_say_the_settings_that_the_key_is_made_of(root, tmp_path):
    planner = make_planner(root, tmp_path / "out")
    recipe = replace(paper_rewards(planner).but(env__rewards__squeeze_tolerance=0.3), epochs=4)
    ((job,),) = planner.runs(recipe)
    arguments = job.needs[0].begin.arguments
    said = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"]
    assert parse_changes(said) == dict(recipe.changes)
    assert arguments[arguments.index("--epochs") + 1] == "4"


def recipes(jobs):
    """What each row's agent or head is trained by: the algorithm and its preset's name."""
    trained = [job.begin.arguments for job in jobs if job.kind == "train"]
    return [tuple(a[a.index(option) + 1] for option in ("--algo", "--preset")) for a in trained]


@pytest.mark.parametrize("table", ON_ONE_DATASET)
def test_a_table_of_one_data_set_can_be_made_on_another(table, root, tmp_path):
    make_shanghaitech(root, "B")
    _, here, before = plan(table, root, tmp_path / "out")
    planner, entries, jobs = plan(table, root, tmp_path / "out", dataset="shanghaitech_b")
    assert [entry.row for entry in entries] == [entry.row for entry in here]
    assert {entry.where for entry in entries} == {"SHT B"}
    assert {job.settings["dataset"] for job in jobs if job.kind in ("features", "pretrain")} == {"shanghaitech_b"}
    assert not {job.key for job in jobs} & {job.key for job in before}
    assert {preset for algo, preset in recipes(jobs) if algo == "libra_dqn"} == {"sparse"}  # most patches are empty
    assert "The paper has this table of SHT A alone; these are the same rows on SHT B." in planner.notes


def test_libranet_can_be_trained_by_the_papers_own_settings(root, tmp_path):
    planner, _, jobs = plan("plugin", root, tmp_path / "out", preset="paper")
    assert recipes(jobs) == [
        ("head_regression", "default"),
        ("head_classification", "default"),
        ("libra_dqn", "continuous_paper"),
        ("libra_dqn", "paper"),
        ("head_regression", "default"),
        ("libra_dqn", "continuous_paper"),
        ("head_classification", "default"),
        ("libra_dqn", "paper"),
    ]
    assert len({job.title for job in jobs}) == len(jobs)
    assert any("the paper's own settings" in note for note in planner.notes)
    _, entries, _ = plan("ablation", root, tmp_path / "out", preset="paper")
    settings = {entry.row: entry.jobs[0].needs[0].settings["settings"] for entry in entries}
    assert (settings["Full Designs"]["gamma"], settings["Full Designs"]["epochs"]) == (0.9, 100)
    assert settings["W/O Guiding"]["env"] == {"rewards": {"guiding": False}}
    assert "our default rewards" not in settings


def test_agents_learn_with_products_as_exact_as_is_asked_for(root, tmp_path):
    _, _, plain = plan("game", root, tmp_path / "out")
    _, _, fast = plan("game", root, tmp_path / "out", matmul="medium")
    for job in fast:
        assert ("medium" in job.begin.arguments) == (job.kind == "train")
    apart = {job.kind for job in plain} - {job.kind for job in fast if job.key in {other.key for other in plain}}
    assert apart == {"train", "evaluate"}
    _, _, exact = plan("game", root, tmp_path / "out", matmul="highest")  # as if nothing were said
    assert [(job.key, job.begin) for job in exact] == [(job.key, job.begin) for job in plain]


def test_a_small_data_set_is_not_thought_to_be_learnt_sooner_than_it_is(root, tmp_path):
    _, _, jobs = plan("game", root, tmp_path / "out")
    (agent,) = (job for job in jobs if job.settings.get("algo") == "libra_dqn")
    assert agent.units == 150_000 / PATCHES  # three photos, again and again


def test_a_small_budget_trains_less_and_is_another_job(root, tmp_path):
    ((full,),) = make_planner(root, tmp_path / "out").runs(LIBRA)
    ((small,),) = make_planner(root, tmp_path / "out", budget="small").runs(LIBRA)
    assert small.needs[0].settings["settings"]["epochs"] == 1
    assert full.needs[0].settings["settings"]["weighings"] > 1
    assert small.needs[0].settings["settings"]["weighings"] is None
    assert small.key != full.key


def test_names_of_jobs_depend_on_content_and_not_on_paths(root, tmp_path):
    def key(where, seed=0, recipe=CLASSIFIER, out="out"):
        return make_planner(where, tmp_path / out, seeds=2).runs(recipe)[seed][0].key

    first = key(root)
    assert key(root, out="elsewhere") == first
    shutil.copytree(root, tmp_path / "copy")
    assert key(tmp_path / "copy") == first
    assert key(root, seed=1) != first
    assert key(root, recipe=LIBRA) != first
    photo = next((tmp_path / "copy").rglob("IMG_2.jpg"))
    photo.write_bytes(b"another picture")
    assert key(tmp_path / "copy") != first


def test_seeds_table_has_the_papers_six_runs_unless_told_otherwise(root, tmp_path):
    assert len(plan("seeds", root, tmp_path / "out")[1][0].runs) == 6
    assert len(plan("seeds", root, tmp_path / "out", seeds=3)[1][0].runs) == 3
    assert len(plan("seeds", root, tmp_path / "out", budget="small")[1][0].runs) == 2


def test_a_photo_without_labels_is_a_reason(root, tmp_path):
    next(root.rglob("GT_IMG_2.mat")).unlink()
    _, entries, jobs = plan("game", root, tmp_path / "out")
    assert all("GT_IMG_2.mat" in entry.reason for entry in entries)
    assert not jobs


def test_wrong_weights_are_named(root, tmp_path):
    planner = make_planner(root, tmp_path / "out")
    object.__setattr__(planner.request, "weights", str(tmp_path / "none.safetensors"))
    with pytest.raises(LibraError, match=r"no file .*none"):
        planner.imagenet()


# --------------------------------------------------------------------------------------------------------------- costs


def test_what_was_measured_in_the_directory_replaces_the_guess(root, tmp_path):
    _, _, jobs = plan("game", root, tmp_path / "out", budget="small")
    cache = tmp_path / "out" / "cache"
    features = next(job for job in jobs if job.kind == "features")
    guessed = rates(cache)
    assert guessed["features"].measured == 0
    Pretender().submit(features)  # 105 s, five of them to start, for four photos
    measured = rates(cache)
    assert measured["features"].seconds == pytest.approx(25.0)
    assert measured["features"].measured == 1
    assert estimate(features, measured) == pytest.approx(105.0)
    assert measured["agent"] == guessed["agent"]


def test_a_chain_of_jobs_takes_as_long_on_many_machines(root, tmp_path):
    _, _, jobs = plan("speed", root, tmp_path / "out")
    known = rates(Path("nowhere"))
    assert whole(jobs, known, 8) == whole(jobs, known, 1) == estimate(jobs[0], known)
    _, _, jobs = plan("steps", root, tmp_path / "out")
    assert whole(jobs, known, 1) == pytest.approx(sum(estimate(job, known) for job in jobs))
    assert whole(jobs, known, 100) < whole(jobs, known, 1)
