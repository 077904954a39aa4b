"""The same protocol without jaxkkt: what a user would otherwise write.

Every peer is made from stacked networks and datasets and returns `advance(steps)`, which trains
all networks by so many steps and returns log L before each of them, shape (networks, steps). The
protocol is that of `protocols.paper_protocol`: the loss sum_i exp(-y_i N(x_i)), full batches,
learning rate 1e-5 times 1.1 every 100 steps, stop at a loss below 1e-30.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkkt.datasets import Dataset
from jaxkkt.networks import PRECISION, Params

LEARNING_RATE, GROWTH, EVERY, TARGET = 1e-5, 1.1, 100, 1e-30

Advance = Callable[[int], Any]


def torch_loop(params: Params, data: Dataset, check_every: int = 1) -> Advance:
    """PyTorch, one network after the other, its loss read for the stopping rule now and then.

    Reading the loss waits for the step on an accelerator; on a CPU it costs next to nothing.
    """
    torch = torch_module()
    x, y = (tensors(torch, a) for a in data)
    runs = []
    for i in range(len(y)):
        k, d = params.w[i].shape
        model = torch.nn.Sequential(
            torch.nn.Linear(d, k), torch.nn.ReLU(), torch.nn.Linear(k, 1, bias=False)
        ).to(x.device)
        with torch.no_grad():
            w, b, v = (tensors(torch, a[i]) for a in params)
            for weight, start in zip(model.parameters(), (w, b, v[None]), strict=True):
                weight.copy_(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=EVERY, gamma=GROWTH)
        runs.append((model, optimizer, scheduler, x[i], y[i]))

    def train(run: Any, steps: int) -> Any:
        model, optimizer, scheduler, x, y = run
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = torch.exp(-y * model(x).squeeze(1)).sum()
            losses.append(loss.detach())
            if step % check_every == 0 and loss.item() < TARGET:
                break
            loss.backward()
            optimizer.step()
            scheduler.step()
        return torch.stack(losses).log().cpu().numpy()

    return lambda steps: np.stack([train(run, steps) for run in runs])


def torch_batched(params: Params, data: Dataset) -> Advance:
    """PyTorch, all networks in each product, the gradient written out, buffers used again.

    Without a stopping rule, in its favour. Autograd over the same products, or new buffers every
    step, took up to twice the time.
    """
    torch = torch_module()
    x, y = (tensors(torch, a) for a in data)
    w, b, v = (tensors(torch, a) for a in params)
    weights, inputs = w.mT.contiguous(), x.mT.contiguous()
    hidden = x.new_empty(*y.shape, v.shape[1])
    on_pre = torch.empty_like(hidden)
    done = 0

    @torch.no_grad()
    def advance(steps: int) -> Any:
        nonlocal done
        log_losses = []
        for step in range(done, done + steps):
            rate = LEARNING_RATE * GROWTH ** (step // EVERY)
            torch.baddbmm(b[:, None], x, weights, out=hidden).relu_()
            losses = torch.exp(-y * torch.bmm(hidden, v[:, :, None])[:, :, 0])
            log_losses.append(losses.sum(1).log())
            pull = losses.mul_(y)  # minus the derivative by the outputs
            on_v = torch.bmm(pull[:, None], hidden)[:, 0]
            torch.mul(pull[:, :, None], v[:, None], out=on_pre).mul_(hidden > 0)
            weights.baddbmm_(inputs, on_pre, alpha=rate)
            b.add_(on_pre.sum(1), alpha=rate)
            v.add_(on_v, alpha=rate)
        done += steps
        return torch.stack(log_losses, 1).cpu().numpy()

    return advance


def jax_vmap(params: Params, data: Dataset) -> Advance:
    """JAX, the textbook step under vmap, scan and jit. Without a stopping rule, in its favour."""

    def loss(params: Params, data: Dataset) -> jax.Array:
        pre = jnp.dot(data.x, params.w.T, precision=PRECISION) + params.b[None]
        outputs = jnp.dot(jax.nn.relu(pre), params.v, precision=PRECISION)
        return jnp.exp(-data.y * outputs).sum()

    @partial(jax.jit, static_argnums=3, donate_argnums=0)
    def train(params: Params, data: Dataset, done: jax.Array, steps: int) -> Any:
        def step(params: Params, count: jax.Array) -> tuple[Params, jax.Array]:
            rate = LEARNING_RATE * GROWTH ** (count // EVERY).astype(float)
            losses, gradients = jax.vmap(jax.value_and_grad(loss))(params, data)
            return jax.tree.map(lambda p, g: p - rate * g, params, gradients), jnp.log(losses)

        return jax.lax.scan(step, params, done + jnp.arange(steps))

    state = [jax.tree.map(jnp.array, params), jnp.zeros((), jnp.int32)]

    def advance(steps: int) -> jax.Array:
        state[0], log_losses = train(state[0], data, state[1], steps)
        state[1] = state[1] + steps
        return log_losses.T

    return advance


def torch_product(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    """The product a @ b of stacked matrices by PyTorch, into one buffer; waits for a GPU."""
    torch = torch_module()
    x, y = tensors(torch, a), tensors(torch, b)
    out = torch.empty_like(y)

    def product() -> Any:
        torch.matmul(x, y, out=out)
        if out.is_cuda:
            torch.cuda.synchronize()

    return product


def torch_module() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "the PyTorch peers need torch, which jaxkkt itself does not: "
            "pip install -e '.[benchmarks]', or leave them out with --peers vmap"
        ) from error
    return torch


def tensors(torch: Any, array: jax.Array | np.ndarray) -> Any:
    """A copy of the array, on the GPU where JAX and PyTorch both have one."""
    on_gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    return torch.tensor(np.asarray(array), device="cuda" if on_gpu else "cpu")
