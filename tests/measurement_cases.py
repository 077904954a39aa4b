"""A small run's axes, and its network trained by itself."""

import jax

import jaxkkt as jk
from jaxkkt.engine.programs.draws import draw

AXES = {"d": 8, "samples": 6, "width": 20, "seed": 0}


def trained_alone(run):
    start, data = jax.device_put(draw(run))
    return jk.train(start, *data, run.protocol).params, data
