"""Synthetic points."""

import numpy as np


def clusters(n, k, count, noise, seed=0):
    """Points around `count` centres, in random order."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count, k))
    return centres[rng.integers(count, size=n)] + noise * rng.normal(size=(n, k))


def decaying(n, k, rate, seed=0):
    """Normal points whose standard deviations fall by `rate`, in turned axes."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    return rng.normal(size=(n, k)) * rate ** np.arange(k) @ basis.T
