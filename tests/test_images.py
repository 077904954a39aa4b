"""Handwritten digits: scikit-learn's, and IDX files written here."""

import gzip
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxkkt import images
from jaxkkt.images import MNIST_FILES, digits, mnist, read_idx, resampled, write_idx


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
            (50, "square of an image's side, got 50; next is 49"),
            (0, "square of an image's side, got 0"),
            (-4, "square of an image's side, got -4"),
            (81, r"d = 81 is more than the 8 x 8 = 64 pixels of the images: pass upsample=True"),
        ],
    )
    def test_other_dimensions_are_refused(self, d, message):
        with pytest.raises(ValueError, match=message):
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


class TestMnist:
    def test_reads_zeros_and_ones(self, folder):
        train, test = mnist(folder)
        assert train.x.shape == (10, 784)
        assert test.x.shape == (4, 784)
        assert train.y.tolist() == [-1, 1] * 5
        first = read_idx(folder / MNIST_FILES["train"][0], 3)[0]
        np.testing.assert_allclose(train.x[0], first.ravel() / 255, rtol=1e-6)

    def test_reads_gzipped_files(self, folder):
        expected = mnist(folder, 196).train.x
        for path in list(folder.iterdir()):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        np.testing.assert_array_equal(mnist(folder, 196).train.x, expected)

    def test_missing_files_are_told(self, folder):
        (folder / MNIST_FILES["test"][1]).unlink()
        with pytest.raises(ValueError, match=r"no file t10k-labels-idx1-ubyte or .*fetch_mnist"):
            mnist(folder)

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
            mnist(folder)

    def test_truncated_gzip_files_are_told(self, folder):
        path = folder / MNIST_FILES["train"][0]
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
        path.unlink()
        with pytest.raises(ValueError, match="is truncated or no gzip file"):
            mnist(folder)

    def test_damaged_gzip_files_are_told(self, folder):
        path = folder / MNIST_FILES["train"][0]
        packed = bytearray(gzip.compress(path.read_bytes()))
        packed[40:60] = bytes(20)
        (folder / f"{path.name}.gz").write_bytes(packed)
        path.unlink()
        with pytest.raises(ValueError, match="is truncated or no gzip file"):
            mnist(folder)

    def test_files_that_do_not_belong_together_are_told(self, folder):
        write_idx(folder / MNIST_FILES["train"][1], np.zeros(19, np.uint8))
        with pytest.raises(ValueError, match=r"holds 20 images but .* 19 labels"):
            mnist(folder)

    def test_one_class_is_told(self, folder):
        write_idx(folder / MNIST_FILES["test"][1], np.full(8, 7, np.uint8))
        with pytest.raises(ValueError, match=r"zeros and ones are asked for, but the labels are"):
            mnist(folder)


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
        train, test = mnist(images.fetch_mnist(tmp_path))
        assert (len(train.y), len(test.y)) == (12_665, 2_115)
        np.testing.assert_allclose(train.x[1, 3], 20 / 255, rtol=1e-6)
        images.fetch_mnist(tmp_path)
        assert calls == [("mnist_784", tmp_path)]

    def test_something_else_is_refused(self, tmp_path, monkeypatch):
        self.fetcher(monkeypatch, np.arange(70_000) % 10)
        with pytest.raises(ValueError, match="what OpenML sent is not MNIST"):
            images.fetch_mnist(tmp_path)
        assert not list(tmp_path.iterdir())
