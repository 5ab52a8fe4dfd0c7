"""The feature cache: a frozen backbone looks at each photo once, and every later run reads what it saw by mmap.

A cache is a directory of safetensors shards and a `manifest.json`; docs/features.md describes it.

    build_features(open_dataset("shanghaitech_a", root), "train+validation", load_backbone("vgg16"), "banks/a")
    bank = open_features("banks/a")
"""

from libra_gym.features.build import build_features
from libra_gym.features.manifest import Manifest
from libra_gym.features.reading import ShardRows, open_features, verify_features

__all__ = ["Manifest", "ShardRows", "build_features", "open_features", "verify_features"]
