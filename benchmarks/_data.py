"""Points, queries and metrics to measure on.

The real sets are looked for in the folder that SKMAHAL_DATA names, or else in
`shared/data` beside the folder of the repository.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import components_from

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"

MNIST = "mnist_10k.npz"
SCRNA = "scrna_bmmc_aml_5120.npz"
TCGA = "tcga_luad_coadread_800x5120.npz"

_CENTRES = 500
_SPREAD = 0.5
_BLOCK = 1 << 16


class Problem(NamedTuple):
    """Points, the metric's U or None for Euclidean, and queries; float32."""

    X: np.ndarray
    U: np.ndarray | None
    Q: np.ndarray

    @property
    def k(self):
        return self.X.shape[1] if self.U is None else len(self.U)


class AbsentError(Exception):
    """A file of real data is not there."""


def load(name):
    """The arrays of a file of real data."""
    folder = Path(os.environ.get("SKMAHAL_DATA", BESIDE))
    if not (folder / name).exists():
        where = "the folder of SKMAHAL_DATA" if "SKMAHAL_DATA" in os.environ else ""
        where = where or "shared/data beside the repository (or set SKMAHAL_DATA)"
        raise AbsentError(f"{name} is not in {where}")
    return np.load(folder / name, allow_pickle=False)


def clustered(n, d, queries=1000, seed=0):
    """Points and queries around common centres: N(0, I) and 0.5 N(0, I) about them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((_CENTRES, d), dtype=np.float32)
    X = np.empty((n + queries, d), dtype=np.float32)
    for start in range(0, len(X), _BLOCK):
        block = X[start : start + _BLOCK]
        rng.standard_normal(dtype=np.float32, out=block)
        block *= np.float32(_SPREAD)
        block += centres[rng.integers(_CENTRES, size=len(block))]
    return X[:n], X[n:]


def isotropic(n, d, queries=1000, seed=0):
    """Points and queries from N(0, I): all distances are nearly the same."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + queries, d), dtype=np.float32)
    return X[:n], X[n:]


def uniform(n, d, queries, seed=0):
    """Points and queries from the unit cube."""
    rng = np.random.default_rng(seed)
    X = rng.random((n + queries, d), dtype=np.float32)
    return X[:n], X[n:]


@lru_cache(maxsize=1)
def mnist(n=10_000):
    """Digits in [0, 1], and those held out."""
    data = load(MNIST)
    X, Q = (np.float32(data[name]) / np.float32(255) for name in ("X", "X_test"))
    return np.ascontiguousarray(X[:n]), Q


@lru_cache(maxsize=1)
def scrna(queries=1000):
    """Cells, cells held out, and the samples that the former are of."""
    data = load(SCRNA)
    order = np.random.default_rng(0).permutation(len(data["X"]))
    X, y = data["X"][order], data["y"][order]
    return X[queries:], X[:queries], y[queries:]


def tcga(queries, seed=0):
    """Tissue samples, and midpoints of random pairs of them as queries."""
    X = load(TCGA)["X"]
    i, j = np.random.default_rng(seed).integers(len(X), size=(2, queries))
    return X, (X[i] + X[j]) / 2


def shrunk_metric(X):
    """U of the inverse of a Ledoit-Wolf covariance."""
    return np.float32(components_from(VI=LedoitWolf().fit(X).precision_))


def whitening_metric(X):
    """U of the inverse of the covariance itself: every direction counts the same."""
    return np.float32(components_from(V=np.cov(X.T, dtype=np.float64)))


def learned_metric(X, y, k=256, sample=1000):
    """k rows: neighbourhood components analysis on principal components."""
    pca = PCA(k, svd_solver="randomized", random_state=0).fit(X[:4000])
    nca = NeighborhoodComponentsAnalysis(max_iter=10, random_state=0)
    nca.fit(pca.transform(X[:sample]), y[:sample])
    return np.float32(nca.components_ @ pca.components_)


def dense_metric(d, seed=1):
    """A full-rank U near the identity."""
    noise = np.random.default_rng(seed).standard_normal((d, d), dtype=np.float32)
    return np.eye(d, dtype=np.float32) + np.float32(0.3 / np.sqrt(d)) * noise
