"""Handwritten digits: scikit-learn's, and IDX files written here."""

import gzip
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

import jaxkkt as jk
from jaxkkt import images
from jaxkkt.images import (
    MNIST_FILES,
    digits,
    idx_images,
    mnist,
    read_idx,
    resampled,
)


def write_idx(path, array):
    path.write_bytes(images._idx(array))


@pytest.fixture
def folder(tmp_path):
    """Twenty images of 28 x 28 to train and eight to test, labels 0 to 3."""
    generator = np.random.default_rng(5)
    for (images_name, labels_name), n in zip(MNIST_FILES.values(), (20, 8), strict=True):
        write_idx(tmp_path / images_name, generator.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        write_idx(tmp_path / labels_name, (np.arange(n) % 4).astype(np.uint8))
    return tmp_path


class TestDigits:
    def test_are_those_of_scikit_learn_split_once_for_all(self):
        source = load_digits()
        pixels = [tuple(image.ravel() / 16) for image in source.images]
        rows = dict(zip(pixels, source.target.tolist(), strict=True))
        train, test = digits(64)
        assert len(train.y) + len(test.y) == 360
        assert len(test.y) == 72
        for part in (train, test):
            assert [rows[tuple(x.astype(float))] for x in part.x] == ((part.y + 1) / 2).tolist()
            assert abs(part.y.mean()) < 0.05
        assert not {x.tobytes() for x in train.x} & {x.tobytes() for x in test.x}
        np.testing.assert_array_equal(digits(64).train.x, train.x)

    def test_resampling_keeps_what_it_can(self):
        small, large = digits(16).train.x, digits(256, upsample=True).train.x
        assert small.shape[1] == 16
        assert large.shape[1] == 256
        whole = digits(64).train.x
        for part in (small, large):
            np.testing.assert_allclose(part.mean(axis=1), whole.mean(axis=1), atol=0.06)
            assert part.min() >= -1e-6
            assert part.max() <= 1 + 1e-6

    def test_normalized(self):
        train, _ = digits(25, normalized=True)
        np.testing.assert_allclose(np.linalg.norm(train.x, axis=1), 1, rtol=1e-6)

    @pytest.mark.parametrize(
        ("d", "message"),
        [
            (50, "square of an image's side, got 50; the nearest is 49"),
            (0, "square of an image's side, got 0"),
            (-4, "square of an image's side, got -4"),
            (
                81,
                r"d = 81 is more than the 8 x 8 = 64 pixels of the images: take a smaller d, or",
            ),
        ],
    )
    def test_other_dimensions_are_refused(self, d, message):
        with pytest.raises(ValueError, match=message):
            digits(d)

    def test_dimensions_beyond_memory_are_refused(self):
        with pytest.raises(
            ValueError, match=r"d must be at most 1024 x 1024 = 1048576, .*got 1050625"
        ):
            digits(1025**2, upsample=True)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("d", [25.0, "25"])
    def test_dimensions_are_integers(self, d):
        with pytest.raises(ValueError, match=f"d must be an integer, got {d!r}"):
            digits(d)

    def test_missing_scikit_learn_is_told(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
        images._sklearn_digits.cache_clear()
        with pytest.raises(ImportError, match=r"pip install 'jaxkkt\[images\]'"):
            digits(64)


def test_resampling_averages_blocks_of_a_linear_image():
    ramp = np.add.outer(np.arange(8.0), 2 * np.arange(8.0))[None]
    half = resampled(ramp, 16)[0].reshape(4, 4)
    blocks = ramp[0].reshape(4, 2, 4, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(half[1:-1, 1:-1], blocks[1:-1, 1:-1], rtol=1e-5)


class TestFiles:
    def test_reads_zeros_and_ones(self, folder):
        train, test = idx_images(folder)
        assert train.x.shape == (10, 784)
        assert test.x.shape == (4, 784)
        assert train.y.tolist() == [-1, 1] * 5
        first = read_idx(folder / MNIST_FILES["train"][0], 3)[0]
        np.testing.assert_allclose(train.x[0], first.ravel() / 255, rtol=1e-6)

    def test_reads_gzipped_files(self, folder):
        expected = idx_images(folder, 196).train.x
        for path in list(folder.iterdir()):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        np.testing.assert_array_equal(idx_images(folder, 196).train.x, expected)

    def test_gzipped_and_plain_ones_may_be_mixed(self, folder):
        expected = idx_images(folder, 196).train
        path = folder / MNIST_FILES["train"][0]
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        np.testing.assert_array_equal(idx_images(folder, 196).train.x, expected.x)

    def test_images_and_labels_in_each_other_s_place_are_told(self, folder):
        images_path, labels_path = (folder / name for name in MNIST_FILES["train"])
        content = images_path.read_bytes()
        images_path.write_bytes(labels_path.read_bytes())
        labels_path.write_bytes(content)
        with pytest.raises(ValueError, match=r"idx3-ubyte is no IDX file of 3 dimensions"):
            idx_images(folder)

    def test_missing_files_are_told(self, folder):
        (folder / MNIST_FILES["test"][1]).unlink()
        with pytest.raises(ValueError, match=r"no file t10k-labels-idx1-ubyte \(or .*fetch_mnist"):
            idx_images(folder)
        (folder / MNIST_FILES["train"][0]).unlink()
        with pytest.raises(ValueError, match=r"train-images-idx3-ubyte, t10k-labels-idx1-ubyte"):
            idx_images(folder)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda b: b[:-1], "is truncated or damaged: 15695 bytes, .* promises 15696"),
            (lambda b: b + b"x", "is truncated or damaged: 15697 bytes"),
            (lambda b: b[:9], "is truncated: 9 bytes, its header alone has 16"),
            (lambda b: b"", "is truncated: 0 bytes"),
            (
                lambda b: struct.pack(">I", 0x801) + b[4:],
                "its magic number is 0x00000801, not 0x00000803",
            ),
        ],
    )
    def test_damaged_files_are_told(self, folder, damage, message):
        path = folder / MNIST_FILES["train"][0]
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(ValueError, match=message):
            idx_images(folder)

    def test_names_of_files_may_be_strings(self, tmp_path):
        array = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
        write_idx(tmp_path / "file", array)
        np.testing.assert_array_equal(read_idx(str(tmp_path / "file"), 3), array)

    def test_other_dimensions_are_not_read(self, folder):
        with pytest.raises(ValueError, match=r"dimensions must be 1 for labels or 3 for .* got 2"):
            read_idx(folder / MNIST_FILES["train"][0], 2)

    @pytest.mark.usefixtures("unchecked")
    def test_images_that_are_not_square_are_told(self, folder):
        for images_name, _ in MNIST_FILES.values():
            path = folder / images_name
            write_idx(path, read_idx(path, 3)[:, :20])
        with pytest.raises(ValueError, match=r"must be square, .* got \(10, 20, 28\): pad"):
            idx_images(folder, 25)

    def test_truncated_gzip_files_are_told(self, folder):
        path = folder / MNIST_FILES["train"][0]
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
        path.unlink()
        with pytest.raises(ValueError, match="is truncated or no gzip file"):
            idx_images(folder)

    def test_damaged_gzip_files_are_told(self, folder):
        path = folder / MNIST_FILES["train"][0]
        packed = bytearray(gzip.compress(path.read_bytes()))
        packed[40:60] = bytes(20)
        (folder / f"{path.name}.gz").write_bytes(packed)
        path.unlink()
        with pytest.raises(ValueError, match="is truncated or no gzip file"):
            idx_images(folder)

    def test_files_that_do_not_belong_together_are_told(self, folder):
        write_idx(folder / MNIST_FILES["train"][1], np.zeros(19, np.uint8))
        with pytest.raises(ValueError, match=r"holds 20 images but .* 19 labels"):
            idx_images(folder)

    def test_one_class_is_told(self, folder):
        write_idx(folder / MNIST_FILES["test"][1], np.full(8, 7, np.uint8))
        with pytest.raises(ValueError, match=r"zeros and ones are asked for, but the labels are"):
            idx_images(folder)


class TestMnist:
    """Files are MNIST's by their sums; here those of files that are not."""

    @pytest.fixture
    def known(self, folder, monkeypatch):
        sums = {path.name: images._md5(path.read_bytes()) for path in folder.iterdir()}
        monkeypatch.setattr(images, "MNIST_SUMS", sums)
        return folder

    @pytest.mark.skipif("JAXKKT_MNIST" not in os.environ, reason="JAXKKT_MNIST names no folder")
    def test_itself(self):
        train, test = mnist(os.environ["JAXKKT_MNIST"], 49)
        assert [len(train.y), len(test.y)] == [12_665, 2_115]
        assert [int((part.y > 0).sum()) for part in (train, test)] == [6_742, 1_135]

    def test_are_read_by_their_sums(self, known):
        for mine, theirs in zip(mnist(known, 196), idx_images(known, 196), strict=True):
            np.testing.assert_array_equal(mine.x, theirs.x)
        for path in list(known.iterdir()):
            (known / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        assert mnist(known, 196).train.x.shape == (10, 196)

    def test_others_of_the_same_shapes_are_refused(self, known):
        path = known / MNIST_FILES["test"][0]
        write_idx(path, read_idx(path, 3) ^ 1)
        message = rf"not MNIST's.*{path.name} has [0-9a-f]{{32}}, MNIST's [0-9a-f]{{32}}\. .*idx_im"
        with pytest.raises(ValueError, match=message) as told:
            mnist(known)
        assert "train-images" not in str(told.value)
        assert idx_images(known).test.x.shape == (4, 784)

    def test_a_sweep_over_them_is_refused_before_it_trains(self, folder, monkeypatch):
        monkeypatch.setenv("JAXKKT_MNIST", str(folder))
        (run,) = jk.grid(data="mnist", d=49, samples=4, width=8, seed=0)
        with pytest.raises(ValueError, match="these files are not MNIST's"):
            jk.sweep([run], progress=False)

    def test_a_sweep_takes_other_ones_as_own_arrays(self, folder):
        train, test = idx_images(folder, 25)
        assert jk.grid(data=jk.data.Arrays(*train, *test), width=8, seed=0)[0].samples == 10


class TestFetch:
    def fetcher(self, monkeypatch, labels):
        calls = []

        def fetch_openml(name, **settings):
            calls.append((name, settings["data_home"]))
            data = np.zeros((len(labels), 784))
            data[:, 3] = labels * 20
            return SimpleNamespace(data=data, target=labels.astype(str))

        fake = SimpleNamespace(fetch_openml=fetch_openml)
        monkeypatch.setattr(images, "_sklearn_datasets", lambda: fake)
        return calls

    def test_writes_the_files_once(self, tmp_path, monkeypatch):
        labels = np.full(70_000, 5)
        labels[:12_665] = np.arange(12_665) % 2
        labels[60_000 : 60_000 + 2_115] = np.arange(2_115) % 2
        calls = self.fetcher(monkeypatch, labels)
        with pytest.raises(ValueError, match="what OpenML sent is not MNIST"):
            images.fetch_mnist(tmp_path)
        assert not list(tmp_path.iterdir())
        pixels = np.zeros((70_000, 28, 28), np.uint8)
        pixels[:, 0, 3] = labels * 20
        parts = {"train": slice(60_000), "test": slice(60_000, None)}
        sums = {
            name: images._md5(images._idx(array[parts[split]]))
            for split, names in MNIST_FILES.items()
            for name, array in zip(names, (pixels, labels.astype(np.uint8)), strict=True)
        }
        monkeypatch.setattr(images, "MNIST_SUMS", sums)
        train, test = mnist(images.fetch_mnist(tmp_path))
        assert (len(train.y), len(test.y)) == (12_665, 2_115)
        np.testing.assert_allclose(train.x[1, 3], 20 / 255, rtol=1e-6)
        images.fetch_mnist(tmp_path)
        assert calls == 2 * [("mnist_784", tmp_path)]
