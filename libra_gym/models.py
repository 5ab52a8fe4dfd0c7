"""The models that ship with the package, by name: of ShanghaiTech A (`dense`, crowds) and B (`street`, streets)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from libra_gym.errors import LibraError

RELEASED: Final = ("dense", "street")
MODELS = Path(__file__).parent / "assets" / "models"


def find_model(model: str | Path) -> Path:
    """The file of a model, given as a file or by the name of one that ships with the package."""
    if str(model) in RELEASED:
        path = MODELS / f"{model}.safetensors"
        if not path.is_file():
            raise LibraError(
                f"The model {str(model)!r} is missing from this installation ({path}); install libra-gym again, or "
                "train one with `libra train`, join it with its backbone with `libra release RUN --weights FILE --out "
                "MODEL`, and give the file as the model (docs/counting.md)."
            )
        return path
    if not str(model).strip():
        raise LibraError(f"The model is named {str(model)!r}; give a file, or one of: {', '.join(RELEASED)}.")
    if Path(model).is_dir():
        raise LibraError(f"{str(model)!r} is a directory; give a model file, as `libra release` makes of a run.")
    if not Path(model).is_file():
        raise LibraError(f"There is no model {str(model)!r}; give a file, or one of: {', '.join(RELEASED)}.")
    return Path(model)
