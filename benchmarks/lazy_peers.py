"""The lazy regime's experiments without jaxkkt: PyTorch, one image or one network at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers import tensors, torch_module
from jaxkkt.datasets import Dataset
from jaxkkt.networks import Params


def torch_step_search(
    params: Params, data: Dataset, step: float = 0.001, largest: float = 5.0
) -> Callable[[], np.ndarray]:
    """The smallest multiple of `step` that flips each image, tried one after the other.

    0 for misclassified images, `largest` where none flips: as in the paper's published code.
    """
    torch = torch_module()
    w, b, v = (tensors(torch, a) for a in params)
    x, y = (tensors(torch, a) for a in data)

    def output(point: Any) -> Any:
        return torch.relu(point @ w.T + b) @ v

    def search() -> np.ndarray:
        sizes = []
        for point, label in zip(x, y, strict=True):
            moving = point.clone().requires_grad_(True)
            value = output(moving)
            if value * label <= 0:
                sizes.append(0.0)
                continue
            value.backward()
            toward = -torch.sign(value.detach()) * moving.grad
            eta = 0.0
            with torch.no_grad():
                while eta < largest:
                    eta += step
                    if output(point + eta * toward) * label < 0:
                        break
            sizes.append(eta)
        return np.array(sizes)

    return search


def torch_descent(
    params: Params, data: Dataset, ball: float, learning_rate: float = 0.1, batch_size: int = 64
) -> Callable[[int], bool]:
    """Descent on the mean logistic loss of a batch, w and b, by autograd: `advance(steps)` tells
    whether a neuron has left its ball of radius `ball`, as it looks after every step."""
    torch = torch_module()
    start, bias, v = (tensors(torch, a) for a in params)
    x, y = (tensors(torch, a) for a in data)
    w, b = start.clone().requires_grad_(True), bias.clone().requires_grad_(True)

    def advance(steps: int) -> bool:
        left, order = False, torch.randperm(len(y))
        for rows in (order.repeat(-(-steps * batch_size // len(y))).split(batch_size))[:steps]:
            outputs = torch.relu(x[rows] @ w.T + b) @ v
            loss = torch.nn.functional.softplus(-y[rows] * outputs).mean()
            gradients = torch.autograd.grad(loss, (w, b))
            with torch.no_grad():
                for parameter, gradient in zip((w, b), gradients, strict=True):
                    parameter.sub_(learning_rate * gradient)
                left = bool((w - start).norm(dim=1).max() > ball)
        return left

    return advance


def torch_adversarial(
    params: Params,
    data: Dataset,
    radius: float,
    ball: float,
    learning_rate: float = 0.01,
    batch_size: int = 64,
    attack_steps: int = 100,
) -> Callable[[int], float]:
    """Algorithm 1 by autograd: `advance(epochs)` trains and returns robust training accuracy."""
    torch = torch_module()
    start, b, v = (tensors(torch, a) for a in params)
    x, y = (tensors(torch, a) for a in data)
    w = start.clone().requires_grad_(True)
    alpha = 2.5 * radius / attack_steps

    def loss(points: Any, labels: Any) -> Any:
        outputs = torch.relu(points @ w.T + b) @ v
        return torch.nn.functional.softplus(-labels * outputs).sum()

    def attacked() -> Any:
        moved = x.clone()
        for _ in range(attack_steps):
            moved.requires_grad_(True)
            (gradient,) = torch.autograd.grad(loss(moved, y), moved)
            with torch.no_grad():
                offset = moved + alpha * gradient - x
                length = offset.norm(dim=1, keepdim=True)
                moved = x + offset * torch.clamp(radius / length.clamp_min(1e-30), max=1)
        return moved.detach()

    def advance(epochs: int) -> float:
        accuracy = 0.0
        for _ in range(epochs):
            moved = attacked()
            with torch.no_grad():
                outputs = torch.relu(moved @ w.T + b) @ v
                accuracy = float((y * outputs > 0).float().mean())
            order = torch.randperm(len(y))
            for rows in order.split(batch_size):
                if len(rows) < batch_size:
                    break
                (gradient,) = torch.autograd.grad(loss(moved[rows], y[rows]), w)
                with torch.no_grad():
                    w.sub_(learning_rate * gradient)
            with torch.no_grad():
                offset = w - start
                length = offset.norm(dim=1, keepdim=True)
                w.copy_(start + offset * torch.clamp(ball / length.clamp_min(1e-30), max=1))
        return accuracy

    return advance
