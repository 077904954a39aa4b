"""What Wang, Ullah, Mianjy, Arora (2022) leave open: stronger attacks, and larger balls.

Trains lazy networks on zeros against ones, |x| = 1, to the edges of balls C0 from small to large.
For every test image: the smallest gradient step that flips it, and the smallest radius at which an
attack of 100 normalized steps does; and robust test error at radii in units of 1/sqrt(d) against
C0, the distance from the initialization. Leaves a figure (PNG and PDF), results-open.nc, open.md.
Run the same command again to go on after an interruption.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import jaxkkt as jk
from jaxkkt import lazy, plotting
from jaxkkt.engine.draws import draw, held_out
from jaxkkt.engine.parts import compute_parts
from jaxkkt.engine.results import save
from jaxkkt.perturbations import gradient_steps, robust_accuracy, smallest_radii

# Of |delta|, in units of 1/sqrt(d); the paper sees the drop of adversarial training at 5.
RADII = (0.5, 1.0, 2.0, 3.0, 5.0)
# Of |delta|, for |x| = 1.
BRACKET = 4.0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps.wang_open",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--source", default="digits upsampled normalized")
    parser.add_argument("--d", type=int, nargs="+", default=[25, 49, 100, 196])
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ball", type=float, nargs="+", default=[1, 3, 10, 30, 100, 300])
    parser.add_argument("--out", type=Path, default=Path("results/wang-quick"))
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def measured(run: jk.Run, ball: float) -> dict[str, float | np.ndarray]:
    """One network: both attacks on every test image, and its robust error."""
    start, data = draw(run)
    trained = jk.train(start, *data, lazy.lazy_flow(ball))
    x, y = (jnp.asarray(part) for part in held_out(run))
    steps = gradient_steps(trained.params, x, bracket=BRACKET)
    bracket = jnp.where(steps.size < BRACKET, 1.1 * steps.size, BRACKET)
    radii = smallest_radii(trained.params, x, y, bracket)
    good = np.asarray(steps.needs_step(y) & jnp.isfinite(steps.size))
    at = jnp.asarray(RADII) / run.d**0.5
    return {
        "status": int(trained.status),
        "log_loss": float(trained.log_loss),
        "error": float(1 - steps.needs_step(y).mean()),
        "robust_error": 1 - np.asarray(robust_accuracy(trained.params, x, y, at, normalized=True)),
        "step_size": float(np.median(np.asarray(steps.size)[good])),
        "attack_size": float(np.median(np.asarray(radii)[good])),
        "ratio": float(np.median(np.asarray(radii / steps.size)[good])),
        "least_ratio": float(np.min(np.asarray(radii / steps.size)[good])),
    }


def study(
    runs: Sequence[jk.Run], balls: Sequence[float], store: Path, progress: bool
) -> xr.Dataset:
    """All networks, one a core, over ball, d, seed, and radius for the robust error.

    Networks land in the folder `store`, and the same call goes on from there.
    """

    def one(run: jk.Run, ball: float) -> xr.Dataset:
        values = measured(run, ball)
        arrays = {
            name: ("radius", value) if np.ndim(value) else value for name, value in values.items()
        }
        here = xr.Dataset(arrays, coords={"radius": list(RADII)})
        return here.expand_dims({"ball": [ball], "d": [run.d], "seed": [run.seed]})

    tasks = {f"{run.name}-C0={c0!r}": partial(one, run, c0) for run, c0 in product(runs, balls)}
    done = compute_parts(tasks, store, {"radii": RADII, "bracket": BRACKET}, progress=progress)
    return xr.combine_by_coords(done)  # type: ignore[return-value]


def table(results: xr.Dataset) -> str:
    """Means over seeds: both attacks, and robust error, by ball and dimension."""
    lines = [
        "| C0 | d | gradient step, median | attack, median | attack / step, median | least | test "
        "error | " + " | ".join(f"robust error at {r:g}/sqrt(d)" for r in RADII) + " |",
        "| ---: " * (7 + len(RADII)) + "|",
    ]
    mean = results.mean("seed")
    for ball, d in product(results.ball.values, results.d.values):
        here = mean.sel(ball=ball, d=d)
        errors = " | ".join(f"{float(e):.2f}" for e in here.robust_error)
        lines.append(
            f"| {ball:g} | {d} | {float(here.step_size):.3f} | {float(here.attack_size):.3f} | "
            f"{float(here.ratio):.2f} | {float(here.least_ratio):.2f} | {float(here.error):.3f} | "
            f"{errors} |"
        )
    left = int((results.status == jk.Status.LEFT_BALL).sum())
    lines += ["", f"{left} of {results.status.size} networks at the edge of their ball."]
    return "\n".join(lines) + "\n"


def figure(results: xr.Dataset, stem: Path) -> list[Path]:
    """Both attacks against d at one ball, and robust error against C0 at the largest d."""
    mean = results.mean("seed")
    ball = mean.ball.values[np.argmin(np.abs(np.log(mean.ball.values / 10)))]
    with plt.style.context(plotting.STYLE):
        canvas, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
        for name, label in (("step_size", "one gradient step"), ("attack_size", "100 steps")):
            left.plot(mean.d, mean[name].sel(ball=ball), marker="o", label=label)
        plotting.power_law(left, mean.d.values, mean.attack_size.sel(ball=ball), -0.5)
        plotting.logarithmic(left, mean.d.values)
        left.set_xlabel("input dimension $d$")
        left.set_ylabel(rf"median smallest $|\delta|$, $C_0$ = {ball:g}")
        for radius in RADII:
            part = mean.robust_error.isel(d=-1).sel(radius=radius)
            right.plot(mean.ball, part, marker="o", label=rf"$|\delta| = {radius:g}/\sqrt{{d}}$")
        right.set(xscale="log", xlabel=r"$C_0$", ylim=(-0.03, 1.03))
        right.set_ylabel(f"robust test error, d = {mean.d.values[-1]}")
        right.legend()
        return plotting.save(canvas, stem)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        runs = jk.grid(
            d=options.d,
            samples=(options.samples,),
            width=(options.width,),
            seed=range(options.seeds),
            loss=("logistic",),
            data=(options.source,),
            initialization=("lazy",),
        )
        results = study(runs, options.ball, options.out / "parts-open", not options.quiet)
        save(results, options.out / "results-open.nc")
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = table(results)
    (options.out / "open.md").write_text(text)
    print(text)
    paths = figure(results, options.out / "open")
    print("wrote", ", ".join(map(str, paths)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
