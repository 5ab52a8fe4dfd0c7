"""RL Zoo with the algorithms of this package: `python -m agents.zoo train --algo libra_dqn --env LibraWeighing-v0`.

RL Zoo reads the algorithms it offers from one dictionary, and their hyper-parameters from a file or a module.
`register` adds those of our table that it lacks; `main` hands it our recipes for our environments, unless a --conf-file
is given, and calls its own commands. Algorithms with a loop of their own on the bank get the native batch of scales in
place of RL Zoo's `DummyVecEnv`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from agents.callbacks import STEPS_PER_PATCH
from agents.registry import ALGORITHMS, Algorithm, with_references
from agents.vec_env import ENV_IDS, make_vec_env
from libra_gym.banks import load_bank
from libra_gym.errors import LibraError

COMMANDS = ("train", "enjoy")

hyperparams: dict[str, dict[str, Any]] = {}
"""What RL Zoo reads, per environment; `main` fills it in for the algorithm that is asked for."""


def register() -> None:
    """Add every agent of our table to RL Zoo's that it does not know by that name."""
    try:
        from rl_zoo3.utils import ALGOS
    except ImportError:
        raise LibraError("RL Zoo is not installed; install it with: pip install 'libra-gym[zoo]'.") from None
    for name, algorithm in ALGORITHMS.items():
        if algorithm.kind != "head":
            ALGOS.setdefault(name, algorithm.load())


def recipe(algorithm: Algorithm, preset: str = "default") -> dict[str, Any]:
    """A preset as RL Zoo would write it.

    An epoch becomes as many time steps as the training patches of the demo bank take; `-n` gives another number.
    """
    settings = dict(algorithm.presets()[preset])
    epoch = STEPS_PER_PATCH * len(load_bank("demo").split("train"))
    least = settings.pop("weighings", 0) * STEPS_PER_PATCH
    if settings.pop("final_learning_rate", None) == 0.0:
        settings["learning_rate"] = f"lin_{settings['learning_rate']}"
    translated = {
        "n_timesteps": max(settings.pop("epochs") * epoch, least),
        "n_envs": settings.pop("num_envs"),
        "env_kwargs": {"split": "train", "order": "shuffled", **settings.pop("env", {})},
        "policy": algorithm.policy,
        "policy_kwargs": with_references(settings.pop("policy_kwargs", {})),
    }
    return translated | settings


def scales(env_fns: Sequence[Callable[[], gym.Env]], **kwargs: Any) -> VecEnv:
    """One native batch in place of these environments, where they are scales of ours."""
    first = env_fns[0]()
    spec, wrappers = first.spec, _wrappers(first)
    first.close()
    if spec is None or spec.id not in ENV_IDS:
        return DummyVecEnv(list(env_fns), **kwargs)
    if "HumanRendering" in wrappers:
        raise LibraError("One native batch of scales has no window; leave human rendering out (enjoy --no-render).")
    if wrappers:
        raise LibraError(
            f"The environment is wrapped in a {wrappers[0]}, which one native batch of scales cannot be; leave it out "
            "(env_wrapper, max_episode_steps), or take an algorithm of SB3's."
        )
    return make_vec_env(spec.id, len(env_fns), **spec.kwargs)


def _wrappers(env: gym.Env[Any, Any]) -> list[str]:
    """What changes an environment; those that only watch it are left out, since the scales watch themselves."""
    names = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, Monitor | gym.wrappers.OrderEnforcing | gym.wrappers.PassiveEnvChecker):
            names.append(type(env).__name__)
        env = env.env
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    """Run RL Zoo's `train` or `enjoy` with these arguments, or those of the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = given[0] if given else "", given[1:]
    if command in ("-h", "--help"):
        print(f"usage: agents.zoo {{{','.join(COMMANDS)}}} ...  (RL Zoo's own options: agents.zoo train --help)")
        return
    if command not in COMMANDS:
        raise LibraError(f"agents.zoo has no command {command!r}; take one of: {', '.join(COMMANDS)}.")
    register()
    from rl_zoo3.enjoy import enjoy
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.train import train

    known = argparse.ArgumentParser(add_help=False)
    known.add_argument("--algo", default="ppo")
    known.add_argument("--env")
    known.add_argument("-conf", "--conf-file")
    known.add_argument("--vec-env")
    known.add_argument("--env-kwargs", nargs="+")
    known.add_argument("--eval-env-kwargs", nargs="+")
    known.add_argument("-optimize", "--optimize-hyperparameters", action="store_true")
    asked, _ = known.parse_known_args(rest)
    algorithm = ALGORITHMS.get(asked.algo)
    if asked.optimize_hyperparameters and algorithm is not None:
        from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER

        if asked.algo not in HYPERPARAMS_SAMPLER:
            known_ones = ", ".join(HYPERPARAMS_SAMPLER)
            raise LibraError(f"RL Zoo cannot optimise the settings of {asked.algo!r}; it can of: {known_ones}.")
    usual = ExperimentManager.default_vec_env_cls
    if algorithm is not None and algorithm.kind == "libra":
        ExperimentManager.default_vec_env_cls = staticmethod(scales)  # type: ignore[assignment]  # it only calls it
    if algorithm is not None and command == "train" and asked.env in ENV_IDS and asked.conf_file is None:
        hyperparams[asked.env] = settings = recipe(algorithm)
        if asked.vec_env == "subproc":  # a process for each
            settings["n_envs"] = min(settings["n_envs"], 2 * (os.cpu_count() or 1))
        judged = asked.eval_env_kwargs
        learnt = asked.env_kwargs  # which stand in for all of the recipe's
        if learnt is None:
            learnt = [f"{name}:{value!r}" for name, value in settings["env_kwargs"].items()]
        rewards = [text for text in learnt if text.startswith("rewards:")]
        if judged and rewards and not any(text.startswith("rewards:") for text in judged):
            # Else an agent would be judged by rewards that it never saw.
            rest += ["--eval-env-kwargs", *judged, rewards[0]]  # in place of what was given
        rest += ["--conf-file", __name__]
    sys.argv = [f"{sys.argv[0]} {command}", *rest]
    try:
        {"train": train, "enjoy": enjoy}[command]()
    finally:
        ExperimentManager.default_vec_env_cls = usual


if __name__ == "__main__":
    from agents import zoo  # RL Zoo reads the settings from the module of this name, not from `__main__`

    try:
        zoo.main()
    except LibraError as error:
        sys.exit(f"agents.zoo: {error}")
