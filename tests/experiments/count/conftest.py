"""Photos, a video, a backbone, a model that has learnt nothing, and a short run."""

import cv2
import numpy as np
import pytest
import torch
from count_helpers import BACKBONE, picture
from rich.console import Console
from safetensors.torch import save_file

from experiments.runs import RunDirectory, plan, train
from libra_gym.backbones import load_backbone, preprocess
from libra_gym.counter import Counter
from libra_gym.datasets import open_dataset
from libra_gym.features import build_features
from libra_gym.network import NetworkSettings, ScaleNetwork, standard
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.uncertainty import Uncertainty
from libra_gym.weigher import Weigher


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(BACKBONE, "random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six photos with head dots."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(6):
        cv2.imwrite(str(root / f"{number}.jpg"), picture(number))
        np.savetxt(root / f"{number}.csv", rng.uniform(0, (128, 96), (10 + 5 * number, 2)), delimiter=",")
    return root


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (64, 64))
    for number in range(12):
        writer.write(picture(number, 64, 64))
    writer.release()
    return path


@pytest.fixture(scope="module")
def model(backbone, tmp_path_factory):
    """A counter that has learnt nothing."""
    torch.manual_seed(0)
    network = ScaleNetwork(NetworkSettings(channels=backbone.channels, hidden=(32,), q_scale=1.0, init_std=None))
    with torch.inference_mode():
        network.normalise(*standard(backbone(preprocess(picture(0))[None])[0].flatten(1).mT))
    weigher = Weigher(network, WeighingTask.intervals(40), Quantizer.log(40))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    Counter(backbone, weigher, Uncertainty(0.8, 1.0, 0.25, 30, 0.8, 0.9, 0.7), {"limits": "None."}).save(path)
    return path


@pytest.fixture(scope="module")
def run(folder, backbone, tmp_path_factory):
    """A run of one short epoch on one of the folder's photos, judged on the five others, with its weights file."""
    root = tmp_path_factory.mktemp("run")
    save_file({key: value.contiguous() for key, value in backbone.state_dict().items()}, root / "weights.safetensors")
    build_features(open_dataset("folder", folder), "all", backbone, root / "bank", workers=0)
    learning = {"learning_starts": 1, "update_every": 4, "batch_size": 1}  # of a few patches
    changes = {"policy_kwargs": {"network": {"hidden": [16]}}, **learning}
    splits = {"train_split": "all:1/6", "validation_split": "all:-1/6"}
    config = plan(str(root / "bank"), changes=changes, epochs=1, device="cpu", **splits)
    directory = RunDirectory(root / "run")
    directory.begin(config, ["libra", "train"])
    train(directory, config, Console(quiet=True))
    return directory.path
