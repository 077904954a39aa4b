"""How close a network is to a KKT point of the max-margin problem, with a bound on the answer.

The problem is min |theta|^2 / 2 over networks with every margin q_i >= 1. At a KKT point
theta = sum_i lambda_i y_i g_i with multipliers lambda_i >= 0 that vanish where q_i > 1, and g_i in
the Clarke subdifferential of N(x_i) over theta: sigma'_ij relu's derivative at w_j . x_i + b_j,
any number in [0, 1] where that is 0. Over w_j and b_j, g_i is v_j sigma'_ij (x_i, 1), over v_j it
is relu(w_j . x_i + b_j). Vardi, Yehudai, Shamir (2022), Section 5.2, equations 3 and 4.
Of a network without biases theta is (w, v), and x_i stands wherever (x_i, 1) does.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkkt import datasets, networks
from jaxkkt.kkt import variables
from jaxkkt.kkt.nearest import Problem, kinks, nearest, problem_of
from jaxkkt.kkt.precision import in_float64
from jaxkkt.kkt.systems import Point
from jaxkkt.networks import PRECISION, Params, relu
from jaxkkt.numerics.compiling import OLDER_EMITTERS, quick_jit
from jaxkkt.numerics.outcomes import Outcome
from jaxkkt.numerics.truths import all_of, any_of


class CertificateStatus(Outcome):
    """What a certificate is worth. `describe` gives each a sentence and a remedy."""

    CERTIFIED = (
        0,
        "the residual is the least possible, to within the gap; the network is near a KKT point "
        "where residual and slackness are small, below 1e-6 for instance",
    )
    STOPPED_EARLY = (
        1,
        "the residuals hold, but smaller ones may exist: the gap is above the tolerance; raise "
        "the budget for kinks or, where all have room, lower the kink tolerance",
    )
    INFEASIBLE = (
        2,
        "a sample is misclassified or its output is 0, so no rescaling has margins of 1: train "
        "the network until it classifies all",
    )
    NON_FINITE = 3, "parameters or data are NaN or infinite: look at the status of the training run"
    BIASES_UNCLEAR = 4, variables.UNCLEAR


class Stationarity(NamedTuple):
    """The multipliers that bring sum_i lambda_i y_i g_i closest to theta, at min margin 1.

    multipliers (m,): lambda_i >= 0; 0 for padded samples.
    slopes (m, k): the sigma'_ij in [0, 1] that go with them.
    residual: |theta - sum_i lambda_i y_i g_i| / |theta|; not squared.
    gap: by how much residual^2 could be smaller for other multipliers and slopes, at most.
    slackness: sum_i lambda_i (q_i - 1) / sum_i lambda_i, margins at min margin 1. Where several
        multipliers are nearest, as of many samples of few dimensions, others may have less.
    epsilon, delta: the rescaled network is an (epsilon, delta)-KKT point in the sense of Lyu and Li
        (2020), Definition C.4, and Dutta et al. (2013): epsilon = |theta - sum_i lambda_i y_i g_i|,
        delta = max_i lambda_i (q_i - 1).
    """

    multipliers: Float[Array, "*lanes m"]
    slopes: Float[Array, "*lanes m k"]
    residual: Float[Array, "*lanes"]
    gap: Float[Array, "*lanes"]
    slackness: Float[Array, "*lanes"]
    epsilon: Float[Array, "*lanes"]
    delta: Float[Array, "*lanes"]


class Certificate(NamedTuple):
    """How close a network is to a KKT point.

    Where the status is INFEASIBLE, NON_FINITE or BIASES_UNCLEAR all but `kinks` and `min_margin`
    are NaN.

    clarke: with any sigma'_ij in [0, 1] at kinks; its residual is 0 at a KKT point.
    one_sided: with sigma'_ij = 1 where w_j . x_i + b_j > 0 (beyond rounding) and 0 elsewhere; its
        residual is about 0.3 at the KKT points that training leads to, where neurons have kinks.
    kinks: pairs (i, j) at a kink, of neurons with v_j != 0.
    min_margin: min_i q_i of the parameters as given; feasible means positive.
    normalized_margin: min_i q_i / |theta|^2.
    balance (k,): | |w_j|^2 + b_j^2 - v_j^2 | / |theta|^2; 0 at a KKT point.
    status: `CertificateStatus`; CERTIFIED where both gaps are within the tolerance, near a KKT
        point or not.
    """

    one_sided: Stationarity
    clarke: Stationarity
    kinks: Int[Array, "*lanes"]
    min_margin: Float[Array, "*lanes"]
    normalized_margin: Float[Array, "*lanes"]
    balance: Float[Array, "*lanes k"]
    status: Int[Array, "*lanes"]


@in_float64
def certificate(
    params: Params,
    x: Float[Array | np.ndarray, "m d"] | Sequence,
    y: Float[Array | np.ndarray, " m"] | Sequence,
    kink_tolerance: float | Float[Array, ""] = 1e-6,
    gap: float | Float[Array, ""] = 1e-6,
    budget: tuple[int, int] | None = None,
    trained: tuple[str, ...] | None = None,
) -> Certificate:
    """Multipliers, stationarity residuals, slackness and balance of a network, with duality gaps.

    theta is rescaled to min margin 1, which changes none of the relative numbers. The pair (i, j)
    is at a kink where |w_j . x_i + b_j| <= kink_tolerance |(w_j, b_j)| |(x_i, 1)|. For a given
    network the best multipliers and slopes are a convex quadratic program; it is solved by an
    interior-point method, and its answer is checked by a vector that no other multipliers can
    beat: `gap` is the share of |theta|^2 that this leaves open. CERTIFIED means that it is at most
    the argument `gap`, however large the residual is. Computed in float64 whatever the inputs are,
    and rounded to their precision.

    `budget` = (neurons, kinks a neuron) bounds how many free slopes there are room for, and so what
    is compiled: those with most kinks are taken, the others keep the slopes of `one_sided`, and the
    gap tells what that costs. Without it there is room for all; under `jit` and `vmap`, where it
    cannot be counted, for every pair, which is slow for networks of more than 1e5 pairs.

    `trained` names the parameters that the problem is over: ("w", "b", "v"), the default, or
    ("w", "v") for a network without biases. Where all biases are 0 it must be given, since zero
    biases can be trained ones, too; under `jit` and `vmap` the status is then BIASES_UNCLEAR.

    A network that misclassifies a sample, or whose output is 0 there, raises nothing: all but
    `kinks` and `min_margin` are NaN, and `status` is INFEASIBLE.
    `CertificateStatus(int(found.status)).describe()` says what to do.

    Has derivatives by `jax.jacfwd`, and by `jax.grad` in JAX's 64-bit mode.
    Cost: some 20 steps of m^3 / 3 operations, and for n kinks in each of w neurons w n m^2 more.
    Raises ValueError for data or parameters that do not fit, biases that do not fit `trained`, a
    tolerance out of range, or a budget that is no two whole numbers from 0 on.
    """
    traced = any(isinstance(a, jax.core.Tracer) for a in (*params, x, y, kink_tolerance))
    x, y = datasets.validate_for(params, x, y)
    trained = variables.chosen(params, trained)
    require_tolerance(kink_tolerance)
    if not isinstance(gap, jax.core.Tracer) and not 0 < gap < 1:
        raise ValueError(f"gap must be between 0 and 1, got {gap}")
    m, k = x.shape[0], params.v.shape[0]
    if budget is None:
        budget = (k, m) if traced else _count(params, x, kink_tolerance, trained)
    budget = as_budget(budget)
    places = min(budget[0], k), min(budget[1], m)
    return _certificate(params, x, y, kink_tolerance, gap, places, trained)


def require_tolerance(kink_tolerance: Any) -> None:
    """Raises ValueError unless this is a number in [0, 1); a traced one is not looked at."""
    if isinstance(kink_tolerance, jax.core.Tracer):
        return
    if not (
        isinstance(kink_tolerance, float | int | np.number | Array) and 0 <= kink_tolerance < 1
    ):
        raise ValueError(f"kink_tolerance must be in [0, 1), got {kink_tolerance!r}")


def as_budget(budget: Any) -> tuple[int, int]:
    """Room for kinks: (neurons, kinks a neuron); ValueError unless these are whole numbers from 0
    on."""
    counts = list(budget) if isinstance(budget, Iterable) else [budget]
    whole = [isinstance(n, int | np.integer) and not isinstance(n, bool) for n in counts]
    if len(counts) != 2 or not all(whole) or min(counts) < 0:
        raise ValueError(
            "budget must be two whole numbers from 0 on, (neurons, kinks a neuron), got "
            f"{budget!r}: for example (256, 4)"
        )
    return int(counts[0]), int(counts[1])


@partial(quick_jit, options=OLDER_EMITTERS, static_argnames=("places", "trained"))
def _certificate(
    params: Params,
    x: Array,
    y: Array,
    kink_tolerance: Array,
    gap: Array,
    places: tuple[int, int],
    trained: tuple[str, ...] | None,
) -> Certificate:
    real = y != 0
    margins = networks.margins(params, x, y)
    smallest = jnp.min(jnp.where(real, margins, jnp.inf))
    feasible = (smallest > 0) & (smallest < jnp.inf)
    given = networks.squared_norm(params)
    scale = jax.lax.rsqrt(jnp.where(feasible, smallest, 1))
    theta = jax.tree.map(lambda leaf: leaf * scale, params)
    q = jnp.where(real, margins / jnp.where(feasible, smallest, 1), 1)

    kinked = kinks(theta, x, y, kink_tolerance, trained)
    none = jnp.zeros_like(kinked)
    sides: list[tuple[Problem, Point, Stationarity]] = []
    for free, (w, n) in ((none, (0, 0)), (kinked, places)):
        if free is kinked and 0 in places:
            problem, point = sides[0][:2]
        else:
            problem = problem_of(theta, x, y, free, w, n, trained)
            point = nearest(problem, y)
        side = _stationarity(theta, x, y, q, problem, point, free, trained)
        sides.append((problem, point, side))
    one_sided, clarke = (side[2] for side in sides)

    finite = all_of(jnp.isfinite(x)) & jnp.isfinite(given)
    solved = (one_sided.gap <= gap) & (clarke.gap <= gap)
    status = jnp.where(solved, CertificateStatus.CERTIFIED, CertificateStatus.STOPPED_EARLY)
    fit = variables.fit(params, trained)
    status = jnp.where(fit, status, CertificateStatus.BIASES_UNCLEAR)
    status = jnp.where(feasible, status, CertificateStatus.INFEASIBLE)
    status = jnp.where(finite, status, CertificateStatus.NON_FINITE).astype(jnp.int32)
    worth = finite & feasible & fit
    rows = jnp.sum(theta.w**2, axis=1) + theta.b**2
    balance = jnp.abs(rows - theta.v**2) / networks.squared_norm(theta)
    normalized = smallest / given
    one_sided, clarke, balance, normalized = jax.tree.map(
        lambda leaf: jnp.where(worth, leaf, jnp.nan), (one_sided, clarke, balance, normalized)
    )
    return Certificate(
        one_sided=one_sided,
        clarke=clarke,
        kinks=jnp.sum(kinked, dtype=jnp.int32),
        min_margin=smallest,
        normalized_margin=normalized,
        balance=balance,
        status=status,
    )


def _count(
    params: Params, x: Array, tolerance: float | Array, trained: tuple[str, ...] | None
) -> tuple[int, int]:
    """Room for all kinks, in powers of two: few shapes to compile."""
    with jax.ensure_compile_time_eval():  # within a trace of something else, too
        kinked = kinks(params, x, np.ones(x.shape[0], x.dtype), tolerance, trained)
        counts = np.asarray(kinked).sum(axis=0)
    most = np.array([np.count_nonzero(counts), counts.max(initial=0)])
    neurons, samples = (int(2 ** np.ceil(np.log2(n))) if n else 0 for n in most)
    return neurons, samples


def _stationarity(
    theta: Params,
    x: Array,
    y: Array,
    q: Array,
    problem: Problem,
    point: Point,
    kinked: Array,
    trained: tuple[str, ...] | None,
) -> Stationarity:
    real = y != 0
    multipliers = jnp.where(real, point.multipliers, 0)
    boxes, neurons = problem.boxes, problem.neurons
    spread = multipliers[:, None] * jnp.ones_like(problem.pre)
    shares = jnp.where(boxes.real, point.products / point.multipliers[boxes.sample], 0)
    slopes = jnp.where(problem.active, 1.0, 0.0)
    slopes = slopes.at[boxes.sample, neurons[:, None]].add(shares)
    coefficients = spread * slopes * problem.pull
    rest = Params(
        w=theta.w - jnp.dot(coefficients.T, x, precision=PRECISION),
        b=theta.b - variables.over_b(coefficients, trained),
        v=theta.v - jnp.dot(multipliers * y, problem.hidden, precision=PRECISION),
    )
    squared, size = networks.squared_norm(rest), networks.squared_norm(theta)
    inner = sum(jnp.vdot(a, b, precision=PRECISION) for a, b in zip(rest, theta, strict=True))

    # The rest, moved along -theta until it makes no acute angle with any y_i g_i: a vector that
    # every other choice of multipliers and slopes is at least as far from theta as.
    def against(of: Params) -> tuple[Array, Array]:
        along = networks.preactivations(of, x)
        pulls = problem.pull * along
        fixed = jnp.sum(jnp.where(problem.active & ~kinked, pulls, 0), axis=1)
        fixed += y * jnp.dot(problem.hidden, of.v, precision=PRECISION)
        return fixed, jnp.where(kinked, pulls, 0)

    fixed, at_kinks = against(rest)
    excess = fixed + jnp.sum(relu(at_kinks), axis=1)
    fixed, at_kinks = against(theta)
    falls = fixed - jnp.sum(relu(-at_kinks), axis=1)
    t = jnp.max(jnp.where(real, relu(excess) / jnp.where(falls > 0, falls, 1), 0))
    t = jnp.where(any_of(real & (falls <= 0) & (excess > 0)), jnp.inf, t)
    open_ = squared - (1 + t) * inner + t * size + t**2 * size / 2
    open_ = jnp.where(t < jnp.inf, open_, jnp.inf)

    off = jnp.where(real, multipliers * (q - 1), 0)
    weight = jnp.sum(multipliers)
    return Stationarity(
        multipliers=multipliers,
        slopes=slopes,
        residual=jnp.sqrt(squared / size),
        gap=jnp.maximum(2 * open_ / size, 0),
        slackness=jnp.sum(off) / jnp.where(weight > 0, weight, 1),
        epsilon=jnp.sqrt(squared),
        delta=jnp.max(off),
    )
