"""The training loop of a one-step counter: crops of stem maps in, a fine-tuned backbone out."""

from __future__ import annotations

import copy
import filecmp
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from agents.pretraining.crops import CropDataset
from agents.pretraining.looks import Look, Scene
from agents.pretraining.network import METHODS, CellClassifier, Outputs, PatchCounter, PatchHead, Trunk, cut, fill_head
from agents.pretraining.settings import PretrainSettings, Readout
from agents.pretraining.stem import StemCache, Where
from agents.pretraining.weighing import NEEDS_MODEL, Weighing
from agents.state import load_optimizer_tensors, optimizer_tensors, under
from libra_gym.backbones import PRETRAINED, Backbone, hash_weights, read_weights
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counter import Counter
from libra_gym.counts import KERNELS
from libra_gym.datasets import CrowdDataset
from libra_gym.datasets.views import View
from libra_gym.errors import LibraError
from libra_gym.features.build import PREPROCESSING
from libra_gym.features.grids import HALF, has_grids
from libra_gym.features.storage import write_whole
from libra_gym.kind import Kind
from libra_gym.metrics import Score, score
from libra_gym.quantizer import Quantizer
from libra_gym.workers import leave_signals

Weights = tuple[Tensor, ...] | list[Tensor]


class Pretrainer:
    """Trains a backbone from some layer on, with a one-step head, and judges it on whole validation photos.

    Args:
        settings: what is trained, and how.
        backbone: where it begins; it is changed in place.
        dataset: the photos.
        split: the split that is learnt from.
        validation: the split that the best epoch is chosen by.
        also: splits of other data sets that are learnt from too.
        seed: of crops, looks and the head's first weights.
        init: a counting checkpoint whose head is taken over; for the method `weighing` the model whose scale is.
        one_step: for the method `weighing`, a checkpoint whose head learns beside the scale instead of that of `init`.
        where: the stem cache: `disk`, `ram` or `none`.
        cache_directory: for `disk`.
        cache_bytes: the most that is cached.
        accelerator: devices, precision, gradient accumulation; by default that of the machine.
        workers: processes that read photos where there is no cache.
    """

    def __init__(
        self,
        settings: PretrainSettings,
        backbone: Backbone,
        dataset: CrowdDataset,
        *,
        split: str = "train",
        validation: str = "validation",
        also: Sequence[tuple[CrowdDataset, str]] = (),
        seed: int = 0,
        init: Path | None = None,
        one_step: Path | None = None,
        where: Where = "disk",
        cache_directory: Path | None = None,
        cache_bytes: float = 16e9,
        accelerator: Accelerator | None = None,
        workers: int = 0,
    ) -> None:
        self.settings, self.seed, self.backbone = settings, seed, backbone
        self.accelerator = accelerator or Accelerator(gradient_accumulation_steps=settings.accumulate)
        kernel = KERNELS[settings.kernel]
        learnt = [(dataset, split), *also]
        self.training = [scene for source, part in learnt for scene in Scene.read_all(source, part, kernel)]
        self.validation = Scene.read_all(dataset, validation, kernel)
        _keep_apart(self.training, self.validation)

        torch.manual_seed(seed)
        stem, trunk, stride = cut(backbone, settings.train_from)
        head = self._make_head(init, one_step)
        if settings.sum_loss > 0 and "expectation" not in head.readouts:
            raise LibraError("sum_loss needs a one-step head, which this model does not have; leave it at 0.")
        self.quantizer = head.quantizer
        self.backbone.to(self.accelerator.device)
        trunk.requires_grad_(True)
        # In single precision on a CPU, backward through channels-last convolutions takes longer than forward gains.
        single = self.accelerator.device.type == "cpu" and self.accelerator.mixed_precision == "no"
        self.layout = torch.contiguous_format if single else torch.channels_last
        trunk.to(memory_format=self.layout)
        cells = self._make_cells(trunk) if settings.cell_loss > 0 else None
        learning = any(True for _ in stem.parameters())
        self.cache = StemCache(
            stem,
            stride,
            where if learning else "none",
            cache_directory,
            cache_bytes,
            hash_weights(stem),
            self.accelerator.device,
        )
        self.crops = CropDataset(self.training, settings, self.cache, seed)
        self.counter = PatchCounter(trunk, head, cells)
        heads = [weight for name, weight in self.counter.named_parameters() if not name.startswith("trunk.")]
        groups = [
            {"params": list(trunk.parameters()), "lr": settings.learning_rate},
            {"params": heads, "lr": settings.head_learning_rate},
        ]
        optimizer: torch.optim.Optimizer
        if settings.optimizer == "sgd":
            optimizer = torch.optim.SGD(
                groups, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
            )
        else:
            optimizer = torch.optim.AdamW(groups, settings.learning_rate, weight_decay=settings.weight_decay)
        # Readers in other processes would each have a copy of the cache and of the stem.
        readers = workers if self.cache.where == "none" else 0
        loader = DataLoader(self.crops, settings.batch_size, num_workers=readers, worker_init_fn=leave_signals)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.counter, optimizer, loader)
        self.averaged: AveragedModel | None = None
        if settings.average > 0:
            self.averaged = AveragedModel(self.counter, multi_avg_fn=_average(settings.average), use_buffers=True)
        self.epoch = 0
        self.updates = 0
        self._begin_epoch(0, 0.0)

    def _make_head(self, init: Path | None, one_step: Path | None) -> PatchHead:
        settings, channels = self.settings, self.backbone.channels
        if settings.method == "weighing":
            if init is None:
                raise LibraError(NEEDS_MODEL)
            return Weighing.load(init, one_step, settings.epsilon, settings.reach, channels=channels)
        counts = np.concatenate([self._view(scene).integrate(scene.density).ravel() for scene in self.training])
        if settings.bins == "log":
            quantizer = Quantizer.fit_log(counts, readout="mean")
        else:
            quantizer = Quantizer.integer(max(round(float(counts.max())), 1)).with_means(counts)
        head = METHODS[settings.method](channels, quantizer)
        if init is not None:
            fill_head(head, under("head.", read_weights(init)), str(init))
        return head

    def _make_cells(self, trunk: Trunk) -> CellClassifier:
        if not has_grids(self.backbone) or not len(trunk):
            raise LibraError(
                f"cell_loss needs a backbone that learns and ends with a pooling of four cells, such as vgg16; "
                f"{self.backbone.name!r} from {self.settings.train_from!r} on is none, so leave it at 0."
            )
        counts = [self._view(scene).integrate(scene.density, HALF).ravel() for scene in self.training]
        return CellClassifier(self.backbone.channels, np.concatenate(counts))

    @property
    def judged(self) -> PatchCounter:
        """The weights that are judged and saved: the average of late ones if there is one."""
        counter = self.counter if self.averaged is None else self.averaged.module
        assert isinstance(counter, PatchCounter)
        return counter

    def learn_epoch(self, progress: Callable[[float, float], bool] | None = None) -> float | None:
        """Every training photo's crops once; the mean loss, or None if `progress` stopped it.

        `progress` is told the share that is done and the mean loss so far, whenever a batch completes an update, and
        may then save `state`. An epoch that it stops (by returning False) goes on with the next call. Of several
        processes, each must have a `progress` if one has.
        """
        self.crops.begin(self.epoch)
        self.model.train()
        batches = len(self.loader)
        ahead = self.accelerator.skip_first_batches(self.loader, self.batch) if self.batch else self.loader
        for inputs, counts, valid in ahead:
            self._set_learning_rate(self.epoch + self.batch / batches)
            # Dropout and random actions depend on the place in the run alone, however often it was stopped.
            torch.manual_seed(int(np.random.SeedSequence((self.seed, self.epoch, self.batch)).generate_state(1)[0]))
            self._total += self.accelerator.reduce(self._learn(inputs, counts, valid), "mean")
            self.batch += 1
            settled = self.accelerator.sync_gradients  # else gradients wait for more
            if progress is not None and settled and not self.agree(progress(self.batch / batches, self._mean_loss())):
                return None
        loss = self._mean_loss()
        self.epoch += 1
        self._begin_epoch(0, 0.0)
        return loss

    def agree(self, go_on: bool) -> bool:
        """Whether every process is to go on: one that stopped alone would leave the others waiting for it."""
        if self.accelerator.num_processes == 1:
            return go_on
        stopping = torch.tensor(float(not go_on), device=self.accelerator.device)
        return not self.accelerator.reduce(stopping, "sum")

    def _begin_epoch(self, batch: int, total: float) -> None:
        """From its first batch, or, where an epoch was stopped, from that one on."""
        self.batch = batch
        self._total = torch.tensor(total, device=self.accelerator.device)

    def _mean_loss(self) -> float:
        return float(self._total) / max(self.batch, 1)

    def _learn(self, inputs: Tensor, counts: Tensor, valid: Tensor) -> Tensor:
        if self.cache.where == "none":
            with self.accelerator.autocast():
                inputs = self.cache.run(inputs).clone()  # out of inference mode
        inputs = inputs.contiguous(memory_format=self.layout)
        with self.accelerator.accumulate(self.model):
            with self.accelerator.autocast():
                out = self.model(inputs)
            loss = self._loss(out, counts, valid)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.accelerator.sync_gradients:
                self.updates += 1
                if self.averaged is not None:
                    self.averaged.update_parameters(self.counter)
        return loss.detach()

    def _loss(self, out: Outputs, counts: Tensor, valid: Tensor) -> Tensor:
        """That of patches, of whole crops and of cells, as the settings weigh them."""
        settings, counter = self.settings, self.counter
        loss = torch.zeros((), device=counts.device)
        if counter.cells is not None and out.cells is not None:
            loss = settings.cell_loss * counter.cells.loss(out.cells.float(), counts, valid, settings.count_loss)
            counts = F.avg_pool2d(counts[:, None], 2, divisor_override=1).squeeze(1)
            valid = valid[:, ::2, ::2]  # a patch lies in the photo if its first cell does
        patches = out.patches.float()
        loss = loss + counter.head.loss(patches, counts, valid, settings.count_loss)
        if settings.sum_loss > 0:
            loss = loss + settings.sum_loss * counter.head.sum_loss(patches, counts, valid)
        return loss

    def _set_learning_rate(self, done: float) -> None:
        """By epochs done, from the settings alone, so that a run may be prolonged."""
        settings = self.settings
        factor = {
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * min(done / settings.epochs, 1.0))),
            "exponential": settings.decay ** int(done),
            "steps": settings.decay ** sum(done >= milestone for milestone in settings.milestones),
        }[settings.schedule]
        rising = min(done / settings.warmup, 1.0) if settings.warmup > 0 else 1.0
        rates = (settings.learning_rate * rising, settings.head_learning_rate)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor

    # ------------------------------------------------------------------------------------------------------- judging

    @torch.inference_mode()
    def evaluate(self) -> dict[Readout, Score]:
        """Count the whole validation photos, by each readout, in the precision of the training.

        Several processes share the photos; each must call this, and each has the figures of all.
        """
        counter = self.judged.eval()
        first, step = self.accelerator.process_index, self.accelerator.num_processes
        places = range(first, len(self.validation), step)
        counted: dict[int, dict[Readout, Tensor]] = dict(
            gather_object([(place, self._count(counter, self.validation[place])) for place in places])
        )
        bank = self._validation_bank()
        return {
            readout: score(torch.cat([counted[place][readout] for place in range(len(self.validation))]), bank)
            for readout in counter.head.readouts
        }

    def _count(self, counter: PatchCounter, scene: Scene) -> dict[Readout, Tensor]:
        """The people in a whole photo's patches, by each readout."""
        look = Look(self._view(scene))
        if self.cache.where != "none":  # in single precision, whatever this run's is: other runs may share the map
            seen = self.cache.whole(scene, look)
        with self.accelerator.autocast():
            if self.cache.where == "none":
                seen = self.cache.whole(scene, look)
            out = counter(seen[None].to(self.accelerator.device)).patches.float()
        return {readout: counter.head.read(out, readout).flatten().cpu() for readout in counter.head.readouts}

    def _view(self, scene: Scene) -> View:
        """The whole photo in the size in which it is counted."""
        return scene.whole(self.settings.scale)

    def _validation_bank(self) -> FeatureBank:
        """The validation photos' truth; features have no place in it."""
        views = [self._view(scene) for scene in self.validation]
        people = [view.integrate(scene.density) for view, scene in zip(views, self.validation, strict=True)]
        images = tuple(
            BankImage(scene.photo.name, scene.split, *view.grid, view.size, float(len(scene.points)))
            for scene, view in zip(self.validation, views, strict=True)
        )
        flat = torch.from_numpy(np.concatenate([grid.ravel() for grid in people]))
        points = tuple(view.apply_points(s.points, s.size) for view, s in zip(views, self.validation, strict=True))
        return FeatureBank("validation", torch.zeros(len(flat), 1), flat, images, self.quantizer, points)

    # -------------------------------------------------------------------------------------------------------- saving

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on bit for bit, after any update."""
        tensors = {f"counter.{name}": value for name, value in self.counter.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        if self.averaged is not None:
            tensors |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        numbers = {"epoch": self.epoch, "updates": self.updates, "batch": self.batch, "total": float(self._total)}
        numbers["processes"] = self.accelerator.num_processes
        if self.accelerator.scaler is not None:  # of fp16's gradients
            numbers["scaler"] = self.accelerator.scaler.state_dict()
        return tensors, numbers

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.counter.load_state_dict(under("counter.", tensors))
        load_optimizer_tensors(self.optimizer, under("optimizer.", tensors))
        if self.averaged is not None:
            self.averaged.load_state_dict(under("averaged.", tensors))
        self.epoch, self.updates = numbers["epoch"], numbers["updates"]
        if self.accelerator.scaler is not None and "scaler" in numbers:
            self.accelerator.scaler.load_state_dict(numbers["scaler"])
        batch, were, are = numbers.get("batch", 0), numbers.get("processes", 1), self.accelerator.num_processes
        if batch and were != are:
            raise LibraError(
                f"The run stopped within an epoch that {were} process(es) had begun to share; {are} cannot finish it, "
                f"so go on with {were}."
            )
        self._begin_epoch(batch, numbers.get("total", 0.0))

    def save_weights(self, path: Path, about: Mapping[str, Any]) -> None:
        """One file with the whole backbone and the head, for `libra features --weights` and `libra pretrain --init`."""
        judged = self.judged
        learnt = dict(zip(_keys(self.counter.trunk, self.backbone), judged.trunk.state_dict().values(), strict=True))
        tensors = {**self.backbone.state_dict(), **learnt}
        if isinstance(judged.head, Weighing):
            self._save_model(path, judged.head, tensors, about)
            return
        tensors |= {f"head.{key}": value for key, value in judged.head.state_dict().items()}
        header = {
            "backbone": self.backbone.name,
            "quantizer": self.quantizer.to_dict(),
            "settings": self.settings.to_dict(),
            **about,
        }
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_whole(path, save(plain, metadata={PRETRAINED: json.dumps(header)}))

    def _save_model(self, path: Path, head: Weighing, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Backbone, scale and one-step head as a model that counts photos, for `libra count` and `libra release`."""
        backbone = copy.deepcopy(self.backbone)
        backbone.load_state_dict(tensors)
        backbone.cpu()
        origin = {
            "backbone": backbone.name,
            "weights": backbone.weights_hash,
            "kernel": self.settings.kernel,
            "scale": self.settings.scale,
            "dataset": self.validation[0].dataset,
            **Kind.of((scene.whole(1.0).size, len(scene.points)) for scene in self.training).to_dict(),
            "preprocessing": PREPROCESSING,
            **about,
        }
        weigher = copy.deepcopy(head).cpu().weigher(origin)
        one_step = {} if head.one_step is None else head.one_step.state_dict()
        Counter(backbone, weigher).save(path, "float32", head={key: value.cpu() for key, value in one_step.items()})


def _keep_apart(training: Sequence[Scene], validation: Sequence[Scene]) -> None:
    """Refuse to judge by a photo that is learnt from, or by a copy of its file."""
    learnt: defaultdict[int, list[Scene]] = defaultdict(list)  # by the file's size
    for scene in training:
        learnt[_size(scene.photo.path)].append(scene)
    for scene in validation:
        path = scene.photo.path
        for other in learnt[_size(path)]:
            if (theirs := other.photo.path).resolve() == path.resolve() or _same(path, theirs):
                raise LibraError(
                    f"{theirs} is in {other.split!r}, which is learnt from, and {path}, which is the same photo, in "
                    f"{scene.split!r}, which is judged by; take splits that have no photo in common."
                )


def _size(path: Path) -> int:
    """The size of a file; −1 of a photo that is in none."""
    return path.stat().st_size if path.is_file() else -1


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _average(keep: float) -> Callable[[Weights, Weights, Tensor | int], None]:
    """An exponential average that forgets the first weights, such as those of a new head, within a few updates."""

    @torch.no_grad()
    def update(averaged: Weights, current: Weights, number: Tensor | int) -> None:
        kept = min(keep, (1 + int(number)) / (10 + int(number)))
        get_ema_multi_avg_fn(kept)(averaged, current, number)

    return update


def _keys(trunk: nn.Module, backbone: Backbone) -> list[str]:
    """The backbone's own names of the trunk's weights, in the trunk's order."""
    places = {tensor.data_ptr(): key for key, tensor in backbone.state_dict().items()}
    try:
        return [places[tensor.data_ptr()] for tensor in trunk.state_dict().values()]
    except KeyError:
        raise LibraError(f"the weights of {backbone.name!r} are not those that were trained") from None
