"""The task that every system gets: a network of 64, 32 and 10 units on scikit-learn's digits, in numpy and nothing else.

Runs in the environments of the peers as well as in ours. A silo's training starts from the model it is given; a poisoned silo
returns ten times the opposite of what it learned.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

DATA = "FEDREP_PEER_DATA"
SILOS, POISONED, FACTOR = 10, 2, -10.0
SHAPES = ((64, 32), (32,), (32, 10), (10,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
STEPS, BATCH, RATE = 10, 32, 0.2


@cache
def data() -> tuple[Any, Any, Any, Any]:
    """Training images and labels, test images and labels, from the file that the benchmark wrote."""
    with np.load(os.environ[DATA]) as file:
        return file["images"], file["labels"], file["test_images"], file["test_labels"]


def initial() -> Any:
    rng = np.random.default_rng(1)
    parts = [rng.normal(0, 1 / np.sqrt(shape[0]), shape) if len(shape) == 2 else np.zeros(shape) for shape in SHAPES]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def split(vector: Any) -> list[Any]:
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends), SHAPES, strict=True)]


def train(vector: Any, silo: int, number: int) -> Any:
    """The model after this silo's local steps; of a poisoned silo what it sends instead."""
    images, labels, _, _ = data()
    own = np.arange(silo, len(labels), SILOS)
    rng = np.random.default_rng((silo, number))
    w1, b1, w2, b2 = (part.astype(np.float64) for part in split(np.asarray(vector, np.float32)))
    for _ in range(STEPS):
        batch = rng.choice(own, BATCH, replace=False)
        x, y = images[batch], labels[batch]
        hidden = np.maximum(x @ w1 + b1, 0)
        slope = _softmax(hidden @ w2 + b2)
        slope[np.arange(BATCH), y] -= 1
        slope /= BATCH
        back = (slope @ w2.T) * (hidden > 0)
        w2, b2 = w2 - RATE * hidden.T @ slope, b2 - RATE * slope.sum(0)
        w1, b1 = w1 - RATE * x.T @ back, b1 - RATE * back.sum(0)
    learned = np.concatenate([part.ravel() for part in (w1, b1, w2, b2)]).astype(np.float32)
    return learned if silo >= POISONED else vector + np.float32(FACTOR) * (learned - vector)


def accuracy(vector: Any) -> float:
    """On the test images; a model with NaN in it has none right."""
    _, _, images, labels = data()
    w1, b1, w2, b2 = split(np.asarray(vector, np.float32))
    with np.errstate(all="ignore"):
        scores = np.maximum(images @ w1 + b1, 0) @ w2 + b2
    right = np.isfinite(scores).all(axis=1) & (scores.argmax(axis=1) == labels)
    return float(right.mean())


def _softmax(scores: Any) -> Any:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)
