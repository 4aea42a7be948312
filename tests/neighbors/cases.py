"""Small data sets and indices over them, each with an oracle of brute force."""

import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from skmahal import SketchedMahalanobisNeighbors
from tests.oracle import Oracle, assert_nearest

D = 30
K_ROWS = 24
CLUSTERS = 16
PER_CLUSTER = 15

EXACT = {"random_state": 0}
# `delta` is so small that a correct index fails once in 10^6 runs of all the tests.
SKETCHED = {"m": 6, "L": 5, "R": 1, "lead": 0, "delta": 1e-10, "random_state": 0}
LED = {**SKETCHED, "lead": 4}
CERTIFIED = {**LED, "n_candidates": "certified"}

# Error of a distance, relative to the longest row of the points under the metric.
ROUNDING = {np.float64: 1e-12, np.float32: 1e-4}


class Kind(NamedTuple):
    """How neighbours are searched, how points are stored, and their type."""

    search: str
    storage: str
    dtype: type
    params: dict

    def __str__(self):
        return f"{self.search}-{self.storage}-{self.dtype.__name__}"

    def store(self, X):
        return stored(np.asarray(X, dtype=self.dtype), self.storage)

    def fit(self, X, y=None, **params):
        """An index over X, given dense."""
        estimator = SketchedMahalanobisNeighbors(**{**self.params, **params})
        return estimator.fit(self.store(X), y)


KINDS = [
    Kind("exact", "dense", np.float64, EXACT),
    Kind("exact", "dense", np.float32, EXACT),
    Kind("exact", "csr", np.float64, EXACT),
    Kind("exact", "csr", np.float32, EXACT),
    Kind("certified", "dense", np.float64, CERTIFIED),
    Kind("certified", "dense", np.float32, CERTIFIED),
    Kind("certified", "csr", np.float64, CERTIFIED),
]
PLAIN = [kind for kind in KINDS if kind[1:3] == ("dense", np.float64)]

any_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
any_search = pytest.mark.parametrize("kind", PLAIN, ids=str)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def stored(X, storage):
    return sparse.csr_matrix(X) if storage == "csr" else X


def labels():
    return np.repeat(np.arange(CLUSTERS), PER_CLUSTER)


def clustered(seed=0, offset=0.0, spread=1.0, d=D):
    """Tight groups of points, a third of the entries not zero."""
    rng = np.random.default_rng(0)
    centres = 30 * rng.normal(size=(CLUSTERS, d))
    kept = rng.random((CLUSTERS, d)) < 1 / 3
    noise = normal(CLUSTERS * PER_CLUSTER, d, seed=1 + seed)
    return offset + spread * (centres[labels()] + noise) * kept[labels()]


def some_metric(k=K_ROWS, d=D, seed=0):
    return normal(k, d, seed=100 + seed) / np.sqrt(d)


def points_of(index):
    """The points of an index, dense; no public name has them."""
    X = index._maintenance.X
    return X.toarray() if sparse.issparse(X) else np.array(X)


def oracle_of(index):
    """The oracle for the metric and the points of an index."""
    return Oracle(index.components_, points_of(index))


def tolerance_of(oracle, dtype):
    """Absolute error of a distance that rounding explains."""
    gaps = (oracle.X - oracle.X.mean(axis=0)) @ oracle.U.T
    return ROUNDING[dtype] * np.sqrt((gaps**2).sum(axis=1).max())


def assert_exact_neighbours(index, oracle, Q, dtype, K=5):
    """`index.kneighbors` are the nearest of `oracle`, up to rounding."""
    distances, indices = index.kneighbors(Q, K)
    Q = Q.toarray() if sparse.issparse(Q) else Q
    assert distances.shape == indices.shape == (len(Q), K)
    assert (np.diff(distances, axis=1) >= 0).all()
    atol = tolerance_of(oracle, dtype)
    assert_nearest(distances, indices, oracle.query_all(Q), rtol=0, atol=atol)


def state_of(estimator):
    """What is saved of an estimator, by its digest, and which objects it holds."""
    held = {name: id(value) for name, value in vars(estimator).items()}
    return estimator.__getstate__()["_digest"], held


def peak(function, *args):
    """MiB that a call holds at most, beside what was there and what it returns."""
    tracemalloc.start()
    try:
        returned = function(*args)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    arrays = returned if isinstance(returned, list | tuple) else [returned]
    return (held - sum(getattr(array, "nbytes", 0) for array in arrays)) / 2**20


# --- labelled points with many ties, and scikit-learn's kNN on them -----------------

SEARCHES = {"exact": EXACT, "certified": CERTIFIED}
any_way = pytest.mark.parametrize("search", SEARCHES)


def coarse_digits(n=500):
    """Points, labels and queries of small whole numbers, so that distances tie."""
    X, y = load_digits(return_X_y=True)
    return X[:n] // 4, y[:n], X[n : n + 200] // 4


def whole_metric(k=12, d=64):
    """U of small whole numbers: distances under it are exact and often equal."""
    return np.random.default_rng(k).integers(-1, 2, size=(k, d)).astype(float)


def squares_between(Q, X, U):
    """Squared distances, without rounding for whole numbers."""
    gaps = (Q @ U.T)[:, np.newaxis] - X @ U.T
    return (gaps**2).sum(axis=2)


def ranks_between(Q, X, U):
    """Whole numbers in the order of distance, then of position; none are equal."""
    return squares_between(Q, X, U) * len(X) + np.arange(len(X))


def by_rank(estimator, X, y, U, weights="uniform"):
    """scikit-learn's `estimator` fitted to ranks in place of distances."""
    if weights != "uniform":
        of_distances = inverse if weights == "distance" else weights

        def weights(ranks):
            return of_distances(np.sqrt(ranks // len(X)))

    estimator.set_params(metric="precomputed", weights=weights)
    return estimator.fit(ranks_between(X, X, U), y)


def inverse(distances):
    """Inverse distances; if some are infinite, they are 1 and the others 0."""
    with np.errstate(divide="ignore"):
        weights = 1 / distances
    infinite = np.isinf(weights)
    rows = infinite.any(axis=1)
    weights[rows] = infinite[rows]
    return weights


def bell(distances):
    """Weights that are a function."""
    return np.exp(-distances / 10)


any_weights = pytest.mark.parametrize(
    "weights", ["uniform", "distance", bell], ids=["uniform", "distance", "callable"]
)


def ties_at(K, Q, X, U):
    """Queries for which more than one point could be the K-th neighbour."""
    best = np.sort(squares_between(Q, X, U), axis=1)
    return best[:, K - 1] == best[:, K]
