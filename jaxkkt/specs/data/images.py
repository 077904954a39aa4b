"""Handwritten digits, 0 against 1."""

from functools import cache
from typing import Any, ClassVar

import numpy as np

from jaxkkt import images
from jaxkkt.datasets import Dataset
from jaxkkt.specs.data.base import Sized, on_host
from jaxkkt.specs.fields import described


class _Images(Sized):
    """Handwritten digits, 0 against 1, at d = s x s pixels: the first `samples` of an order that
    the seed draws, with both classes. Options as in `images.digits`."""

    same_for_all_seeds: ClassVar[bool] = True  # of a class that draws them itself not
    upsample: bool = described(
        "whether more pixels than the images have were interpolated", default=False
    )
    normalized: bool = described("whether every image was scaled to |x| = 1", default=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"draw_held_out", "draw_truth"} & vars(cls).keys():
            cls.same_for_all_seeds = bool(vars(cls).get("same_for_all_seeds", False))

    def images(self) -> images.Images:
        raise NotImplementedError

    def draw_training(self, seed: int) -> Dataset:
        x, y = self.images().train
        if self.samples > len(y):
            raise ValueError(
                f"{self.label} has {len(y)} training images, but a run asks for {self.samples} "
                "samples"
            )
        order = np.random.default_rng(seed).permutation(len(y))
        first = [order[y[order] == label][0] for label in (1, -1)]
        rows = np.array([*first, *(i for i in order if i not in first)])[: self.samples]
        return on_host(x[rows], y[rows])

    def draw_held_out(self, seed: int) -> Dataset:
        found = on_host(*self.images().test)
        return Dataset(*map(_read_only, found))


class Digits(_Images):
    """scikit-learn's zeros and ones: `images.digits`. Needs `pip install 'jaxkkt[images]'`."""

    def images(self) -> images.Images:
        return _digits(self.d, self.upsample, self.normalized)


class Mnist(_Images):
    """MNIST's zeros and ones, from the folder that JAXKKT_MNIST names: `images.mnist`."""

    def images(self) -> images.Images:
        return _mnist(self.d, self.upsample, self.normalized)


@cache
def _digits(d: int, upsample: bool, normalized: bool) -> images.Images:
    return images.digits(d, upsample, normalized)


@cache
def _mnist(d: int, upsample: bool, normalized: bool) -> images.Images:
    return images.mnist(images.mnist_folder(), d, upsample, normalized)


def _read_only(array: Any) -> Any:
    """The same numbers, which later runs read, too: to change them in place is an error."""
    view = array.view()
    view.flags.writeable = False
    return view
