"""What an environment's picture shows of the patch."""

from dataclasses import replace

import pytest

import libra_gym
from libra_gym.envs import WeighingEnv


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, True),
        ({"name": "other"}, True),
        ({"meta": {"dataset": "folder"}}, False),
        ({"size": (448, 512)}, False),
        ({"photo": "scene-0000#1"}, False),
        ({"photo": "street"}, False),
    ],
)
def test_only_drawn_scenes_are_drawn_again(changes, drawn):
    bank = libra_gym.load_bank("demo").select([0])
    image = replace(
        bank.images[0], size=changes.get("size", bank.images[0].size), name=changes.get("photo", "scene-0000")
    )
    bank = replace(bank, images=(image,), name=changes.get("name", "demo"), meta=changes.get("meta", bank.meta))
    env = WeighingEnv(bank, split=None, render_mode="rgb_array")
    env.reset(options={"patch": 9})
    picture = env.render()
    scene = libra_gym.datasets.synthetic.redraw("scene-0000").image
    sack = WeighingEnv(replace(bank, meta={"dataset": "folder"}), split=None, render_mode="rgb_array")
    sack.reset(options={"patch": 9})
    assert scene.shape == (224, 256, 3)
    assert (picture == sack.render()).all() != drawn
