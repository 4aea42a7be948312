"""Indices over small data sets, each beside the oracle that says what is true."""

import tracemalloc
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import estimator_checks

from skmahal import SketchedMahalanobisNeighbors
from tests.oracle import Oracle, assert_nearest

D = 30
K_ROWS = 24
CLUSTERS = 16
PER_CLUSTER = 15

# `delta` is so small that a correct index errs once in 10^6 runs of all the tests.
SKETCHED = {"m": 6, "L": 5, "R": 1, "lead": 0, "delta": 1e-10, "random_state": 0}
LED = {**SKETCHED, "lead": 4}
EXACT = {"random_state": 0}

# One row a sketch is less than the two features or more of most checks' data.
SMALLEST_SKETCH = {"m": 1, "L": 1, "R": 1, "lead": 0}

# Checks of scikit-learn's own estimators that `parametrize_with_checks` leaves out.
NOT_IN_THE_DEFAULT_SET = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_estimators_partial_fit_n_features,
    estimator_checks.check_param_validation,
]

# How far derived arrays may drift from the truth, relative to the size of rows.
DRIFT = {np.float64: 1e-13, np.float32: 1e-5}


class Kind(NamedTuple):
    """An engine, how points are stored, and their type."""

    engine: str
    storage: str
    dtype: type
    params: dict

    def __str__(self):
        lead = "-lead" if self.params.get("lead") else ""
        return f"{self.engine}{lead}-{self.storage}-{self.dtype.__name__}"

    def store(self, X):
        X = np.asarray(X, dtype=self.dtype)
        return sparse.csr_matrix(X) if self.storage == "csr" else X

    def fit(self, X, y=None, **params):
        """An index over X, given dense, that has to choose the engine of this kind."""
        estimator = SketchedMahalanobisNeighbors(**{**self.params, **params})
        estimator.fit(self.store(X), y)
        assert estimator.engine_ == self.engine
        assert estimator._engine.dtype == self.dtype
        assert sparse.issparse(estimator._engine.X) == (self.storage == "csr")
        return estimator


KINDS = [
    Kind("exact", "dense", np.float64, EXACT),
    Kind("exact", "dense", np.float32, EXACT),
    Kind("exact", "csr", np.float64, EXACT),
    Kind("exact", "csr", np.float32, EXACT),
    Kind("sketched", "dense", np.float64, SKETCHED),
    Kind("sketched", "dense", np.float64, LED),
    Kind("sketched", "dense", np.float32, SKETCHED),
    Kind("sketched", "csr", np.float64, SKETCHED),
    Kind("sketched", "csr", np.float32, LED),
]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def labels():
    return np.repeat(np.arange(CLUSTERS), PER_CLUSTER)


def clustered(seed=0, offset=0.0, spread=1.0, d=D):
    """Tight groups of points, a third of the entries not zero.

    Sketches exclude the other groups, each smaller than the share of points from which
    a search falls back on brute force.
    """
    rng = np.random.default_rng(0)
    centres = 30 * rng.normal(size=(CLUSTERS, d))
    kept = rng.random((CLUSTERS, d)) < 1 / 3
    noise = normal(CLUSTERS * PER_CLUSTER, d, seed=1 + seed)
    return offset + spread * (centres[labels()] + noise) * kept[labels()]


def some_metric(k=K_ROWS, d=D, seed=0):
    return normal(k, d, seed=100 + seed) / np.sqrt(d)


def oracle_of(index):
    """The oracle for what `index` says its metric and its points are."""
    return Oracle(index.components_, index._engine.X)


def tolerance_of(oracle, dtype):
    """Absolute error of a distance from drift of rows by what is allowed, and over."""
    size = np.sqrt(((oracle.X @ oracle.U.T) ** 2).sum(axis=1).max())
    return 8 * DRIFT[dtype] * size


def peak(function, *args):
    """MiB that a call holds at the most, beside what was there and what it returns."""
    tracemalloc.start()
    try:
        returned = function(*args)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    arrays = returned if isinstance(returned, list | tuple) else [returned]
    return (held - sum(getattr(array, "nbytes", 0) for array in arrays)) / 2**20


def assert_exact_neighbours(index, oracle, Q, dtype, K=5):
    """`index.kneighbors` are the nearest of `oracle`, up to rounding."""
    distances, indices = index.kneighbors(Q, K)
    Q = Q.toarray() if sparse.issparse(Q) else Q
    assert distances.shape == indices.shape == (len(Q), K)
    assert (np.diff(distances, axis=1) >= 0).all()
    atol = tolerance_of(oracle, dtype)
    assert_nearest(distances, indices, oracle.query_all(Q), rtol=0, atol=atol)
