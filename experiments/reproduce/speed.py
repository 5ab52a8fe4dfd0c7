"""How long one photo takes (Sec. 3.4, Execution Speed); a program of its own, so that nothing runs beside it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from experiments.benchmarks import BenchOptions
from experiments.benchmarks.training import weighing
from libra_gym.features.storage import write_whole

PHOTO = (720, 1080)
"""Height and width of the paper's photo."""


def measure(weights: Path | None) -> dict[str, float]:
    """Milliseconds for the paper's size of photo: VGG16, the weighing of its patches, and both."""
    seconds = weighing(BenchOptions(None, weights), PHOTO)
    backbone, scale = 1e3 * seconds["backbone_s"], 1e3 * seconds["weigh_s"]
    return {"total ms": backbone + scale, "backbone ms": backbone, "LibraNet ms": scale}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="a backbone's file, or 'random': the time is the same")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    figures = measure(Path(given.weights) if Path(given.weights).is_file() else None)
    write_whole(given.json, (json.dumps(figures, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
