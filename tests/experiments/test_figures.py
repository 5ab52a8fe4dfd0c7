"""`libra show`, `libra gallery` and `libra figures` draw any model that counts, and say why where they cannot."""

import csv
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from banks import make_bank
from safetensors.torch import save_file
from typer.testing import CliRunner

from agents.heads import Head, HeadSettings
from experiments.cli import app
from experiments.commands.gallery import pick
from experiments.commands.show import choose_region
from experiments.runs import RunDirectory, plan
from experiments.runs.counted import CountedBank, count_bank, discount_of, needle_of
from experiments.runs.failures import CLASSES, Failure, analyse, by_cause
from experiments.runs.scenes import bank_scene, find_image, photo_scene, photo_source
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import KERNELS
from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

DRAWN = {"show": {"weighing.png", "count_map.png"}, "figures": {"counts.png", "intervals.png"}}


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer pixels are drawn sooner, and none of these tests reads them."""
    monkeypatch.setattr("experiments.commands.show.DPI", 30)


def libra(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def files(directory):
    return {path.name for path in directory.iterdir()}


def make_weigher(bank, channels=16, **about):
    torch.manual_seed(0)
    network = ScaleNetwork(NetworkSettings(channels=channels, hidden=(16,), q_scale=1.0, init_std=None))
    return Weigher(network, WeighingTask.intervals(bank.num_intervals), bank.quantizer, about)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.safetensors"
    make_bank(images=10).save(path)
    return path


@pytest.fixture(scope="module")
def run(bank, tmp_path_factory):
    """The directory of a run, with a model that never learnt."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    run.begin(plan(str(bank)), ["libra"])
    make_weigher(FeatureBank.load(bank)).save(run.model_path("best"))
    return run.path


# ---------------------------------------------------------------------------------------------------------------- show


def test_an_image_of_a_bank_is_shown_on_plain_ground(bank, run, tmp_path):
    told = libra("show", run, "--bank", bank, "--name", "image-3", "--out", tmp_path / "out", "--gif", "--mp4")
    assert files(tmp_path / "out") == DRAWN["show"] | {"weighing.gif", "weighing.mp4"}
    for name in files(tmp_path / "out"):
        assert str(tmp_path / "out" / name) in told


def test_a_photo_is_shown_with_the_models_own_backbone_and_with_dots_where_they_are_known(tmp_path):
    from libra_gym.backbones import load_backbone, preprocess

    backbone = load_backbone("mobilenet_v3_large", "random")
    weights, photo, dots = tmp_path / "weights.safetensors", tmp_path / "photo.png", tmp_path / "dots.csv"
    save_file({key: value.contiguous() for key, value in backbone.state_dict().items()}, weights)
    cv2.imwrite(str(photo), np.random.default_rng(0).integers(0, 256, (100, 130, 3), np.uint8))
    dots.write_text("x,y\n5,5\n120,90\n")
    model = tmp_path / "model.safetensors"
    about = {"backbone": backbone.name, "weights": backbone.weights_hash}
    make_weigher(make_bank(), backbone.channels, **about).save(model)
    libra("show", model, "--image", photo, "--weights", weights, "--points", dots, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == DRAWN["show"]
    dotted, plain = (photo_scene(photo, given, backbone, KERNELS["points"]) for given in (dots, None))
    assert (dotted.truth_known, plain.truth_known) == (True, False)
    assert dotted.bank.images[0].people == 2.0
    assert torch.nonzero(dotted.bank.counts).ravel().tolist() == [0, 13]  # of 4 rows and 5 columns
    seen = backbone(preprocess(plain.pixels)[None])[0].flatten(1).T
    torch.testing.assert_close(plain.bank.features, seen)
    larger = photo_scene(photo, dots, backbone, KERNELS["points"], scale=2.0)
    assert larger.pixels.shape == (200, 260, 3)
    assert torch.nonzero(larger.bank.counts).ravel().tolist() == [0, 5 * 9 + 7]  # of 7 rows and 9 columns
    assert larger.bank.points[0].tolist() == [[10, 10], [240, 180]]
    with pytest.raises(LibraError, match="--weights FILE"):
        libra("show", model, "--image", photo, "--out", tmp_path / "none")
    with pytest.raises(LibraError, match=r"dots\.txt"):
        libra("show", model, "--image", photo, "--weights", weights, "--points", "dots.txt", "--out", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --image"),
        (("--bank", "BANK", "--image", "photo.jpg"), "either --image"),
        (("--bank", "BANK"), "--name with one of its images, such as 'image-0'"),
        (("--bank", "BANK", "--name", "image-77"), "no image 'image-77'"),
        (("--bank", "BANK", "--name", "image-1", "--region", "0,0,1"), "x,y,width,height"),
        (("--bank", "BANK", "--name", "image-1", "--patch", "9,9"), "3 rows and 4 columns"),
        (("--bank", "BANK", "--name", "image-1", "--root", "."), "give --dataset"),
        (("--bank", "demo", "--name", "scene-0000"), "512 features"),
        (("--bank", "BANK", "--name", "image-1", "--points", "dots.csv"), "--points is for a photo"),
        (("--image", "photo.jpg", "--name", "image-1"), "--name goes with --bank"),
    ],
)
def test_what_cannot_be_shown_is_said(bank, run, tmp_path, arguments, message):
    given = [str(bank) if argument == "BANK" else argument for argument in arguments]
    with pytest.raises(LibraError, match=message):
        libra("show", run, "--out", tmp_path / "out", *given)
    assert not (tmp_path / "out").exists()


class TestTheRegion:
    IMAGE = BankImage("photo", "test", 12, 10, (370, 310), 40.0)
    PEOPLE = np.zeros((12, 10))
    PEOPLE[7, 8] = 5.0

    def choose(self, region=None, patch=None):
        return choose_region(region, patch, self.PEOPLE, self.IMAGE)

    def test_it_is_where_most_people_are(self):
        region = self.choose()
        assert region.patch == (7, 8)
        assert self.PEOPLE[region.window].sum() == 5.0

    def test_pixels_become_the_whole_patches_that_they_touch(self):
        larger = choose_region("20,32,30,1", None, self.PEOPLE, self.IMAGE, scale=2.0)  # in the photo's own pixels
        assert (larger.top, larger.left, larger.rows, larger.cols) == (2, 1, 1, 3)
        region = self.choose("40,63,60,2")
        assert (region.top, region.left, region.rows, region.cols) == (1, 1, 2, 3)
        pixels = np.zeros((370, 310, 3), np.uint8)
        assert region.cut(pixels).shape == (64, 96, 3)
        assert self.choose("300,360,10,10").cut(pixels).shape == (18, 22, 3)  # the padding has no pixels

    @pytest.mark.parametrize("patch", ["0,0", "11,9", "5,5"])
    def test_it_lies_round_a_given_patch(self, patch):
        region = self.choose(patch=patch)
        assert region.patch == tuple(int(part) for part in patch.split(","))
        inner = self.PEOPLE[region.window]
        assert inner.shape == (4, 5)

    @pytest.mark.parametrize(
        ("region", "patch", "message"),
        [
            ("0,0,64,64", "5,5", "rows 0 to 1"),
            ("300,0,20,20", None, "has 310 × 370 pixels"),
            ("0,0,0,9", None, "does not lie in the photo"),
            ("a,b,c,d", None, "x,y,width,height"),
            (None, "5", "row,column"),
        ],
    )
    def test_a_wrong_one_is_refused(self, region, patch, message):
        with pytest.raises(LibraError, match=message):
            self.choose(region, patch)

    def test_a_region_too_large_to_read_is_refused(self):
        image = BankImage("photo", "test", 20, 20, (640, 640), 0.0)
        with pytest.raises(LibraError, match="20 × 20 patches"):
            choose_region("0,0,640,640", None, np.zeros((20, 20)), image)


# -------------------------------------------------------------------------------------------------------------- photos


def test_photos_of_a_bank_come_from_its_data_set():
    from libra_gym.banks import load_bank
    from libra_gym.datasets.synthetic import redraw

    demo = load_bank("demo")
    scene = bank_scene(demo, find_image(demo, "scene-0003"), photo_source(demo, "synthetic", None))
    np.testing.assert_array_equal(scene.pixels, redraw("scene-0003").image)
    assert scene.bank.images[0].name == "scene-0003"


def test_a_name_may_leave_out_the_folder_if_only_one_image_has_it():
    names = ("train/a", "test/a", "train/b")
    images = tuple(BankImage(name, "train", 1, 1, (32, 32), 0.0) for name in names)
    bank = FeatureBank("small", torch.zeros(3, 2), torch.zeros(3), images)
    assert find_image(bank, "b") == 2
    assert find_image(bank, "test/a") == 1
    own = replace(bank, images=tuple(replace(image, name=f"{image.name}.jpg") for image in bank.images))
    assert find_image(own, "b") == 2
    assert find_image(own, "test/a") == find_image(own, "test/a.jpg") == 1
    with pytest.raises(LibraError, match="train/a, test/a"):
        find_image(bank, "a")


def test_crops_have_no_photo_and_strangers_are_named(small_bank):
    photo_of = photo_source(small_bank, "synthetic", None)
    assert photo_of(BankImage("scene-0000#3", "train", 1, 1, (32, 32), 0.0)) is None
    with pytest.raises(LibraError, match="no photo 'IMG_1'"):
        photo_of(BankImage("IMG_1", "train", 1, 1, (32, 32), 0.0))


def test_a_photo_that_was_made_smaller_is_shown_as_the_backbone_saw_it(small_bank):
    photo = photo_source(small_bank, "synthetic", None)(BankImage("scene-0000", "train", 4, 4, (112, 128), 0.0))
    assert photo is not None
    assert photo.shape == (112, 128, 3)


# ------------------------------------------------------------------------------------------------- gallery and figures


def test_the_gallery_has_cases_causes_and_a_table(bank, run, tmp_path):
    libra("gallery", run, "--bank", bank, "--split", "train", "--out", tmp_path, "--cases", "1")
    assert files(tmp_path) == {"best.png", "median.png", "worst.png", "causes.png", "failures.png", "images.csv"}
    with (tmp_path / "images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    errors = [abs(float(row["error"])) for row in rows]
    assert errors == sorted(errors, reverse=True)
    for row in rows:
        shares = sum(float(row[f"patches {name}"]) for name in CLASSES)
        assert shares == pytest.approx(float(row["error"]), abs=0.05)


def test_an_errors_cause_is_the_class_that_makes_most_of_it():
    # One image: a full patch is missed, an empty one is taken for a person.
    bank = FeatureBank(
        "small", torch.zeros(3, 2), torch.tensor([0.0, 2.0, 30.0]), (BankImage("a", "test", 1, 3, (32, 96), 32.0),)
    )
    people = np.array([1.0, 2.5, 20.0])
    (failure,) = analyse(CountedBank(bank, people, bank.quantizer.quantize(people), None))
    assert failure.error == pytest.approx(-8.5)
    assert failure.shares == pytest.approx((1.0, 0.0, 0.5, 0.0, -10.0))
    assert failure.cause == "too few in patches with 10 or more"


def test_failures_are_sorted_by_the_harm_of_their_cause():
    def image(number, *shares):
        return Failure(number, 100.0, 100.0 + sum(shares), (0.0, *shares, 0.0))

    images = [image(0, 30, 0, 0), image(1, 0, 0, -25), image(2, 0, 0, -26), image(3, 0, 1, 0)]
    groups = by_cause(images)
    assert list(groups) == ["too few in patches with 3 to 10", "too many in patches with under 1"]
    assert [failure.image for failure in groups["too few in patches with 3 to 10"]] == [2, 1]
    assert by_cause([image(0, 0, 0, 0)]) == {}


def test_best_median_and_worst_of_few_images_are_all_of_them():
    ranked = [Failure(i, 0.0, float(i), ()) for i in range(7)]
    chosen = {name: [image.image for image in images] for name, images in pick(ranked, 3).items()}
    assert chosen == {"best": [0, 1, 2], "median": [2, 3, 4], "worst": [6, 5, 4]}
    assert {len(images) for images in pick(ranked[:2], 3).values()} == {2}


def test_a_run_has_all_figures(bank, run, tmp_path):
    libra("figures", run, "--bank", bank, "--split", "train", "--out", tmp_path, "--gamma", "0.9")
    assert files(tmp_path) == DRAWN["figures"] | {"actions.png", "needle.png"}


def test_a_model_file_does_not_tell_its_discount(bank, run, tmp_path):
    assert "--gamma" in libra("figures", run / "best.safetensors", "--bank", bank, "--out", tmp_path)
    assert files(tmp_path) == DRAWN["figures"] | {"actions.png"}


def test_a_head_has_counts_and_intervals_but_no_steps(bank, tmp_path):
    opened = FeatureBank.load(bank)
    model = tmp_path / "head.safetensors"
    Head(HeadSettings(), 16, opened.quantizer).save(model)
    told = libra("figures", model, "--bank", bank, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == DRAWN["figures"]
    assert "takes no actions" in told
    with pytest.raises(LibraError, match="weighs nothing"):
        libra("show", model, "--bank", bank, "--name", "image-0", "--out", tmp_path / "out")


def test_another_backbones_bank_is_refused(bank, tmp_path):
    model = tmp_path / "model.safetensors"
    opened = FeatureBank.load(bank)
    make_weigher(opened, weights="a" * 64).save(model)
    opened.meta["weights"] = "b" * 64
    opened.save(tmp_path / "other.safetensors")
    for command in ("gallery", "figures"):
        with pytest.raises(LibraError, match="bbbbbbbbbbbb"):
            libra(command, model, "--bank", tmp_path / "other.safetensors", "--out", tmp_path / "out")


# ------------------------------------------------------------------------------------------------- whatever can count


def test_a_bank_is_counted_as_the_evaluator_counts_it(bank, run):
    opened = FeatureBank.load(bank)
    weigher = Weigher.load(run / "best.safetensors")
    counted = count_bank(weigher, opened)
    np.testing.assert_allclose(counted.totals, [record.count for record in weigher.evaluate(opened).records])


def test_the_needle_of_stable_baselines_dqn_is_its_own(small_bank):
    from stable_baselines3 import DQN, PPO

    from agents import make_vec_env

    envs = make_vec_env(num_envs=2, bank=small_bank)
    model = DQN("MlpPolicy", envs, policy_kwargs={"net_arch": [8]}, buffer_size=10)
    observations = torch.as_tensor(envs.reset())
    needle = needle_of(model)
    assert needle is not None
    with torch.inference_mode():
        torch.testing.assert_close(needle(observations[:, :-8], observations[:, -8:]), model.q_net(observations))
    assert needle_of(PPO("MlpPolicy", envs, n_steps=4, batch_size=8)) is None


def test_the_discount_is_the_runs_own(run, bank, tmp_path):
    assert discount_of(run) == 0.0  # the recipe's
    assert discount_of(run / "best.safetensors") is None
    learnt_on = tmp_path / "pretrained"  # `libra pretrain --method weighing` learns each action by itself
    learnt_on.mkdir()
    (learnt_on / "config.json").write_text('{"dataset": "folder", "settings": {"method": "weighing"}}')
    assert discount_of(learnt_on) == 0.0
    imitator = RunDirectory(tmp_path / "bc")
    imitator.begin(plan(str(bank), "bc"), ["libra"])
    assert discount_of(imitator.path) is None
