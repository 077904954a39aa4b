"""How a run is told to the device: as a row of words."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxkkt.engine.machine.packing import Layout, numbers
from jaxkkt.engine.planning.buckets import Bucket
from jaxkkt.engine.programs.draws import SIZES, Drawing, Sizes, drawing_of, drawn_on_device
from jaxkkt.runs.run import Curve, Run
from jaxkkt.specs.data import Data
from jaxkkt.specs.same import Same, by_identity
from jaxkkt.training import Pause

_SIZES = SIZES.words
# Up to the seed: slot, number and seed are all in which runs of the same specs differ.
_SEEDS = Sizes._fields.index("seed") + 1
# The words of a row, in all: a multiple of so many. A row is what draws are compiled for, and so
# they are the same programs for most ways to train.
_WORDS = 32


class How(NamedTuple):
    """How a run trains, and where it pauses next, where its bucket `resumes` runs."""

    protocol: Any
    pause: Pause | None


class Told(NamedTuple):
    """A run that the device is told of: in which slot, its number there, and at which moment of its
    curve."""

    run: Run
    slot: int
    number: int = 0
    moment: int = 0


class Telling(NamedTuple):
    """How a bucket's runs are told to the device, each as a row of words.

    `drawings` are the ways in which its runs are drawn; a row has room for the longest.
    """

    how: Layout
    room: int
    shape: tuple[int, int, int]
    drawings: dict[Any, Drawing]
    resumes: bool

    @classmethod
    def of(cls, bucket: Bucket) -> "Telling":
        shape = bucket.drawn_at
        one_of = {_drawn_alike(run, shape): run for run in bucket.one_of_each}
        found = {key: drawing_of(run, shape) for key, run in one_of.items()}
        room = max(one.words for one in found.values())
        run, resumes = bucket.runs[0], bucket.resumes
        how = Layout.of(numbers(_how(run.protocol, run.curve, 0, resumes)))
        return cls(how, room, shape, found, resumes)

    @property
    def words(self) -> int:
        needed = _SIZES + self.room + self.how.words
        return needed + -needed % _WORDS

    def drawing(self, run: Run) -> Drawing:
        return _drawing(self, run.apart_from_seed)

    def rows_of(self, told: Sequence[Told], bucket: Bucket) -> np.ndarray:
        """As many rows as a turn takes: of these runs, and of none."""
        rows = np.zeros((bucket.turn, self.words), np.int32)
        rows[len(told) :, 0] = bucket.slots
        if not told:
            return rows
        mine = rows[: len(told)]
        mine[:, :_SEEDS] = [(one.slot, one.number, _signed(one.run.seed)) for one in told]
        alike: dict[tuple[Same, int], int] = {}
        places = [alike.setdefault((run.apart_from_seed, at), len(alike)) for run, _, _, at in told]
        of_each = np.unique(places, return_index=True)[1]
        mine[:, _SEEDS:] = self._rest_of([told[i] for i in of_each])[places]
        return rows

    def _rest_of(self, told: Sequence[Told]) -> np.ndarray:
        """What follows the seed in each row."""
        runs, resumes = [one.run for one in told], self.resumes
        rows = np.zeros((len(told), self.words), np.int32)
        rows[:, _SEEDS:_SIZES] = [(run.samples, run.d, run.width) for run in runs]
        drawings = [self.drawing(run) for run in runs]
        for drawing in self.drawings.values():
            some = [i for i, one in enumerate(drawings) if one is drawing]
            if some:
                drawn = drawing.packed([runs[i] for i in some])
                rows[some, _SIZES : _SIZES + drawing.words] = drawn
        how = self.how.pack_on_host(
            [_how(run.protocol, run.curve, moment, resumes) for run, _, _, moment in told]
        )
        first = _SIZES + self.room
        rows[:, first : first + how.shape[1]] = how
        return rows[:, _SEEDS:]

    def unpack(self, words: Int[Array, " w"]) -> tuple[Sizes, How]:
        """Traced: its sizes, and how it trains."""
        return SIZES.unpack(words), self.how.unpack(words[_SIZES + self.room :])


def _signed(seed: int) -> int:
    """The bits of a seed below 2^32 as a signed number."""
    return seed - 2**32 if seed >= 2**31 else seed


def _drawn_alike(run: Run, shape: tuple[int, int, int]) -> Any:
    """Equal for runs that are drawn by one program at this shape; of what the host draws by kind
    alone."""
    return _drawn_so(run.initialization, run.data, run.network, shape)


@by_identity
def _drawn_so(init: Any, data: Any, network: Any, shape: tuple[int, int, int]) -> Any:
    sizes = data.samples, data.d, network.width
    by_device = drawn_on_device(init, data, sizes == shape)
    return tuple(zip(map(_alike, (init, data)), by_device, strict=True))


@by_identity
def _alike(spec: Any) -> Any:
    if not spec.traceable:
        return type(spec), spec.label
    return jax.tree.structure(spec.sizeless() if isinstance(spec, Data) else spec)


@by_identity
def _drawing(telling: Telling, specs: Same) -> Drawing:
    return telling.drawings[_drawn_alike(Run.of_fields(*specs), telling.shape)]


def _how(protocol: Any, curve: Curve | None, moment: int, resumes: bool) -> How:
    """How a run trains, and its pause at this moment of its curve.

    Past the last moment, and without a curve, it never pauses.
    """
    if not resumes:
        return How(protocol, None)
    pause: Any = Pause(-np.inf, np.iinfo(np.int32).max)  # type: ignore[arg-type]
    if curve is not None and moment < len(curve.moments):
        after = curve.moments[moment]
        by_loss = curve.dimension == "level"
        pause = pause._replace(**({"log_loss": after} if by_loss else {"steps": int(after)}))
    return How(protocol, pause)
