"""Crops of looks with their counts, and the cache of the frozen layers' maps."""

import os
import pickle
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from pretraining_helpers import settings, vgg

from agents.pretraining.crops import CropDataset
from agents.pretraining.looks import Crop, Scene, make_look, padded_pixels
from agents.pretraining.network import cut
from agents.pretraining.stem import StemCache
from libra_gym.backbones import preprocess
from libra_gym.counts import KERNELS
from libra_gym.datasets import open_dataset
from libra_gym.datasets.views import full


class TestCrops:
    @pytest.mark.parametrize("number", range(4))
    def test_counts_are_those_of_the_same_place_in_the_photo(self, scene, number):
        """All crops of a grid that tiles the look hold all of its people, mirrored and scaled or not."""
        look = make_look(scene, settings(scales=(0.7, 1.4)), number, np.random.default_rng(number))
        assert look.view.mirror == (number % 2 == 1)
        height, width = look.view.size
        total = 0.0
        for top in range(0, height, 64):
            for left in range(0, width, 64):
                counts, valid = Crop(left, top, 64).counts(look, scene.density)
                assert not counts[~valid].any()
                total += float(counts.sum())
        assert total == pytest.approx(len(scene.points), rel=1e-4)

    @pytest.mark.parametrize("number", range(4))
    def test_pixels_are_those_of_the_same_place_in_the_look(self, scene, number):
        rng = np.random.default_rng(number)
        look = make_look(scene, settings(scales=(0.7, 1.4), colours=0.2, grey=0.5), number, rng)
        image = scene.photo.image()
        whole = padded_pixels(look, image, 64)
        for left, top in ((0, 0), (8, 16), (whole.shape[2] - 64, whole.shape[1] - 64)):
            expected = whole[:, top : top + 64, left : left + 64]
            torch.testing.assert_close(Crop(left, top, 64).pixels(look, image), expected, rtol=0, atol=1e-6)

    def test_a_crop_round_a_point_holds_it_and_may_lie_anywhere_there(self):
        size, rng = (150, 201), np.random.default_rng(0)
        for point in ([0.0, 0.0], [200.5, 149.5], [100.0, 75.0], [201.0, 3.0]):
            crops = {Crop.around(np.array(point, np.float32), size, 64, 8, rng) for _ in range(300)}
            for crop in crops:
                assert crop.left % 8 == crop.top % 8 == 0
                assert 0 <= crop.left <= 224 - 64
                assert 0 <= crop.top <= 160 - 64
                assert crop.left <= point[0] <= crop.left + 64
                assert crop.top <= point[1] <= crop.top + 64
        every = {Crop.around(np.array([100.0, 75.0], np.float32), size, 64, 8, rng) for _ in range(2000)}
        assert {crop.left for crop in every} == set(range(40, 97, 8))
        assert {crop.top for crop in every} == set(range(16, 73, 8))

    def test_a_photo_smaller_than_a_crop_has_one(self):
        crop = Crop.around(np.array([20.0, 30.0], np.float32), (40, 50), 64, 8, np.random.default_rng(0))
        assert crop == Crop(0, 0, 64)

    def test_crowded_crops_hold_more_people(self, tmp_path):
        """A tenth of the photo has everyone; drawn anywhere, many crops have nobody, drawn round people none has."""
        cv2.imwrite(str(tmp_path / "0.png"), np.full((96, 960, 3), 220, np.uint8))
        dots = np.random.default_rng(0).uniform([0, 0], [96, 96], (40, 2))
        np.savetxt(tmp_path / "0.csv", dots, delimiter=",", fmt="%.2f")
        scene = Scene.read_all(open_dataset("folder", tmp_path), "all", KERNELS["capped"])[0]
        stem, _, stride = cut(vgg(), "conv4_1")
        people = {}
        for crowded in (0.0, 0.5, 1.0):
            given = settings(crowded=crowded, crops_per_photo=200, views=4, scales=(0.8, 1.2))
            crops = CropDataset([scene], given, StemCache(stem, stride, "none", None, 0, ""), seed=0)
            people[crowded] = np.array([float(counts.sum()) for _, counts, _ in (crops[k] for k in range(200))])
        assert people[1.0].min() > 0
        assert (people[0.0] == 0).mean() > 0.7
        assert 0.3 < (people[0.5] == 0).mean() < 0.6

    def test_heads_are_where_the_counts_say(self, scene):
        """The darkest patches of a mirrored, scaled crop are those with people."""
        look = make_look(scene, settings(scales=(1.2, 1.2)), 1, np.random.default_rng(0))
        crop = Crop(8, 16, 64)
        counts, valid = crop.counts(look, scene.density)
        pixels = crop.pixels(look, scene.photo.image()).mean(0)
        darkness = -pixels.reshape(2, 32, 2, 32).mean((1, 3))
        if valid.all():
            assert np.corrcoef(darkness.ravel(), counts.ravel())[0, 1] > 0.8

    def test_a_crop_begins_on_the_grid_and_stays_in_the_padded_look(self):
        rng = np.random.default_rng(0)
        places = [Crop.draw((70, 200), 96, 8, rng) for _ in range(200)]
        assert {crop.top for crop in places} == {0}  # 70 is padded to the crop's side
        assert {crop.left for crop in places} == set(range(0, 224 - 96 + 1, 8))

    def test_the_borders_of_a_photo_are_seen_about_as_often_as_its_middle(self):
        rng = np.random.default_rng(0)
        seen = np.zeros((30, 40))
        for _ in range(4000):
            crop = Crop.draw((960, 1280), 384, 8, rng)
            whole = np.s_[-(-crop.top // 32) : (crop.top + 384) // 32, -(-crop.left // 32) : (crop.left + 384) // 32]
            seen[whole] += 1
        rows, cols = seen.sum(1) / seen.sum(1).mean(), seen.sum(0) / seen.sum(0).mean()
        for share in (rows[0], rows[-1], cols[0], cols[-1]):
            assert share > 0.5
        assert max(rows.max(), cols.max()) < 2

    def test_a_crop_is_cut_out_of_the_padded_look(self, scene):
        """And is itself padded where it reaches beyond the photo."""
        look = make_look(scene, settings(scales=(0.7, 1.4)), 3, np.random.default_rng(1))
        image = scene.photo.image()
        whole = padded_pixels(look, image, 192)
        for left, top in ((0, 0), (8, 16), (whole.shape[2] - 96, whole.shape[1] - 96)):
            crop = Crop(left, top, 96).pixels(look, image)
            assert torch.equal(crop, whole[:, top : top + 96, left : left + 96])

    def test_the_first_look_is_the_photo(self, scene):
        look = make_look(scene, settings(scales=(0.5, 2.0), colours=0.5, grey=1.0), 0, np.random.default_rng(0))
        np.testing.assert_array_equal(look.pixels(scene.photo.image()), scene.photo.image())

    def test_every_look_can_be_larger(self, scene):
        larger = settings(scale=1.5, scales=(0.8, 1.2))
        first, *others = (make_look(scene, larger, number, np.random.default_rng(number)) for number in range(9))
        assert first.view == full(scene.size, scale=1.5)
        assert all(1.2 <= look.view.scale <= 1.8 for look in others)
        assert len({look.view.scale for look in others}) == 8

    def test_colours_change(self, scene):
        look = make_look(scene, settings(colours=0.5, grey=1.0), 2, np.random.default_rng(0))
        pixels = look.pixels(scene.photo.image())
        assert (pixels[..., 0] == pixels[..., 2]).all()
        assert pixels.std() != scene.photo.image().std()


class TestStemCache:
    @pytest.mark.parametrize("where", ["disk", "ram"])
    def test_a_map_is_computed_once_and_is_that_of_the_whole_photo(self, scene, tmp_path, where):
        backbone = vgg()
        stem, _, stride = cut(backbone, "conv4_1")
        calls = []
        stem.register_forward_hook(lambda *_: calls.append(1))
        cache = StemCache(stem, stride, where, tmp_path, 1e9, "origin")
        look = make_look(scene, settings(), 0, np.random.default_rng(0))
        crop = Crop(8, 0, 64)
        first, again = cache.crop(scene, look, crop), cache.crop(scene, look, crop)
        assert len(calls) == 1
        assert torch.equal(first, again)
        whole = stem(preprocess(scene.photo.image())[None])[0]
        torch.testing.assert_close(first, whole[:, 0:8, 1:9], rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(cache.whole(scene, look), whole, rtol=1e-2, atol=1e-3)

    def test_files_are_shared_by_runs_with_the_same_stem_alone(self, scene, tmp_path):
        stem, _, stride = cut(vgg(), "conv4_1")
        look = make_look(scene, settings(), 0, np.random.default_rng(0))
        StemCache(stem, stride, "disk", tmp_path, 1e9, "one").whole(scene, look)
        calls = []
        stem.register_forward_hook(lambda *_: calls.append(1))
        StemCache(stem, stride, "disk", tmp_path, 1e9, "one").whole(scene, look)
        assert not calls
        StemCache(stem, stride, "disk", tmp_path, 1e9, "two").whole(scene, look)
        assert calls

    def test_it_stays_within_its_limit(self, scene, tmp_path):
        stem, _, stride = cut(vgg(), "conv4_1")
        cache = StemCache(stem, stride, "disk", tmp_path, 100, "origin")
        look = make_look(scene, settings(), 0, np.random.default_rng(0))
        assert cache.crop(scene, look, Crop(0, 0, 64)).shape == (8, 8, 8)
        assert cache.stored == 0
        assert not list(tmp_path.glob("*/*.safetensors"))

    def test_a_damaged_file_is_made_anew(self, scene, tmp_path):
        stem, _, stride = cut(vgg(), "conv4_1")
        look = make_look(scene, settings(), 0, np.random.default_rng(0))
        cache = StemCache(stem, stride, "disk", tmp_path, 1e9, "origin")
        good = cache.whole(scene, look)
        (file,) = tmp_path.glob("*/*.safetensors")
        file.write_bytes(file.read_bytes()[:50])
        assert torch.equal(cache.whole(scene, look), good)

    def test_photos_of_the_same_name_are_told_apart_and_so_is_a_photo_that_was_changed(self, tmp_path):
        stem, _, stride = cut(vgg(), "conv4_1")
        cache = StemCache(stem, stride, "ram", None, 1e9, "origin")

        def look_at(folder, brightness):
            (tmp_path / folder).mkdir(exist_ok=True)
            cv2.imwrite(str(tmp_path / folder / "frame.png"), np.full((64, 64, 3), brightness, np.uint8))
            (tmp_path / folder / "frame.csv").write_text("10,10\n")
            (scene,) = Scene.read_all(open_dataset("folder", tmp_path / folder), "all", KERNELS["capped"])
            return cache.whole(scene, make_look(scene, settings(), 0, np.random.default_rng(0)))

        one, other = look_at("one", 50), look_at("other", 200)
        assert not torch.equal(one, other)
        assert torch.equal(look_at("other", 200), other)
        assert not torch.equal(look_at("one", 120), one)

    def test_a_stem_without_layers_is_where_it_is_said_to_be(self):
        """`meta` stands for a GPU: what comes from there must not be brought to the CPU."""
        cache = StemCache(torch.nn.Sequential(), 1, "none", None, 0, "", "meta")
        assert cache.run(torch.zeros(1, 3, 32, 32, device="meta")).device.type == "meta"

    def test_a_half_written_map_is_removed_when_it_is_surely_nobody_s(self, tmp_path):
        stem, _, stride = cut(vgg(), "conv4_1")
        folder = StemCache(stem, stride, "disk", tmp_path, 1e9, "origin")._directory
        young, old = folder / "a.safetensors.1-ab.tmp", folder / "b.safetensors.2-cd.tmp"
        for file in (young, old):
            file.write_bytes(b"half")
        os.utime(old, (0, 0))
        StemCache(stem, stride, "disk", tmp_path, 1e9, "origin")
        assert (young.exists(), old.exists()) == (True, False)

    def test_readers_in_other_processes_get_no_stem(self):
        stem, _, stride = cut(vgg(), "conv4_1")
        assert pickle.loads(pickle.dumps(StemCache(stem, stride, "none", None, 0, ""))).stem is None


def test_photos_of_ucf_qnrf_are_learnt_in_the_size_in_which_their_features_are_made(scene):
    """The paper limits their shorter side to 2048 pixels."""
    large = replace(scene, dataset="ucf_qnrf", size=(4096, 6000))
    rng = np.random.default_rng(0)
    assert large.whole(1.0).size == (2048, 3000)
    assert make_look(large, settings(scale=1.5), 0, rng).view.size == (3072, 4500)
    assert make_look(large, settings(scales=(0.5, 0.5)), 1, rng).view.size == (1024, 1500)
    assert replace(large, dataset="jhu").whole(1.0).size == (4096, 6000)


def test_large_photos_go_through_the_stem_in_tiles_with_the_same_maps(monkeypatch):
    stem, _, stride = cut(vgg(), "conv4_1")
    cache = StemCache(stem, stride, "none", None, 0, "")
    image = torch.rand(1, 3, 256, 352)
    whole = cache.run(image)
    seen = []
    monkeypatch.setattr("agents.pretraining.stem.TILE_PIXELS", 160 * 160)
    monkeypatch.setattr(StemCache, "_run", lambda self, part: seen.append(part.shape) or self.stem(part))
    torch.testing.assert_close(cache.run(image), whole, rtol=0, atol=1e-6)
    assert len(seen) > 1
    assert all(shape[2] * shape[3] <= 160 * 160 for shape in seen)
