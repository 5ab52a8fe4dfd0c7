"""How fast LibraDQN learns and weighs: against stock SB3, against its own matrix products, and against the backbone.

All three have the paper's network (2×1024), batch (128) and ratio (one update per 100 transitions).
"""

from __future__ import annotations

import time
from statistics import median

import torch
from stable_baselines3 import DQN
from torch import Tensor

from agents import LibraDQN, make_vec_env
from agents.libra_dqn import Learner
from experiments.benchmarks import BenchOptions, seconds
from libra_gym.backbones import load_backbone
from libra_gym.counts import PATCH
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

BLOCK = 512
SB3_SIZES = (100, 500, 2000)
"""Multiples of a hundred, so that one update per hundred transitions is what SB3's settings give."""
TRANSITIONS = 12_000


def run(options: BenchOptions) -> dict[str, float]:
    """`train_vs_sb3`, `train_vs_gemm`, `train_matmul_*` (higher is better), `weigh_share_of_backbone` (lower is)."""
    learner = _learner()
    ours = _rate(learner)
    stock = {number: _stock_dqn(number) for number in SB3_SIZES}
    results = {"train_transitions_per_s": ours}
    results |= {f"sb3_transitions_per_s_{number}": rate for number, rate in stock.items()}
    results["train_vs_sb3"] = ours / max(stock.values())
    results["train_vs_gemm"] = ours / _bare_products()
    results |= {f"train_matmul_{name}": times for name, times in _less_exact(learner).items()}
    return results | weighing(options)


def _learner() -> Learner:
    """LibraDQN's loop with half of the actions random, past its first updates."""
    model = LibraDQN(
        "ScalePolicy",
        make_vec_env(num_envs=BLOCK),
        learning_starts=2000,
        easy_drop=0.0,
        epsilon_start=0.5,
        policy_kwargs={"optimizer_class": torch.optim.SGD},
        seed=0,
    )
    learner = model.learner
    assert learner is not None
    while learner.updates < 20:
        learner.learn_block()
    return learner


def _rate(learner: Learner) -> float:
    """Transitions per second, updates included."""
    start, taken = time.perf_counter(), 0
    while taken < TRANSITIONS:
        taken += learner.learn_block().transitions
    return taken / (time.perf_counter() - start)


def _less_exact(learner: Learner) -> dict[str, float]:
    """How many times as fast it learns with less exact products of matrices, by turns with the exact ones."""
    rates: dict[str, list[float]] = {"highest": [], "high": [], "medium": []}
    before = torch.get_float32_matmul_precision()
    try:
        for _ in range(3):
            for name, found in rates.items():
                torch.set_float32_matmul_precision(name)
                learner.learn_block()
                found.append(_rate(learner))
    finally:
        torch.set_float32_matmul_precision(before)
    exact = median(rates.pop("highest"))
    return {name: median(found) / exact for name, found in rates.items()}


def _stock_dqn(number: int) -> float:
    """Transitions per second of SB3's own DQN on the same scales with the same network and ratio."""
    model = DQN(
        "MlpPolicy",
        make_vec_env(num_envs=number),
        learning_rate=1e-5,
        buffer_size=10_000,
        learning_starts=0,
        batch_size=128,
        gamma=0.9,
        train_freq=1,
        gradient_steps=number // 100,
        exploration_initial_eps=0.5,
        exploration_final_eps=0.5,
        target_update_interval=10**9,
        policy_kwargs={"net_arch": [1024, 1024], "optimizer_class": torch.optim.SGD},
        seed=0,
    )
    model.learn(2 * number)
    start, before = time.perf_counter(), model.num_timesteps
    model.learn(TRANSITIONS, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (time.perf_counter() - start)


def _bare_products() -> float:
    """Transitions per second if nothing but the matrix products of LibraDQN were computed.

    A block of 512 patches: features through the first layer once, some five steps through the rest, and an update's
    forward, backward and target products for every hundred transitions.
    """
    steps = 5
    features, weights, hidden = torch.rand(BLOCK, 512), torch.rand(BLOCK, 8), torch.rand(BLOCK, 1024)
    w1, w1w, w2, w3 = torch.rand(1024, 512), torch.rand(1024, 8), torch.rand(1024, 1024), torch.rand(9, 1024)
    x, h, g = torch.rand(128, 520), torch.rand(128, 1024), torch.rand(128, 9)
    w0 = torch.rand(1024, 520)

    def update() -> Tensor:
        for _ in range(2):  # the online and the target network forward
            x @ w0.t(), h @ w2.t(), h @ w3.t()
        g.t() @ h, g @ w3  # backward: each layer's weights, and what goes on to the layer below
        h.t() @ h, h @ w2
        return h.t() @ x

    def block() -> None:
        features @ w1.t()
        for _ in range(steps):
            weights @ w1w.t(), hidden @ w2.t(), hidden @ w3.t()
        for _ in range(BLOCK * steps // 100):
            update()

    return BLOCK * steps / seconds(block, repeats=5, warm_up=1)


def weighing(options: BenchOptions, size: tuple[int, int] = (768, 1024)) -> dict[str, float]:
    """Weighing the patches of a photo of this height and width, and the backbone's time on it; no patch ends early."""
    torch.manual_seed(0)
    task = WeighingTask.intervals(62)
    network = ScaleNetwork(NetworkSettings(q_scale=1.0, init_std=None))
    with torch.no_grad():
        network.out.bias[task.end] = -100.0  # never say `end`: all eight steps are walked
    weigher = Weigher(network, task, Quantizer.log(62))
    backbone = load_backbone("vgg16", options.weights or "random").eval()
    rows, cols = (-(-side // PATCH) for side in size)
    photo = torch.rand(1, 3, rows * PATCH, cols * PATCH)  # padded, as every photo is
    with torch.inference_mode():
        features = backbone(photo).flatten(2)[0].t().contiguous()
        whole = seconds(lambda: backbone(photo), repeats=3, warm_up=1)
    weighing = seconds(lambda: weigher.weigh_features(features), repeats=10, warm_up=2)
    return {
        "backbone_s": whole,
        "weigh_s": weighing,
        "weigh_share_of_backbone": weighing / whole,
    }
