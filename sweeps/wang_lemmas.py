"""The lemmas of Wang, Ullah, Mianjy, Arora (2022) on sphere data, number by number.

Draws lazy networks, moves every neuron to the edge of its ball, once by training on random labels
and once in random directions, and holds the bounds of Lemmas B.4 to B.9 against fresh points with
|x| = 1: how many obey them, whether they say anything, and how far they are from what is measured.
Then the constant C2 of Theorem 3.1, and the widths that it asks for. Leaves lemmas.md.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxkkt as jk
from jaxkkt import datasets, lazy, networks
from jaxkkt.networks import Params
from jaxkkt.theory import Check, wang


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.wang_lemmas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--d", type=int, nargs="+", default=[25, 100, 400])
    parser.add_argument("--width", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--ball", type=float, default=10.0, help="C0 (default: 10)")
    parser.add_argument("--gamma", type=float, default=0.05, help="(default: 0.05)")
    parser.add_argument("--points", type=int, default=100, help="fresh points a network")
    parser.add_argument("--samples", type=int, default=50, help="training samples")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/wang-quick"))
    return parser


def checks(
    params: Params, start: Params, x: jax.Array, c0: float, gamma: float
) -> dict[str, Check]:
    """Every lemma at every point."""
    k, d = params.w.shape
    keys = jax.random.split(jax.random.key(0), len(x))
    delta = jax.random.normal(jax.random.key(1), x.shape)
    delta = delta / jnp.linalg.norm(delta, axis=1, keepdims=True) / d**0.5
    each = partial(jax.vmap, in_axes=0)
    return {
        "B.4: neurons that can change their sign": each(
            lambda x: wang.sign_changes(start, x, c0 / k**0.5, gamma)
        )(x),
        "B.5: output": each(lambda x: wang.output(params, start, x, c0, gamma))(x),
        "B.6: share of signs changed by 1/sqrt(d)": each(
            lambda x, delta: wang.sign_change_share(start, x, delta)
        )(x, delta),
        "B.7: gradient, at least": each(lambda x: wang.gradient_norm(params, start, x, c0, gamma))(
            x
        ),
        "B.7: gradient, at least sqrt(d)/4": each(
            lambda x: wang.quarter_of_the_dimension(params, start, x, c0)
        )(x),
        "B.8: gradient difference at 1/sqrt(d) along a direction": each(
            lambda x, delta, r: wang.gradient_difference_along(
                params, start, x, r, delta, c0, gamma
            )
        )(x, delta, jnp.roll(delta, 1, axis=0) * d**0.5),
        "B.9: gradient difference within 1/sqrt(d)": each(
            lambda x, key: wang.gradient_difference(params, start, x, c0, 1.0, key, gamma)
        )(x, keys),
    }


def rows(d: int, k: int, options: argparse.Namespace) -> list[str]:
    """The lines of one size, over seeds, points and both kinds of networks."""
    found: dict[str, list[Check]] = {}
    constants: list[np.ndarray] = []
    for seed in range(options.seeds):
        keys = jax.random.split(jax.random.key(seed), 4)
        start = networks.lazy(keys[0], k, d)
        data = datasets.unit_sphere(keys[1], options.samples, d)
        x = datasets.unit_sphere(keys[2], options.points, d).x
        trained = jk.train(start, *data, lazy.lazy_flow(options.ball)).params
        away = start._replace(w=start.w + jax.random.normal(keys[3], start.w.shape))
        for params in (trained, lazy.project(away, start, options.ball / k**0.5)):
            for name, check in checks(params, start, x, options.ball, options.gamma).items():
                found.setdefault(name, []).append(check)
            constants.append(np.asarray(jax.lax.map(partial(wang.step_constant, params), x)))
    lines = []
    for name, parts in found.items():
        whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        measured, bound = np.median(whole.measured), np.median(whole.bound)
        lines.append(
            f"| {d} | {k} | {name} | {measured:.3g} | {bound:.3g} | {np.mean(whole.holds):.0%} | "
            f"{'yes' if whole.vacuous.any() else 'no'} | {np.mean(whole.assumed):.0%} |"
        )
    c2 = np.concatenate(constants)
    least, most = wang.width_window(d, options.gamma)
    flipped = np.isfinite(c2)
    lines.append(
        f"| {d} | {k} | Theorem 3.1: C2 = eta times the squared gradient | "
        f"{np.median(c2[flipped]):.3g} (largest {c2[flipped].max():.3g}) | a constant | "
        f"{np.mean(flipped):.0%} | | {'100%' if least <= k <= most else '0%'} "
        f"(k from {least:.3g} to {most:.3g}) |"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    lines = [
        "| d | k | quantity | measured, median | bound | obeyed by | says nothing | assumed |",
        "| ---: | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for d in options.d:
            for k in options.width:
                lines += rows(d, k, options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = "\n".join(lines) + "\n"
    (options.out / "lemmas.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
