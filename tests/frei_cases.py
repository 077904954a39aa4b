"""Orthogonal clusters with a KKT network solved by hand, and fresh points of them."""

import jax
import jax.numpy as jnp
import kkt_cases
import numpy as np

from jaxkkt.theory import KKTPoint, frei

ledger = jax.jit(frei.ledger)
nice = jax.jit(lambda setting: setting.nice)
D, SIGMA, TEST = 1000, 1000**-0.5, 60


def clustered(d=D, sigma=SIGMA, copies=1):
    """Orthogonal means, two positive and one negative, each with one sample, the mean itself, or
    with several copies of it that share its multiplier."""
    case = kkt_cases.orthogonal(2, 1, d**0.5)
    x = np.pad(case.x, ((0, 0), (0, d - 3)))
    params = case.params._replace(w=np.pad(case.params.w, ((0, 0), (0, d - 3))))
    point = KKTPoint(
        jax.tree.map(jnp.asarray, params),
        *(
            jnp.asarray(np.repeat(a, copies, axis=0))
            for a in (x, case.y, case.multipliers / copies, case.slopes)
        ),
    )
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 3, TEST)
    test_x = x[cluster] + sigma * rng.normal(size=(TEST, d))
    return frei.Setting(
        point,
        frei.clusters(x, case.y, sigma),
        jnp.asarray(np.repeat(np.arange(3), copies)),
        jnp.asarray(test_x),
        jnp.asarray(cluster),
    )
