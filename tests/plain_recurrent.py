"""Recurrent networks in NumPy and float64, step by step, to compare with."""

from __future__ import annotations

import jax
import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def network_of(params: dict) -> dict:
    """Returns the layers of a recurrent network, wherever they are in its parameters."""
    tree = float64(params)["params"]
    return tree if "recurrent" in tree else next(value for value in tree.values() if isinstance(value, dict))


def plain_step(layers: dict, cell: str, carry: tuple, obs: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, tuple]:
    """Returns outputs [env, output] and the carry after one step."""
    carry = tuple(np.where(first[:, None], 0.0, part) for part in float64(carry))
    features = np.asarray(obs, np.float64)
    for name in sorted(name for name in layers if name.startswith("Dense")):
        features = np.tanh(features @ layers[name]["kernel"] + layers[name]["bias"])
    inputs, matrix = features @ layers["gates"]["kernel"] + layers["gates"]["bias"], layers["recurrent"]
    size = matrix.shape[0]
    of = {i: (inputs[:, i * size : (i + 1) * size], carry[0] @ matrix[:, i * size : (i + 1) * size]) for i in range(4)}
    if cell == "gru":
        reset, keep = (sigmoid(of[i][0] + of[i][1]) for i in (0, 1))
        hidden = (1 - keep) * np.tanh(of[2][0] + reset * of[2][1]) + keep * carry[0]
        carry = (hidden,)
    else:
        admit, forget, new, show = (of[i][0] + of[i][1] for i in range(4))
        memory = sigmoid(forget + 1) * carry[1] + sigmoid(admit) * np.tanh(new)
        carry = (sigmoid(show) * np.tanh(memory), memory)
    seen = np.concatenate([features, carry[0]], axis=1)
    return seen @ layers["last"]["kernel"] + layers["last"]["bias"], carry


def plain_unroll(layers: dict, cell: str, carry: tuple, obs: np.ndarray, first: np.ndarray) -> tuple:
    """Returns outputs [time, env, output], and a list of the carries after each step."""
    outputs, carries = [], []
    for now, begins in zip(obs, first, strict=True):
        output, carry = plain_step(layers, cell, carry, now, begins)
        outputs.append(output)
        carries.append(carry)
    return np.stack(outputs), carries
