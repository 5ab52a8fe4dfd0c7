"""Pre-training: the cut backbone, the three heads, the loop that goes on bit for bit, and its settings."""

import numpy as np
import pytest
import torch
from pretraining_helpers import LEVELS, settings, vgg

from agents.pretraining import Pretrainer, pretrain_settings
from agents.pretraining.network import BlockClassifier, BlockRegressor, LocalCounts, cut, fill_head
from libra_gym.backbones import load_backbone, preprocess, read_weights
from libra_gym.datasets import open_dataset
from libra_gym.datasets.views import full
from libra_gym.errors import LibraError
from libra_gym.quantizer import Quantizer


class TestCut:
    def test_both_parts_make_the_whole(self):
        backbone = vgg()
        image = torch.randn(1, 3, 64, 96)
        for layer, stride in {"conv1_1": 1, "conv2_1": 2, "conv4_1": 8, "conv5_1": 16, "head": 32}.items():
            stem, trunk, found = cut(backbone, layer)
            assert found == stride
            torch.testing.assert_close(trunk(stem(image)), backbone(image))

    def test_both_parts_of_a_backbone_of_several_levels_make_the_whole(self):
        backbone = vgg(levels=LEVELS)
        image = torch.randn(2, 3, 64, 96)
        for layer in ("conv1_1", "conv3_1", "conv4_1"):
            stem, trunk, _ = cut(backbone, layer)
            torch.testing.assert_close(trunk(stem(image)), backbone(image))
        with pytest.raises(LibraError, match=r"has a level below 'conv5_1'.*train it from 'conv4_1' or earlier"):
            cut(backbone, "conv5_1")

    def test_layers_of_the_real_vgg16_have_the_literatures_names(self):
        with torch.device("meta"):
            from torchvision.models import vgg16

            features = vgg16().features
        from agents.pretraining.network import _layer_names

        names = _layer_names({str(index): unit for index, unit in enumerate(features)})
        assert (names["conv1_1"], names["conv3_3"], names["conv4_1"], names["conv5_3"]) == (0, 14, 17, 28)

    def test_blocks_of_other_backbones_have_their_own(self):
        stem, _, stride = cut(load_backbone("mobilenet_v3_large", "random"), "features.13")
        assert stride == 16
        assert len(stem) == 13

    def test_an_unknown_layer_is_named(self):
        with pytest.raises(LibraError, match=r"no layer 'conv6_1'.*conv5_1, head"):
            cut(vgg(), "conv6_1")


class TestHeads:
    quantizer = Quantizer.fit_log(np.array([0.0, 0.5, 20.0]))

    def test_a_sure_classifier_reads_its_interval_by_both_readouts(self):
        head = BlockClassifier(4, self.quantizer)
        out = torch.full((1, self.quantizer.num_intervals, 1, 2), -50.0)
        out[0, 3, 0, 0] = out[0, 0, 0, 1] = 50.0
        for readout in ("argmax", "expectation"):
            torch.testing.assert_close(head.read(out, readout), torch.tensor([[[self.quantizer.values[3], 0.0]]]))

    def test_the_count_loss_weighs_what_cross_entropy_does_not_see(self):
        head = BlockClassifier(4, self.quantizer)
        counts, valid = torch.tensor([[[10.0]]]), torch.ones(1, 1, 1, dtype=torch.bool)
        near, far = (torch.zeros(1, self.quantizer.num_intervals, 1, 1) for _ in range(2))
        truth = int(self.quantizer.quantize(np.array(10.0)))
        near[0, truth - 1], far[0, 1] = 5.0, 5.0  # equally wrong to cross-entropy
        assert head.loss(near, counts, valid, 0.0) == pytest.approx(float(head.loss(far, counts, valid, 0.0)))
        assert head.loss(near, counts, valid, 1.0) < head.loss(far, counts, valid, 1.0)

    def test_the_sum_loss_is_the_error_of_the_whole_count_of_each_crop(self):
        head = BlockRegressor(4, self.quantizer)
        valid = torch.ones(2, 2, 2, dtype=torch.bool)
        valid[1, :, 1] = False  # padding: what stands there counts for nothing
        out = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 99.0], [0.0, 99.0]]])[:, None]
        swapped = torch.tensor([[[4.0, 3.0], [2.0, 1.0]], [[0.0, 0.0], [5.0, 0.0]]])
        assert float(head.sum_loss(out, swapped, valid)) == 0.0  # neighbours make up for each other
        less = swapped - torch.tensor([0.5, -0.25])[:, None, None]  # and crops do not
        assert float(head.sum_loss(out, less, valid)) == pytest.approx((4 * 0.5 + 2 * 0.25) / 6)

    @pytest.mark.parametrize("kind", [BlockClassifier, BlockRegressor, LocalCounts])
    def test_the_sum_loss_teaches_every_head_the_whole_count(self, kind):
        torch.manual_seed(0)
        head = kind(4, self.quantizer)
        features, counts = torch.rand(2, 4, 3, 3), torch.full((2, 3, 3), 10.0)
        valid = torch.ones(2, 3, 3, dtype=torch.bool)
        optimizer = torch.optim.Adam(head.parameters(), 0.05)
        losses = []
        for _ in range(100):
            out = head(features)
            off = head.sum_loss(out, counts, valid)
            optimizer.zero_grad()
            (off + 0.01 * head.loss(out, counts, valid, 0.0)).backward()
            optimizer.step()
            losses.append(off.item())
        assert losses[0] > 3.0
        assert min(losses) < 0.5

    @pytest.mark.parametrize("kind", [BlockClassifier, BlockRegressor, LocalCounts])
    def test_padding_has_no_say_in_the_loss(self, kind):
        head = kind(4, self.quantizer).eval()
        out = head(torch.randn(1, 4, 3, 3))
        counts = torch.rand(1, 3, 3)
        valid = torch.ones(1, 3, 3, dtype=torch.bool)
        valid[:, :, 2] = False
        other = torch.where(valid, counts, counts + 7)
        assert head.loss(out, counts, valid, 0.5) == head.loss(out, other, valid, 0.5)

    def test_perfect_windows_of_an_even_crowd_are_read_as_it_is_with_a_perfect_loss(self):
        head = LocalCounts(4, self.quantizer)
        even = torch.full((1, 3, 4), 0.7)
        valid = torch.ones(1, 3, 4, dtype=torch.bool)
        windows = torch.full((1, 1, 4, 5), 4 * 0.7)  # those at the border too: their features are those of whole ones
        assert float(head.loss(windows, even, valid, 0.0)) == pytest.approx(0.0, abs=1e-6)
        torch.testing.assert_close(head.read(windows, "expectation"), even)
        assert float(head.sum_loss(windows, even, valid)) == pytest.approx(0.0, abs=1e-6)
        assert float(head.sum_loss(windows + 0.4, even, valid)) == pytest.approx(0.4 / 4)

    def test_windows_are_judged_by_their_people_within_the_crop(self):
        head = LocalCounts(4, self.quantizer)
        counts, valid = torch.rand(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool)
        corner, side, whole = counts[0, 0, 0], counts[0, 0, :].sum(), counts.sum()
        windows = torch.zeros(1, 1, 3, 3)
        windows[..., 0, 0], windows[..., 0, 1], windows[..., 1, 1] = 4 * corner, 2 * side, whole
        missed = torch.nn.functional.pad(counts, (1, 1, 1, 1)).unfold(1, 2, 1).unfold(2, 2, 1).sum((-1, -2))
        missed = missed.sum() - corner - side - whole
        assert float(head.loss(windows, counts, valid, 0.0)) == pytest.approx(float(missed) / 9)

    def test_windows_learn_borders_and_the_inner_part_alike(self):
        """A crowd that is as dense everywhere gives the same features everywhere, and so one count for all patches."""
        torch.manual_seed(0)
        head = LocalCounts(4, self.quantizer)
        density = torch.rand(64, 1, 1) * 5
        features = torch.stack([torch.tanh(density * w) for w in (0.1, 0.3, 0.6, 1.0)], 1).expand(-1, -1, 4, 4)
        counts, valid = density.expand(-1, 4, 4), torch.ones(64, 4, 4, dtype=torch.bool)
        optimizer = torch.optim.Adam(head.parameters(), 0.01)
        for _ in range(150):
            optimizer.zero_grad()
            head.loss(head(features), counts, valid, 0.0).backward()
            optimizer.step()
        people = head.eval().read(head(features), "expectation").detach()
        assert float(people.mean() / density.mean()) == pytest.approx(1.0, abs=0.1)
        torch.testing.assert_close(people, people[:, :1, :1].expand_as(people))

    def test_a_head_of_fewer_intervals_lends_its_rows(self):
        head = BlockClassifier(4, self.quantizer)
        given = {"weight": torch.randn(5, 4, 1, 1).half(), "bias": torch.randn(5).half()}
        fill_head(head, given, "file")
        assert torch.equal(head.layer.weight[:5], given["weight"].float())
        assert torch.equal(head.layer.bias[5:], given["bias"][4].float().expand(head.layer.bias[5:].shape))

    def test_a_file_without_a_head_is_named(self):
        with pytest.raises(LibraError, match=r"file has no head.*--weights"):
            fill_head(BlockClassifier(4, self.quantizer), {}, "file")

    def test_a_head_of_another_method_is_refused(self):
        given = {f"layers.{key}": value for key, value in LocalCounts(4, self.quantizer).layers.state_dict().items()}
        with pytest.raises(LibraError, match="another method"):
            fill_head(BlockClassifier(4, self.quantizer), given, "file")


class TestTraining:
    @pytest.mark.parametrize("method", ["bcnet", "tasselnetv2", "regression", "classification"])
    def test_it_learns(self, crowd, method):
        frozen = method in ("regression", "classification")
        made = settings(
            method=method,
            train_from="head" if frozen else "conv2_1",
            epochs=12,
            learning_rate=3e-3,
            head_learning_rate=3e-2 if frozen else 1e-2,
            crops_per_photo=4,
        )
        backbone = vgg()
        before = {key: value.clone() for key, value in backbone.state_dict().items()}
        trainer = Pretrainer(made, backbone, crowd, where="ram")
        losses = [trainer.learn_epoch() for _ in range(12)]
        assert losses[-1] < 0.99 * losses[0]
        changed = {key for key, value in backbone.state_dict().items() if not torch.equal(value, before[key])}
        assert changed == (set() if frozen else {key for key in before if not key.startswith("features.0.")})

    def test_going_on_from_a_state_is_the_same_run(self, crowd, tmp_path):
        made = settings(average=0.5, views=3, scales=(0.8, 1.2))

        def begin() -> Pretrainer:
            return Pretrainer(made, vgg(), crowd, where="disk", cache_directory=tmp_path / "stem", seed=3)

        whole = begin()
        whole.learn_epoch()
        tensors, numbers = whole.state()
        tensors = {key: value.clone() for key, value in tensors.items()}
        whole.learn_epoch()
        resumed = begin()
        resumed.load_state(tensors, numbers)
        resumed.learn_epoch()
        for path, trainer in ((tmp_path / "a", whole), (tmp_path / "b", resumed)):
            trainer.save_weights(path, {})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert resumed.updates == whole.updates
        assert resumed.epoch == 2

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_an_epoch_goes_on_where_it_was_stopped(self, crowd, tmp_path, accumulate):
        def begin():
            made = settings(batch_size=2, accumulate=accumulate, average=0.9)
            return Pretrainer(made, vgg(), crowd, where="ram", seed=3)

        whole = begin()
        loss = whole.learn_epoch()
        stopped, told = begin(), []

        def twice(share, mean):
            told.append(share)
            return len(told) < 2

        assert stopped.learn_epoch(twice) is None
        assert (stopped.epoch, stopped.batch) == (0, 2 * accumulate)
        assert told[-1] < 1
        tensors, numbers = stopped.state()
        resumed = begin()
        resumed.load_state(tensors, numbers)
        assert resumed.learn_epoch() == loss
        for path, trainer in ((tmp_path / "a", whole), (tmp_path / "b", resumed)):
            trainer.save_weights(path, {})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert (resumed.epoch, resumed.updates, resumed.batch) == (1, whole.updates, 0)

    @pytest.mark.parametrize("where", ["ram", "none"])
    def test_photos_of_other_sets_are_learnt_from_too(self, crowd, where):
        own = Pretrainer(settings(), vgg(), crowd, where=where)
        more = Pretrainer(settings(), vgg(), crowd, also=[(open_dataset("synthetic"), "validation")], where=where)
        added = [scene for scene in more.training if scene.dataset == "synthetic"]
        assert len(added) == len(open_dataset("synthetic").photos("validation"))
        assert [scene.photo for scene in more.training[: -len(added)]] == [scene.photo for scene in own.training]
        assert [scene.photo for scene in more.validation] == [scene.photo for scene in own.validation]
        assert len(more.crops) == len(own.crops) + len(added)
        assert more.quantizer.num_intervals >= own.quantizer.num_intervals
        assert more.learn_epoch() is not None

    def test_a_photo_is_not_both_learnt_from_and_judged_by(self, crowd):
        with pytest.raises(LibraError, match="no photo in common"):
            Pretrainer(settings(), vgg(), crowd, also=[(crowd, "all")], where="none")

    def test_cached_or_not_the_validation_photos_count_the_same(self, crowd, tmp_path):
        counts = []
        for where in ("disk", "none"):
            trainer = Pretrainer(settings(), vgg(), crowd, where=where, cache_directory=tmp_path)
            counts.append([record.count for record in trainer.evaluate()["expectation"].records])
        np.testing.assert_allclose(*counts, rtol=1e-2)

    def test_validation_photos_are_counted_in_the_scale_of_training(self, crowd):
        trainer = Pretrainer(settings(scale=1.5), vgg(), crowd, where="none")
        records = trainer.evaluate()["expectation"].records
        counter = trainer.judged.eval()
        for record, scene in zip(records, trainer.validation, strict=True):
            larger = full(scene.size, scale=1.5).apply_image(scene.photo.image())
            with torch.inference_mode():
                out = counter.trunk(trainer.cache.stem(preprocess(larger)[None]))
                count = float(counter.head.read(counter.head(out), "expectation").sum())
            assert record.count == pytest.approx(count, rel=1e-4)
            assert record.people == len(scene.points)

    def test_an_average_is_judged_and_saved(self, crowd, tmp_path):
        trainer = Pretrainer(settings(average=0.9), vgg(), crowd, where="ram")
        trainer.learn_epoch()
        assert trainer.judged is not trainer.counter
        trainer.save_weights(tmp_path / "w.safetensors", {})
        saved = read_weights(tmp_path / "w.safetensors")
        averaged = trainer.judged.trunk[0].weight
        assert torch.equal(saved["features.9.weight"], averaged)
        assert not torch.equal(averaged, trainer.counter.trunk[0].weight)
        assert torch.equal(saved["features.0.weight"], trainer.backbone.state_dict()["features.0.weight"])

    def test_an_average_soon_forgets_where_it_began(self, crowd):
        trainer = Pretrainer(settings(average=0.999, crops_per_photo=4), vgg(), crowd, where="ram")
        began = trainer.counter.head.layer.weight.detach().clone()
        with torch.no_grad():
            trainer.counter.head.layer.weight += 1.0
        for _ in range(20):
            trainer.averaged.update_parameters(trainer.counter)
            with torch.no_grad():
                trainer.counter.head.layer.weight.copy_(began)
        assert (trainer.judged.head.layer.weight - began).abs().max() < 0.01

    def test_gradients_of_several_batches_make_one_update(self, crowd):
        trainer = Pretrainer(settings(accumulate=2), vgg(), crowd, where="ram")
        trainer.learn_epoch()
        assert trainer.updates == -(-len(trainer.loader) // 2)

    def test_the_learning_rate_follows_its_schedule(self, crowd):
        for schedule, halfway in {"constant": 1.0, "cosine": 0.5, "exponential": 0.81, "steps": 0.9}.items():
            own = {"exponential": {"decay": 0.9}, "steps": {"decay": 0.9, "milestones": (1, 3)}}.get(schedule, {})
            made = settings(epochs=4, schedule=schedule, **own)
            trainer = Pretrainer(made, vgg(), crowd, where="ram")
            trainer._set_learning_rate(2.0)
            rates = [group["lr"] for group in trainer.optimizer.param_groups]
            assert rates == pytest.approx([5e-5 * halfway, 1e-3 * halfway])

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"schedule": "steps"}, "there are none"),
            ({"milestones": (2,)}, "milestones are of schedule=steps"),
            ({"decay": 0.9}, "has no decay"),
            ({"readout": "weighed"}, "readout must be expectation or argmax"),
            ({"method": "regression", "readout": "argmax"}, "readout must be expectation"),
        ],
    )
    def test_settings_that_would_do_nothing_are_refused(self, changes, said):
        with pytest.raises(LibraError, match=said):
            settings(**changes).refuse_idle()

    @pytest.mark.parametrize(
        ("method", "changes"),
        [
            ("regression", {"count_loss": 2.0}),
            ("bcnet", {"epsilon": 0.9}),
            ("bcnet", {"reach": 1.0}),
            ("bcnet", {"momentum": 0.1}),
            ("bcnet", {"views": 1, "colours": 0.5}),
            ("bcnet", {"scales": [0.5, 2.0], "views": 1}),
            ("classification", {"learning_rate": 1.0}),
            ("classification", {"warmup": 3.0}),
        ],
    )
    def test_settings_that_were_given_for_nothing_are_refused(self, method, changes):
        with pytest.raises(LibraError, match="would do nothing here"):
            pretrain_settings(method, "default", changes)
        used = {"optimizer": "sgd", "views": 3, "train_from": "conv5_1"}
        pretrain_settings("weighing", "default", {**changes, **used})

    def test_the_backbone_waits_for_a_new_head(self, crowd):
        trainer = Pretrainer(settings(schedule="constant", warmup=0.5), vgg(), crowd, where="ram")
        for done, share in ((0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (2.0, 1.0)):
            trainer._set_learning_rate(done)
            rates = [group["lr"] for group in trainer.optimizer.param_groups]
            assert rates == pytest.approx([5e-5 * share, 1e-3])

    @pytest.mark.parametrize("where", ["ram", "none"])
    def test_several_levels_are_learnt_together_and_saved_as_one_backbone(self, crowd, tmp_path, where):
        trainer = Pretrainer(settings(), vgg(levels=LEVELS), crowd, where=where)
        assert trainer.counter.head.layer.in_channels == 24
        trainer.learn_epoch()
        trainer.save_weights(tmp_path / "w.safetensors", {})
        saved = read_weights(tmp_path / "w.safetensors")
        again, image = vgg(levels=LEVELS), torch.randn(1, 3, 64, 64)
        again.load_state_dict({key: value for key, value in saved.items() if key.startswith("features.")})
        with torch.inference_mode():
            learnt = trainer.judged.trunk(trainer.cache.stem(image))
        torch.testing.assert_close(again(image), learnt)
        assert not torch.allclose(again(image), vgg(levels=LEVELS)(image))

    def test_integer_bins_count_points(self, crowd):
        trainer = Pretrainer(settings(bins="integer", kernel="points"), vgg(), crowd, where="ram")
        counts = full(trainer.training[0].size).integrate(trainer.training[0].density)
        assert (counts == np.round(counts)).all()
        assert trainer.quantizer.num_intervals == 1 + max(
            int(full(scene.size).integrate(scene.density).max()) for scene in trainer.training
        )


class TestSettings:
    @pytest.mark.parametrize("method", ["bcnet", "tasselnetv2", "regression", "classification"])
    def test_every_method_has_a_recipe(self, method):
        assert pretrain_settings(method).method == method

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"crop": 100}, "multiple of 32"),
            ({"schedule": "sine"}, "schedule is 'sine'"),
            ({"bins": "integer"}, "kernel=points"),
            ({"colour": 1}, "no setting 'colour'"),
            ({"scales": [2.0, 1.0]}, "ascending"),
            ({"epochs": 0}, "at least 1"),
            ({"warmup": -1}, "warmup is -1"),
        ],
    )
    def test_a_wrong_setting_is_named(self, changes, message):
        with pytest.raises(LibraError, match=message):
            pretrain_settings("bcnet", changes=changes)
