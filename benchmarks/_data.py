"""Points, queries and metrics to measure on, and exact neighbours in float64.

Points are generated, or fetched from OpenML and kept in a folder: the one that the
environment variable SKMAHAL_DATA names, or else `skmahal` in scikit-learn's data home.
"""

import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.covariance import LedoitWolf
from sklearn.datasets import fetch_openml, get_data_home
from sklearn.decomposition import PCA
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import components_from

GLOVE = "glove_100k.npz"
MNIST = "mnist_10k.npz"
SCRNA = "scrna_bmmc_aml_5120.npz"
TCGA = "tcga_luad_coadread_800x5120.npz"

_CENTRES = 500
_SPREAD = 0.5
_BLOCK = 1 << 16
# Points nearer than the K-th neighbour times 1 + _TIE count as ties with it.
_TIE = 1e-6
_SPARE = 20


class Problem(NamedTuple):
    """Points, the metric's U or None for Euclidean, and queries; float32."""

    X: np.ndarray
    U: np.ndarray | None
    Q: np.ndarray


class AbsentError(Exception):
    """Real data are not in the folder, and cannot be fetched."""


class ExactNeighbors:
    """Distances of the K nearest points in float64, by brute force.

    K and some more are found by matrix products, and ranked by differences.
    """

    def __init__(self, problem, K):
        self._problem, self.K = problem, K
        X, U, Q = problem
        count = min(K + _SPARE, X.shape[0])
        u, indices = _in_float64(Q, U), np.empty((Q.shape[0], 0), dtype=np.intp)
        squares = np.empty((Q.shape[0], 0))
        step = max(1, (1 << 25) // X.shape[1])
        for start in range(0, X.shape[0], step):
            Y = _in_float64(X[start : start + step], U)
            D = np.einsum("ij,ij->i", Y, Y) - 2 * (u @ Y.T)
            squares = np.hstack([squares, D])
            here = np.broadcast_to(np.arange(start, start + len(Y)), D.shape)
            indices = np.hstack([indices, here])
            if squares.shape[1] > count:
                kept = np.argpartition(squares, count - 1, axis=1)[:, :count]
                squares = np.take_along_axis(squares, kept, axis=1)
                indices = np.take_along_axis(indices, kept, axis=1)
        self.kth = np.sort(self.distances(indices), axis=1)[:, K - 1]

    def distances(self, indices):
        """Distances of each query from the points given for it, in float64."""
        X, U, Q = self._problem
        d = np.empty(indices.shape)
        for row, points in enumerate(indices):
            gaps = _dense(X[points]).astype(np.float64) - _dense(Q[[row]])
            d[row] = np.linalg.norm(_in_float64(gaps, U), axis=1)
        return d

    def recall(self, indices):
        """Share of the K places that hold one of the K nearest points."""
        near = self.distances(indices) <= self.kth[: len(indices), None] * (1 + _TIE)
        found = [len(set(row[ok])) for row, ok in zip(indices, near, strict=True)]
        return float(np.minimum(found, self.K).mean() / self.K)


def transformed(X, U):
    """Rows under U; the same rows where U is None."""
    return X if U is None else X @ U.T


def outside(X, queries=500, seed=0):
    """Queries from outside the data: uniform in its bounding box."""
    low, high = X.min(axis=0), X.max(axis=0)
    drawn = np.random.default_rng(seed).random((queries, X.shape[1]), dtype=np.float32)
    return low + drawn * (high - low)


def folder():
    """Where files of real data are kept."""
    named = os.environ.get("SKMAHAL_DATA")
    return Path(named) if named else Path(get_data_home()) / "skmahal"


def load(name):
    """The arrays of a file of real data, which is fetched from OpenML if it can be."""
    path = folder() / name
    if not path.exists():
        if name not in OPENML:
            raise AbsentError(
                f"{name} is not in {folder()}, and OpenML does not have it; "
                "benchmarks/README.md says where it is from"
            )
        arrays = _fetched(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial.npz")
        np.savez_compressed(unfinished, **arrays)
        unfinished.replace(path)
    return np.load(path, allow_pickle=False)


def _fetched(name):
    """Arrays of a data set of OpenML."""
    dataset, version, arranged = OPENML[name]
    # Its faster parser needs pandas.
    parser = "auto" if find_spec("pandas") else "liac-arff"
    try:
        found = fetch_openml(dataset, version=version, as_frame=False, parser=parser)
    except (OSError, ValueError) as error:
        raise AbsentError(
            f"fetch_openml({dataset!r}) failed ({error}), and {name} is not in "
            f"{folder()}; the environment variable SKMAHAL_DATA names another folder"
        ) from error
    return arranged(np.asarray(found.data), np.asarray(found.target))


def _digits(X, y):
    """The first 10,000 digits to search, and the last 2,000 as queries."""
    X, y = X.astype(np.uint8), y.astype(np.int64)
    first = {"X": X[:10_000], "y": y[:10_000]}
    return first | {"X_test": X[-2000:], "y_test": y[-2000:]}


# Files that can be made: name and version of the data set, and what makes the arrays.
OPENML = {MNIST: ("mnist_784", 1, _digits)}


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


def sparse(n, d, entries, queries, seed=0):
    """CSR points and queries with `entries` values a row in random columns."""
    rng = np.random.default_rng(seed)
    rows = n + queries
    columns = np.sort(rng.integers(d, size=(rows, entries), dtype=np.int32), axis=1)
    values = rng.random(rows * entries, dtype=np.float32)
    starts = np.arange(rows + 1) * entries
    X = sp.csr_array((values, columns.ravel(), starts), shape=(rows, d))
    X.sum_duplicates()
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


@lru_cache(maxsize=1)
def glove(queries=1000):
    """Word vectors, and those of words held out."""
    X = np.float32(load(GLOVE)["X"])
    X = X[np.random.default_rng(0).permutation(len(X))]
    return X[queries:], X[:queries]


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


def low_rank_metric(d, k=64, seed=1):
    """k random rows, each of length about one."""
    rows = np.random.default_rng(seed).standard_normal((k, d), dtype=np.float32)
    return rows / np.float32(np.sqrt(d))


def _in_float64(X, U):
    return transformed(
        _dense(X).astype(np.float64), None if U is None else U.astype(np.float64)
    )


def _dense(X):
    return X.toarray() if sp.issparse(X) else X
