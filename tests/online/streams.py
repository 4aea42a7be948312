"""Streams of pairs, and the formulas of the learners on dense matrices in float64."""

import numpy as np

from skmahal.online import LEGO, POLA, OnlineITML

NEAR, FAR, ETA, GAMMA = 0.8, 1.7, 0.3, 0.7
TARGETS = {"similar_target": NEAR, "dissimilar_target": FAR}

LEARNERS = {
    "LEGO": LEGO(ETA, **TARGETS),
    "OnlineITML": OnlineITML(GAMMA, **TARGETS),
    "POLA": POLA(),
}


def pair_stream(n, d, seed=0, dtype=np.float64):
    """Pairs that are similar where the first half of their features is near."""
    rng = np.random.default_rng(seed)
    pairs = rng.normal(size=(n, 2, d)) * np.linspace(0.3, 2, d) / np.sqrt(d)
    told = np.abs(pairs[:, 0] - pairs[:, 1])[:, : (d + 1) // 2].sum(axis=1)
    return pairs.astype(dtype), np.where(told < np.median(told), 1, -1)


def unscaled_stream(n, d, dtype, seed=0):
    """Long differences in all directions; one feature tells the similar pairs."""
    pairs = np.random.default_rng(seed).normal(size=(n, 2, d)).astype(np.float32)
    y = np.where(np.abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 0.7, 1, -1)
    return pairs.astype(dtype), y


class DenseLEGO:
    def __init__(self, A):
        self.A = A

    def step(self, z, sign):
        A, h, y = self.A, z @ self.A @ z, (NEAR if sign > 0 else FAR) ** 2
        if sign * (h - y) > 0:
            root = np.sqrt((ETA * h * y - 1) ** 2 + 4 * ETA * h**2)
            gap = ETA * ((ETA * h * y - 1 + root) / (2 * ETA * h) - y)
            self.A = A - gap * np.outer(A @ z, A @ z) / (1 + gap * h)


class DenseITML:
    def __init__(self, A):
        self.A = A

    def step(self, z, sign):
        A, p, xi = self.A, z @ self.A @ z, (NEAR if sign > 0 else FAR) ** 2
        alpha = min(0, sign * GAMMA / (GAMMA + 1) * (1 / p - 1 / xi))
        beta = sign * alpha / (1 - sign * alpha * p)
        self.A = A + beta * np.outer(A @ z, A @ z)


class DensePOLA:
    def __init__(self, A):
        self.A, self.b = A, 1.0

    def step(self, z, sign):
        loss = 1 + sign * (z @ self.A @ z - self.b)
        if loss <= 0:
            return
        alpha = loss / ((z @ z) ** 2 + 1)
        self.A = self.A - sign * alpha * np.outer(z, z)
        self.A = projected(self.A) if sign > 0 else self.A
        self.b = max(self.b + sign * alpha, 1)


def projected(B):
    """The nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(B)
    return (vectors * np.maximum(values, 0)) @ vectors.T


DENSE = {"LEGO": DenseLEGO, "OnlineITML": DenseITML, "POLA": DensePOLA}


def relative_error(learner, oracle):
    A = learner.get_mahalanobis_matrix()
    return np.linalg.norm(A - oracle.A) / np.linalg.norm(oracle.A)
