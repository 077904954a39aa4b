"""Wang, Ullah, Mianjy, Arora (2022): one gradient step flips every network in the lazy ball.

Each lemma holds for a given x, |x| = 1, with probability 1 - gamma over the initial weights, for
all networks with |w_j - w_j,0| <= C0 / sqrt(k) at once. Letters: k width (the paper's m), d input
dimension, C0 and gamma as in the paper. The functions take one point and compare the lemma's bound
with the network at hand; `jax.vmap` takes many.

Padding is no part of a network: k counts the neurons of the start that are not 0, d the coordinates
in which any of them has a weight. So `networks.pad` and `networks.lazy(..., shape=)` change no
bound.
"""

from jaxkkt.theory.wang.gradients import (
    gradient_difference,
    gradient_difference_along,
    gradient_difference_bound,
    gradient_difference_share,
    gradient_norm,
    quarter_of_the_dimension,
)
from jaxkkt.theory.wang.ledger import LEMMAS, ledger
from jaxkkt.theory.wang.outputs import output, output_of_wide, worst_output
from jaxkkt.theory.wang.premises import ROUNDING, sizes
from jaxkkt.theory.wang.signs import (
    sign_change_probability,
    sign_change_share,
    sign_change_share_around,
    sign_changes,
    sign_changes_around,
)
from jaxkkt.theory.wang.theorem import cone, one_step, step_constant, width_window

__all__ = [
    "LEMMAS",
    "ROUNDING",
    "cone",
    "gradient_difference",
    "gradient_difference_along",
    "gradient_difference_bound",
    "gradient_difference_share",
    "gradient_norm",
    "ledger",
    "one_step",
    "output",
    "output_of_wide",
    "quarter_of_the_dimension",
    "sign_change_probability",
    "sign_change_share",
    "sign_change_share_around",
    "sign_changes",
    "sign_changes_around",
    "sizes",
    "step_constant",
    "width_window",
    "worst_output",
]
