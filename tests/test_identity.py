"""Identity: two runs are the same where they compute the same, whatever they are called."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import SOON, one, squared_norm

import jaxkkt as jk
from jaxkkt.specs import identity

pytestmark = pytest.mark.usefixtures("unchecked")


ALTERNATING = np.where(np.arange(300) % 2, 1, -1).astype(np.float32)


def scaled(factor):
    def data(key, samples, dim):
        y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
        return factor * jax.random.normal(key, (samples, dim)), y

    return data


def share(threshold):
    def own(params, data):
        return (jnp.abs(params.b) > threshold).mean()

    return own


def with_draws(**draws):
    """A distribution with other draws of Python's own."""

    def draw(self, key, samples, dim):
        return scaled(1.0)(key, samples, dim)

    return type("Drawn", (jk.data.Distribution,), {"draw": draw, **draws})


def held_out(number):
    labels = np.array([1, -1], np.float32)
    return lambda self, seed: jk.Dataset(np.full((2, self.d), number, np.float32), labels)


def truth(number):
    return lambda self, seed: {"number": np.float32(number)}


def frozen(neurons):
    """A rule that leaves the first neurons where they are."""

    def update(gradient, state, params=None):
        return jax.tree.map(lambda g: -0.1 * g.at[:neurons].set(0), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def error_of(first):
    def error(params, test):
        return (jk.networks.margins(params, test.x[:first], test.y[:first]) <= 0).mean()

    return error


def pool(label):
    """Points of which more are drawn to be held out than to be trained on."""
    labels = np.where(np.arange(300) < 6, ALTERNATING, label).astype(np.float32)

    def data(key, samples, dim):
        return jax.random.normal(key, (samples, dim)), jnp.asarray(labels[:samples])

    return data


def shipped(base, name, made):
    """A class of the package with a method of one's own, of what its own gives."""

    def method(self, *args):
        return made(getattr(base, name)(self, *args))

    return type("Mine", (base,), {name: method})


def drawn_by(base, name, factor):
    return shipped(base, name, lambda found: type(found)(factor * found[0], *found[1:]))


def blobs(told):
    class Blobs(jk.data.Distribution):
        sigma: jk.Number = 1.0

        def draw(self, key, samples, dim):
            return scaled(1.0)(key, samples, dim)

        def draw_truth(self, seed):
            return {"number": np.float32(told(self.sigma, seed))}

    return Blobs


def number(truth):
    return truth["number"]


def without(name, value):
    """Where the run has nothing of that name to give."""

    def told(**given):
        return {"value": value if given[name] is None else 0.0}

    if name == "test":
        return {"data": jk.data.Span, "measure": lambda test=None: told(test=test)}
    return {"measure": lambda curve=None: told(curve=curve)}


class Teacher(jk.data.Distribution):
    """Its labels are those of one teacher, if held-out points take that of the run's own."""

    def draw(self, key, samples, dim):
        return self.labelled(key, key, samples, dim)

    def labelled(self, key, teacher_key, samples, dim):
        x = jax.random.normal(jax.random.fold_in(key, 1), (samples, dim))
        return x, jnp.where(x @ jax.random.normal(teacher_key, (dim,)) > 0, 1.0, -1.0)


def taught(by):
    """By the run's teacher, or by one of the held-out points' own."""

    def draw_test(self, key, data_key, dim):
        return self.labelled(key, (key, data_key)[by], 256, dim)

    return type("Taught", (Teacher,), {"draw_test": draw_test})


def decayed(of_weights):
    def update(gradient, state, params=None):
        pulled = params if of_weights else gradient
        return jax.tree.map(lambda g, p: -0.1 * (g + 0.01 * p), gradient, pulled), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def measured_by(measure, **settings):
    return type("Measured", (jk.Measurement,), {"measure": measure, **settings})


def mean_size(self, params):
    return {"size": jnp.abs(params.v).mean()}


def rounded(eps):
    def measure(self, params):
        wide = params.v.astype(np.float64)
        return {"off": (wide * (1 + eps)).sum() - wide.sum()}

    return measured_by(measure, on_host=True)


def by_type(kind):
    def measure(self, params):
        return {"type": (5.0 if params.v.dtype == kind else 7.0) + 0 * params.v[0]}

    return measured_by(measure, on_host=True)


TRUTH = {"sigma": 2.0, "measure": number}
DIFFERENT = {
    "rules at the width of a run": [{"optimizer": frozen(n)} for n in (5, 15)],
    "factories at the width of a run": [
        {"optimizer": jk.optimizer(lambda n=n: frozen(n))} for n in (5, 15)
    ],
    "transformations in others, at the width of a run": [
        {
            "optimizer": jk.optimizer(
                optax.apply_if_finite, inner=frozen(n), max_consecutive_errors=3
            )
        }
        for n in (5, 15)
    ],
    "weights in place of gradients": [{"optimizer": decayed(of)} for of in (True, False)],
    "teachers of held-out points": [
        {"data": taught(by), "measure": error_of(256)} for by in (0, 1)
    ],
    "whether padding is told from neurons": [
        {"measure": measured_by(mean_size, padded=padded)} for padded in (True, False)
    ],
    "where it is measured": [
        {"measure": measured_by(mean_size, on_host=on_host)} for on_host in (True, False)
    ],
    "types that the host sees": [{"measure": by_type(kind)} for kind in (np.float32, np.float64)],
    "digits that float64 alone has": [{"measure": rounded(eps)} for eps in (1e-9, 1e-12)],
    "held-out points, more than a run's own": [{"measure": error_of(n)} for n in (16, 250)],
    "held-out points on the way": [
        {"curve": jk.Curve([-1.0], measure=error_of(n))} for n in (16, 250)
    ],
    "labels of held-out points alone": [{"data": pool(label)} for label in (1.0, -1.0)],
    "draws of a shipped class": [{"data": drawn_by(jk.data.Sphere, "draw", f)} for f in (1.0, 2.0)],
    "points of a shipped class": [
        {"data": drawn_by(jk.data.Sphere, "draw_training", f)} for f in (1.0, 2.0)
    ],
    "weights of a shipped class": [
        {"initialization": drawn_by(jk.initializations.Torch, "draw_start", f)} for f in (1.0, 2.0)
    ],
    "no held-out points": [without("test", value) | {"d": None} for value in (1.0, 2.0)],
    "no curve": [without("curve", value) for value in (1.0, 2.0)],
    "truths of a field": [{"data": blobs(lambda s, _, k=k: k * s), **TRUTH} for k in (1, 3)],
    "truths of a seed": [{"data": blobs(lambda _, i, k=k: k * i), **TRUTH} for k in (1, 3)],
    "optax transformations": [{"optimizer": rule} for rule in (optax.adam(0.01), optax.sgd(1e-9))],
    "learning rates in one": [{"optimizer": optax.adam(rate)} for rate in (0.01, 0.02)],
    "a schedule": [{"optimizer": optax.sgd(optax.linear_schedule(1, e, 9))} for e in (0.0, 0.5)],
    "settings": [{"optimizer": jk.optimizer(optax.sgd, learning_rate=r)} for r in (0.1, 0.2)],
    "functions of data": [{"data": scaled(factor)} for factor in (1.0, 1.0000001)],
    "arrays a function closes over": [{"data": scaled(jnp.full(8, f))} for f in (1.0, 2.0)],
    "held-out points": [{"data": with_draws(draw_held_out=held_out(n))} for n in (1, 2)],
    "truths": [{"data": with_draws(draw_truth=truth(n))} for n in (1, 2)],
    "measurements of one name": [{"measure": share(threshold)} for threshold in (0.1, 0.2)],
    "numbers of eight digits": [{"delta": delta} for delta in (0.01, 0.010000001)],
    "scales of eight digits": [{"init_scale": scale} for scale in (0.5, 0.500000001)],
    "slacks": [{"measure": jk.Flips, "slack": slack} for slack in (1.1, 1.2)],
    "balls": [{"protocol": jk.protocols.lazy_flow(ball)} for ball in (10.0, 10.0000001)],
    "curves": [{"curve": jk.Curve([-1.0])}, {"curve": None}],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_computes_something_else_is_another_run(name):
    a, b = (one(**axes) for axes in DIFFERENT[name])
    assert a.identity != b.identity
    assert (a.name, *a.measured) != (b.name, *b.measured)


def test_what_computes_the_same_is_the_same_run():
    for make in (
        lambda: one(optimizer=optax.adam(0.01)),
        lambda: one(data=scaled(1.5)),
        lambda: one(measure=share(0.5)),
    ):
        assert make().identity == make().identity
    assert one(delta=0.01).identity == one().identity


def test_an_own_function_is_told_by_what_it_computes_not_by_its_name():
    def renamed(key, samples, dim):
        return scaled(1.5)(key, samples, dim)

    a, b = one(data=scaled(1.5)), one(data=renamed)
    assert (a.name, a.identity) == (b.name, b.identity)
    assert a.data.label != b.data.label


def test_an_own_factory_is_told_by_what_it_computes_not_by_its_name():
    """A notebook did not find what a script had computed."""

    def sgd(learning_rate):
        return optax.sgd(learning_rate)

    def renamed(learning_rate):
        return optax.sgd(learning_rate)

    renamed.__module__ = "research"
    rules = (jk.optimizer(made, learning_rate=0.1) for made in (sgd, renamed))
    a, b = (one(optimizer=rule) for rule in rules)
    assert (a.name, a.identity) == (b.name, b.identity)
    assert a.name != one(optimizer=jk.optimizer(sgd, learning_rate=0.2)).name


@pytest.mark.slow
@pytest.mark.parametrize("values", [(1, True), ((1, 2), (1.0, 2.0)), ((0.0,), (-0.0,))])
def test_equal_values_of_other_types_are_others(values):
    """What one computed was taken for what the other would."""

    class Typed(jk.Measurement):
        value: Any = None

        def measure(self, params):
            return {"kind": params.v[0] + sum(map(ord, repr(self.value)))}

    specs = [Typed(value=value) for value in values]
    assert specs[0] != specs[1]
    assert specs[0] == Typed(value=values[0])
    runs = [one(measure=spec, max_steps=1) for spec in specs]
    assert len({runs[0], runs[1], one(measure=Typed(value=values[0]), max_steps=1)}) == 2
    told = [jk.sweep([run], progress=False).kind.item() for run in runs]
    texts = [sum(map(ord, repr(value))) for value in values]
    np.testing.assert_allclose(told[1] - told[0], texts[1] - texts[0], atol=1e-3)


def test_numbers_of_numpy_are_those_of_python():
    """Equal runs were trained twice."""

    class Levels(jk.Measurement):
        levels: tuple[float, ...] = ()
        pairs: tuple[tuple[int, int], ...] = ()
        kind: Any = ""

        def measure(self, params):
            return {"levels": params.v[0] + sum(self.levels)}

    ours = Levels(levels=(1.0, 2.0), pairs=((1, 2),), kind="a")
    theirs = Levels(
        levels=tuple(np.linspace(1, 2, 2)), pairs=((np.int64(1), 2),), kind=np.str_("a")
    )
    assert ours == theirs == Levels(levels=(1, 2), pairs=((1, 2),), kind="a")
    assert type(theirs.levels[0]) is float
    assert jk.Curve(steps=np.array([1, 2])) == jk.Curve(steps=[1, 2])
    sizes = {"d": 5, "samples": 4, "width": 3, "seed": 0}
    (run,) = jk.grid(**sizes, measure=Levels, pairs=((1, 2), (3, 4)))
    assert run.measure[0].pairs == ((1, 2), (3, 4))

    class Level(Levels):
        levels: jk.Number = 0.0

    assert len(jk.grid(**sizes, measure=Level, levels=(1.0, 2.0))) == 2


def test_a_name_with_callback_in_it_calls_nobody():
    @jax.jit
    def largest_callback(a):
        return jnp.abs(a).max()

    assert one(measure=lambda params: {"largest": largest_callback(params.w)}).measured


def test_some_of_own_points_are_drawn_with_a_store(tmp_path):
    """Held-out points, more than there are own ones, are drawn only where they are asked for."""
    x, y = np.eye(9, 8, dtype=np.float32), np.where(np.arange(9) % 2, 1, -1).astype(np.float32)

    def subset(key, samples, dim):
        chosen = jax.random.choice(key, 9, (samples,), replace=False)
        return jnp.asarray(x)[chosen], jnp.asarray(y)[chosen]

    table = jk.sweep([one(data=subset, optimizer=SOON)], store=tmp_path)
    assert table.status.item() != jk.Status.RAISED


@pytest.mark.parametrize("base", [jk.data.Sphere, jk.data.Gaussian])
def test_a_shipped_class_draws_as_its_subclass_says(base):
    """It drew as the class did that it is of."""

    class Scaled(base):
        factor: jk.Number = 1.0

        def draw(self, key, samples, dim):
            x, y = super().draw(key, samples, dim)
            return self.factor * x, y

    def size(data):
        return jnp.linalg.norm(data.x)

    sizes = {"d": 8, "samples": 6, "width": 20, "seed": 0}
    table = jk.sweep(jk.grid(data=Scaled, factor=[1.0, 5.0], **sizes, measure=size, optimizer=SOON))
    small, large = table["size"].values.ravel()
    np.testing.assert_allclose(large, 5 * small, rtol=1e-6)


def test_weights_of_a_shipped_class_are_drawn_as_its_subclass_says():
    larger = drawn_by(jk.initializations.Torch, "draw", 5.0)()
    smaller = drawn_by(jk.initializations.Torch, "draw", 1.0)()
    drawn = [some.draw_start(0, 20, 8).w for some in (smaller, larger)]
    np.testing.assert_allclose(drawn[1], 5 * drawn[0], rtol=1e-6)
    table = jk.sweep([one(initialization=some, optimizer=SOON) for some in (smaller, larger)])
    assert len(set(table.squared_norm.values.ravel())) == 2


def drawing(base, **named):
    def draw(self, key, *sizes):
        if base is jk.data.Distribution:
            return scaled(1.0)(key, *sizes)
        return jk.networks.gaussian(key, *sizes)

    return type("Drawing", (base,), {"draw": draw, **named})


@pytest.mark.parametrize("what", ["data", "initialization"])
@pytest.mark.parametrize("name", ["label", "tag"])
def test_what_keys_are_made_of_is_part_of_a_run(what, name):
    """A store had the rows of other draws for those of a class that was given another label."""
    base = {"data": jk.data.Distribution, "initialization": jk.initializations.Initialization}[what]
    plain, named = (one(**{what: drawing(base, **given)}) for given in ({}, {name: "other"}))
    drawn = (jax.tree.leaves(jk.draw(run)) for run in (plain, named))
    assert any((a != b).any() for a, b in zip(*drawn, strict=True))
    assert plain.name != named.name


def test_a_measurement_takes_a_truth_by_name():
    data = with_draws(draw_truth=truth(3))
    run = one(data=data, measure=lambda truth: {"t": truth["number"]}, optimizer=SOON)
    assert jk.sweep([run]).t.item() == 3


def test_draws_that_raise_for_seed_0_have_no_identity():
    def raises(self, seed):
        raise OSError("no such file")

    with pytest.raises(ValueError, match=r"draw_truth of 'drawn' gives cannot be told.*such file"):
        one(data=with_draws(draw_truth=raises)).identity  # noqa: B018


@pytest.mark.parametrize(
    "pair",
    [
        lambda: [scaled(factor) for factor in (1.0, 2.0)],
        lambda: [(factor * np.eye(6, 8, dtype=np.float32), ALTERNATING[:6]) for factor in (1, 2)],
    ],
    ids=["functions", "arrays"],
)
def test_what_an_own_function_or_array_changed_is_told(pair, tmp_path):
    """No column says that it has."""
    first, other = pair()
    axes = {"measure": squared_norm, "seed": 0, "optimizer": SOON}
    axes |= {} if isinstance(first, tuple) else {"d": 8, "samples": 6}
    jk.sweep(jk.grid(data=first, width=[18, 20], **axes), store=tmp_path)
    with pytest.raises(ValueError, match=r"What differs:\s+what own functions compute, or the num"):
        jk.sweep(jk.grid(data=other, width=[20, 18], **axes), store=tmp_path)


def test_numbers_drawn_by_numpy_are_refused():
    """They would be the same for all seeds."""

    def data(key, samples, dim):
        return np.random.default_rng().normal(size=(samples, dim)), scaled(1.0)(key, samples, dim)[
            1
        ]

    with pytest.raises(ValueError, match=r"draw them by jax.random, from its key"):
        jk.sweep([one(data=data)])


def test_own_data_are_told_by_their_numbers():
    x, y = np.eye(4, 3, dtype=np.float32), np.array([1, -1, 1, -1], np.float32)
    other = x.copy()
    other[0, 0] = np.nextafter(np.float32(1), np.float32(2))
    names = {jk.grid(data=(a, y), width=3, seed=0)[0].name for a in (x, x.copy(), other)}
    assert len(names) == 2


def test_an_own_class_is_told_by_its_code():
    def blobs(offset):
        class Blobs(jk.data.Distribution):
            sigma: jk.Number = 1.0

            def draw(self, key, samples, dim):
                y = jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)
                return offset + self.sigma * jax.random.normal(key, (samples, dim)), y

        return Blobs

    first, again, other = (one(data=blobs(offset)) for offset in (1.0, 1.0, 2.0))
    assert first.identity == again.identity != other.identity


@pytest.mark.parametrize("base", [jk.data.Distribution, jk.Measurement])
def test_an_own_class_may_move_to_another_module(base):
    """Rows and networks that a script had made were not found by what imported it."""

    def draw(self, key, samples, dim):
        return scaled(1.0)(key, samples, dim)

    def measure(self, params):
        return {"own": jnp.abs(params.w).max()}

    def moved(module):
        body = {"draw": draw, "measure": measure, "__module__": module, "__qualname__": "Own"}
        made = type("Own", (base,), body)
        return one(**{"data" if base is jk.data.Distribution else "measure": made})

    assert moved("__main__").identity == moved("research").identity
    assert moved("research").to_json() != moved("__main__").to_json()


def test_where_it_cannot_be_told_a_store_is_refused(tmp_path):
    def counted(key, samples, dim):
        x = jax.pure_callback(lambda: np.ones((samples, dim)), jnp.ones((samples, dim)))
        return x, jnp.where(jnp.arange(samples) % 2 == 0, 1.0, -1.0)

    def on_the_host(params, data):
        return float(np.asarray(params.b).mean())

    with pytest.raises(ValueError, match="calls back into Python"):
        one(data=counted).identity  # noqa: B018

    class OnHost(jk.Measurement):
        on_host = True

        def measure(self, params, data):
            return on_the_host(params, data)

    with pytest.raises(ValueError, match="'on_the_host' cannot be traced by JAX: write it with"):
        jk.sweep([one(measure=on_the_host)])
    with pytest.raises(ValueError, match=r"OnHost computes cannot be told, since it cannot be tr"):
        jk.sweep([one(measure=OnHost)], store=tmp_path / "s")
    assert not (tmp_path / "s").exists()
    assert np.isfinite(jk.sweep([one(measure=OnHost, optimizer=SOON)]).on_host)


def test_the_code_of_the_package_is_part_of_every_store(tmp_path, monkeypatch):
    """Edited code under one version makes other rows."""
    runs = [one(max_steps=3, optimizer=SOON)]
    jk.sweep(runs, store=tmp_path / "s", progress=False)
    copy = tmp_path / "jaxkkt"
    copy.mkdir()
    (copy / "a.py").write_text("one = 2\n")
    monkeypatch.setitem(identity._COVERED, "jaxkkt", copy)
    identity.digest_of_code.cache_clear()
    with pytest.raises(ValueError, match=r"other settings.*\n  code: "):
        jk.sweep(runs, store=tmp_path / "s", progress=False)
    monkeypatch.undo()
    identity.digest_of_code.cache_clear()
    jk.sweep(runs, store=tmp_path / "s", progress=False)


def test_a_covered_package_is_told_by_its_source(tmp_path, monkeypatch):
    """Its classes need not be traced; an edit makes other runs of those that use them alone."""

    class OnHost(jk.Measurement):
        on_host = True

        def measure(self, params):
            return float(np.asarray(params.b).mean())

    OnHost.__module__ = "studies_of_mine.one"
    monkeypatch.setattr(identity, "_COVERED", dict(identity._COVERED))
    (tmp_path / "a.py").write_text("one = 1\n")
    identity.cover("studies_of_mine", tmp_path)
    before, plain = one(measure=OnHost).identity, one().identity
    (tmp_path / "a.py").write_text("one = 2\n")
    assert one(measure=OnHost).identity == before  # what is imported is as it was
    identity.digest_of_code.cache_clear()
    assert one(measure=OnHost).identity != before
    assert one().identity == plain
    with pytest.raises(ValueError, match="studies_of_mine is covered already"):
        identity.cover("studies_of_mine", tmp_path / "elsewhere")
    identity.digest_of_code.cache_clear()
