"""A thin VGG and short settings, for the tests of pre-training."""

import torch
from torch import nn

from agents.pretraining import PretrainSettings
from libra_gym.backbones import Backbone


def vgg(channels: int = 8, levels: tuple[str, ...] = ()) -> Backbone:
    """VGG's plan, one thin convolution a block."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before in (3, channels, channels, channels, channels):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return Backbone("vgg", {"features": nn.Sequential(*layers)}, levels)


LEVELS = ("features.8", "features.11", "features.14")


def settings(**changes) -> PretrainSettings:
    return PretrainSettings(**{"train_from": "conv4_1", "crop": 64, "epochs": 2, "batch_size": 4, **changes})
