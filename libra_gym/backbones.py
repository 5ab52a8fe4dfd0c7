"""Frozen stride-32 feature extractors from torchvision: one feature vector per 32×32 patch of a photo.

The paper weighs the features of VGG16's convolutional part, conv1–5 (Section 3.1). Every torchvision classifier whose
last map has stride 32 comes in by the same door, and so do weights from a file.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model, list_models  # type: ignore[import-untyped]

from libra_gym.errors import LibraError
from libra_gym.models import RELEASED, find_model

STRIDE = 32
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PRETRAINED = "libra_gym.backbone"
"""Under this name a file that `libra pretrain` wrote says what is in it."""

# Where the maps of strides 8, 16 and 32 are finished; for VGG these are the pooled conv3, conv4 and conv5.
LEVELS: Mapping[str, tuple[str, str, str]] = {
    "vgg16": ("features.16", "features.23", "features.30"),
    "vgg16_bn": ("features.23", "features.33", "features.43"),
    "resnet50": ("layer2", "layer3", "layer4"),
    "mobilenet_v3_large": ("features.6", "features.12", "features.16"),
    "efficientnet_b0": ("features.3", "features.5", "features.8"),
    "convnext_tiny": ("features.3", "features.5", "features.7"),
}

_HEADS = {"avgpool", "classifier", "fc", "head"}  # from the first of these children on, a classifier is no longer a map


class Backbone(nn.Sequential):
    """The convolutional part of a torchvision classifier, frozen and in evaluation mode.

    Maps normalised images `(B, 3, H, W)`, with sides that are multiples of 32, to `(B, channels, H/32, W/32)`. The
    state dict has torchvision's own keys, so a saved one is a weights file like any other.
    """

    stride = STRIDE

    def __init__(self, name: str, trunk: Mapping[str, nn.Module], levels: tuple[str, ...] = ()) -> None:
        super().__init__(OrderedDict(trunk))
        self.name = name
        self.levels = levels
        self.requires_grad_(False).eval()
        self.channels = self._measure_channels()
        self.to(memory_format=torch.channels_last)

    def forward(self, input: Tensor) -> Tensor:
        """Features of normalised images; with levels, each is averaged over the patch and they are concatenated."""
        x = input.contiguous(memory_format=torch.channels_last)  # an eighth less time than NCHW for VGG16 on a CPU
        if not self.levels:
            return super().forward(x)
        maps = []
        for name, unit in self.units():
            x = unit(x)
            if name in self.levels:
                maps.append(x)
        return join_levels(maps)

    def _measure_channels(self) -> int:
        try:
            with torch.inference_mode():
                shape = self(torch.zeros(1, 3, 2 * STRIDE, 2 * STRIDE)).shape
        except (RuntimeError, AssertionError):
            shape = torch.Size()
        if len(shape) != 4 or shape[2:] != (2, 2):
            raise LibraError(f"backbone {self.name!r} has no stride-32 feature map; take one of {', '.join(LEVELS)}")
        return shape[1]

    def units(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers or blocks in the order in which an image goes through them, with their names."""
        for name, child in self.named_children():
            if name == "features":
                yield from ((f"{name}.{index}", unit) for index, unit in child.named_children())
            else:
                yield name, child

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the parameters' names and values: equal for equal weights, whatever file they came from."""
        return hash_weights(self)


def load_backbone(
    name: str = "vgg16", weights: str | Path = "imagenet", device: str | torch.device = "cpu"
) -> Backbone:
    """A frozen backbone by its torchvision name; `name:multi` concatenates the levels of strides 8, 16 and 32.

    `weights` is `"imagenet"` (torchvision's default weights, downloaded once), `"dense"` or `"street"` (a VGG16 that
    has learnt to count, of the models in the package), `"random"` (the same each time: for tests), or a
    `.safetensors` or `.pth` file with the keys of torchvision, of the convolutional part alone
    (`features.0.weight` or `0.weight`), or of a counting checkpoint of this project. Keys of heads are passed over.
    """
    model_name, _, suffix = name.partition(":")
    if model_name not in list_models() or suffix not in ("", "multi"):
        raise LibraError(f"unknown backbone {name!r}; take one of {', '.join(LEVELS)}, or one of them with ':multi'")
    if suffix and model_name not in LEVELS:
        raise LibraError(f"backbone {model_name!r} has no ':multi' form; these have: {', '.join(LEVELS)}")

    trunk = _lay_out(model_name, str(weights))
    backbone = Backbone(name, trunk, LEVELS[model_name] if suffix else ())
    if weights not in ("imagenet", "random"):
        _load_file(backbone, weights_file(weights))
    return backbone.to(device)


def _lay_out(model_name: str, weights: str) -> dict[str, nn.Module]:
    """The layers of a torchvision classifier up to its last map; empty, unless the weights are torchvision's own."""
    from_file = weights not in ("imagenet", "random")
    # A model that a file will fill is laid out without memory: VGG16's unused classifier alone would take half a GB.
    with torch.random.fork_rng(devices=[]), torch.device("meta" if from_file else "cpu"):
        torch.manual_seed(0)
        try:
            model = get_model(model_name, weights="DEFAULT" if weights == "imagenet" else None)
        except OSError as error:
            raise LibraError(
                f"the ImageNet weights of {model_name!r} could not be downloaded ({error}); give a local file instead"
            ) from error
    trunk = dict(takewhile(lambda child: child[0] not in _HEADS, model.named_children()))
    if from_file:
        for unit in trunk.values():
            unit.to_empty(device="cpu")
    return trunk


def check_weights(name: str, path: Path) -> None:
    """Refuse a file whose tensors have not the names of this backbone's; their values are not looked at."""
    if _is_safetensors(path):
        try:
            with safe_open(str(path), framework="pt") as file:
                given = set(file.keys())
        except (SafetensorError, OSError) as error:
            raise LibraError(f"{path} cannot be read as weights: {error}") from error
    else:
        given = set(read_weights(path))
    _check_names(name, _weights(nn.ModuleDict(_lay_out(name, ""))), given, path)


def _check_names(name: str, wanted: Iterable[str], given: Iterable[str], path: Path) -> None:
    plain = {_full_name(key) for key in given}
    for key in wanted:
        if key not in plain:
            raise LibraError(f"{path} has no {key!r}, so its weights are not those of {name!r}")


def _full_name(key: str) -> str:
    """Of a tensor in torchvision's model, whose convolutional part may stand alone in a file."""
    return f"features.{key}" if key[:1].isdigit() else key


def join_levels(maps: Sequence[Tensor]) -> Tensor:
    """Maps of several strides, each averaged over the patches that the last one has, one behind the other."""
    grid = (maps[-1].shape[2], maps[-1].shape[3])
    return torch.cat([F.adaptive_avg_pool2d(level, grid) for level in maps], dim=1)


def preprocess(images: np.ndarray | Tensor) -> Tensor:
    """Photos `uint8 (..., H, W, 3)`, RGB, as the normalised `float32 (..., 3, H', W')` that a backbone takes.

    H' and W' are the next multiples of 32. The padding, bottom and right, is zero after normalisation: the mean colour.
    """
    pixels = torch.as_tensor(images)
    mean = torch.tensor(IMAGENET_MEAN, device=pixels.device) * 255
    std = torch.tensor(IMAGENET_STD, device=pixels.device) * 255
    height, width = pixels.shape[-3:-1]
    return F.pad(pixels.float().sub_(mean).div_(std), (0, 0, 0, -width % STRIDE, 0, -height % STRIDE)).movedim(-1, -3)


def hash_weights(module: nn.Module) -> str:
    """SHA-256 of a module's weights, by their names and their values in single precision."""
    digest = hashlib.sha256()
    for key, tensor in _weights(module).items():
        digest.update(key.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """The state that changes the features: batch norm's step counter does not."""
    return {key: value for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")}


def _load_file(backbone: Backbone, path: Path) -> None:
    given = read_weights(path)
    wanted = _weights(backbone)
    given = {_full_name(key): value for key, value in given.items()}
    _check_names(backbone.name, wanted, given, path)
    for key, tensor in wanted.items():
        if given[key].shape != tensor.shape:
            raise LibraError(
                f"{path}: {key!r} has shape {tuple(given[key].shape)}; {backbone.name!r} needs {tuple(tensor.shape)}"
            )
    rooms = tuple(f"{child}." for child, _ in backbone.named_children())
    for key in given:
        if key.startswith(rooms) and key not in wanted and not key.endswith("num_batches_tracked"):
            raise LibraError(
                f"{path} has {key!r}, which {backbone.name!r} does not know; take the backbone of these weights"
            )
    for key, tensor in backbone.state_dict().items():
        tensor.copy_(given[key]) if key in given else tensor.zero_()


def weights_file(weights: str | Path) -> Path:
    """Where weights are that are given as a file, or as the name of a model in the package."""
    if str(weights) in RELEASED:
        return find_model(weights)
    if not Path(weights).is_file():
        raise LibraError(f"weights {str(weights)!r} are neither a file nor one of: imagenet, {', '.join(RELEASED)}")
    return Path(weights)


def learnt_scale(weights: str | Path) -> float:
    """How many times larger than they are the photos were looked at that these weights learnt from.

    Files of `libra pretrain` and `libra release`, and so `dense` and `street`, say it; of all others it is 1.
    """
    if weights in ("imagenet", "random"):
        return 1.0
    path = weights_file(weights)
    if not _is_safetensors(path):
        return 1.0
    try:
        with safe_open(str(path), framework="pt") as file:
            found = file.metadata() or {}
        backbone, counter = (json.loads(found.get(kind, "{}")) for kind in (PRETRAINED, "libra_gym.counter"))
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise LibraError(f"{path} cannot be read as weights: {error}") from error
    says = backbone.get("settings", {}) | counter.get("weigher", {}).get("about", {})
    return float(says.get("scale", 1.0))


def _is_safetensors(path: Path) -> bool:
    """Whether a file is of this kind, by its name, or by the JSON that such a file begins with after eight bytes."""
    if path.suffix == ".safetensors":
        return True
    try:
        with path.open("rb") as file:
            return file.read(9)[8:] == b"{"
    except OSError:  # whoever reads it will say so
        return False


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` or `.pth` file by their names; nothing is unpickled but tensors."""
    try:
        state = load_file(path) if _is_safetensors(path) else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, UnpicklingError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on with advice that is not safe to take
        raise LibraError(f"{path} cannot be read as weights: {reason}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise LibraError(f"{path} is not a state dict, a mapping of names to tensors")
    return state
