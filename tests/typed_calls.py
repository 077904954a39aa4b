"""What a type checker tells a user: the names that are called most have types, not Any.

Mypy reads this file, as strictly as it can; nothing runs it.
"""

from typing import assert_type

import jax
import jax.numpy as jnp
import xarray as xr

import jaxkkt as jk
from jaxkkt.single import Result

params = jk.networks.torch_linear(jax.random.key(0), 10, 4)
x, y = jnp.ones((2, 4)), jnp.array([1.0, -1.0])
runs = jk.grid(d=[4], alpha=[1.0], width=[3], seed=[0])

assert_type(params, jk.Params)
assert_type(jk.train(params, x, y), Result)
assert_type(jk.train(params, x, y).log_loss, jax.Array)
assert_type(jk.networks.margins(params, x, y), jax.Array)
assert_type(runs, list[jk.Run])
assert_type(jk.sweep(runs), xr.Dataset)
assert_type(jk.kkt.certificate(params, x, y), jk.kkt.Certificate)
assert_type(jk.kkt.polish(params, x, y), jk.kkt.Polished)
assert_type(jk.kkt.follow_flow(params, x, y, -60.0, [-70.0]), jk.kkt.FlowTrace)
assert_type(jk.kkt.multipliers(params, x, y), jax.Array)
