"""Frei, Vardi, Bartlett, Srebro (2023): on clustered data, KKT points generalize and are flipped.

Letters: n samples x_i = mu_q + xi_i of k clusters with labels y_q, d input dimension, sigma the
noise, p = max |<mu_q, mu_q'>| over pairs of means, Delta = 4 sigma sqrt(d) ln(d), c the smaller
share of a label among the clusters, c' = k (p + Delta + 1)/(d - Delta + 1). J+ are the neurons with
v_j > 0, J- those with v_j < 0; u = sum_q y_q mu_q. What the paper says of a KKT point takes a
`theory.KKTPoint` and the `Clusters` that its samples came from.
"""

from jaxkkt.theory.frei.distribution import (
    Clusters,
    clusters,
    linear_network,
    robust_network,
    robust_radius,
)
from jaxkkt.theory.frei.lemmas import (
    LEMMAS,
    Setting,
    alignment,
    cluster_mass,
    flipped,
    mass_from_above,
    mass_from_below,
    nice_points,
    not_far_off,
    opposing_neurons,
    outputs,
    room,
    signs,
    size,
)
from jaxkkt.theory.frei.samples import (
    PROPERTIES,
    Sample,
    nice_sample,
    properties,
    separated,
    test_error,
)
from jaxkkt.theory.frei.theorems import (
    THEOREMS,
    fresh_flipped,
    generalization,
    ledger,
    robust_margins,
    robust_sizes,
)

__all__ = [
    "LEMMAS",
    "PROPERTIES",
    "THEOREMS",
    "Clusters",
    "Sample",
    "Setting",
    "alignment",
    "cluster_mass",
    "clusters",
    "flipped",
    "fresh_flipped",
    "generalization",
    "ledger",
    "linear_network",
    "mass_from_above",
    "mass_from_below",
    "nice_points",
    "nice_sample",
    "not_far_off",
    "opposing_neurons",
    "outputs",
    "properties",
    "robust_margins",
    "robust_network",
    "robust_radius",
    "robust_sizes",
    "room",
    "separated",
    "signs",
    "size",
    "test_error",
]
