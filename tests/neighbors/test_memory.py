"""Answers to many queries stay within scikit-learn's `working_memory`."""

import time

import numpy as np
import pytest
from sklearn import config_context

from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisRegressor
from skmahal._core import kernels

from .cases import EXACT, SKETCHED, normal, peak

LIMIT = 8
METHODS = {
    "predict": (SketchedMahalanobisClassifier, "predict"),
    "predict_proba": (SketchedMahalanobisClassifier, "predict_proba"),
    "regression": (SketchedMahalanobisRegressor, "predict"),
    "kneighbors": (SketchedMahalanobisRegressor, "kneighbors"),
}
# Queries, neighbours, classes and outputs: what is made of all at once is 12 MiB or
# more.
SIZES = {
    "many classes": (2_000, 5, 1_000, 1),
    "many neighbours": (6_000, 100, 10, 1),
    "many outputs": (30_000, 5, 10, 50),
    "many neighbours with many outputs": (1_000, 100, 10, 50),
}

any_engine = pytest.mark.parametrize(
    "params", [EXACT, SKETCHED], ids=["exact", "sketched"]
)


def targets(n, classes, outputs):
    y = (np.arange(n)[:, np.newaxis] + np.arange(outputs)) % classes
    return y if outputs > 1 else y[:, 0]


def peak_of(knn, method, Q):
    getattr(knn, method)(Q[:20])  # what is derived from the points belongs to the index
    with config_context(working_memory=LIMIT):
        return peak(getattr(knn, method), Q)


@any_engine
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_made_of_neighbours_is_counted(params, method, size):
    n_queries, K, classes, outputs = SIZES[size]
    kind, method = METHODS[method]
    n = max(2 * classes, 200)
    X, Q = (normal(m, 10, seed=m).astype(np.float32) for m in (n, n_queries))
    knn = kind(K, weights="distance", n_jobs=1, **params)
    knn.fit(X, targets(n, classes, outputs))
    assert peak_of(knn, method, Q) < LIMIT + 1


@pytest.mark.parametrize("engine", ["exact", "sketched"])
@pytest.mark.parametrize("dtypes", ["f4 f8", "f8 f4", "f8 f8"])
def test_queries_are_copied_a_batch_at_a_time(engine, dtypes):
    """10,000 × 784 numbers in float32 are 30 MiB, and in float64 60.

    Those of another type than the points are converted, and a query is copied to choose
    its sketch.
    """
    of_points, of_queries = dtypes.split()
    X, Q = normal(200, 784).astype(of_points), normal(10_000, 784).astype(of_queries)
    params = SKETCHED if engine == "sketched" else {"metric_learner": X[:4]}
    knn = SketchedMahalanobisClassifier(n_jobs=1, **params).fit(X, np.arange(200) % 3)
    assert (knn.engine_, knn._engine.dtype) == (engine, of_points)
    assert peak_of(knn, "predict", Q) < LIMIT + 1


@any_engine
@pytest.mark.parametrize("n", [5_000, 100_000])
@pytest.mark.parametrize("method", ["predict", "kneighbors"])
def test_threads_share_the_memory(params, n, method, monkeypatch):
    """Eight threads, whose tiles are there at the same time."""
    X, Q = normal(n, 10), normal(64 if n > 10_000 else 512, 10, seed=1)
    nearest = kernels.nearest

    def wait_for_the_others(*args):
        time.sleep(0.02)
        return nearest(*args)

    monkeypatch.setattr(kernels, "nearest", wait_for_the_others)
    knn = SketchedMahalanobisClassifier(metric_learner=2 * np.eye(10), **params)
    knn.set_params(n_jobs=8).fit(X, np.arange(n) % 3)
    assert peak_of(knn, method, Q) < LIMIT + 1


def test_estimates_for_a_budget_of_candidates_are_made_a_tile_at_a_time():
    """All of 200 queries at once would be 76 MiB."""
    X, Q = normal(100_000, 10).astype(np.float32), normal(200, 10, seed=1)
    params = {**SKETCHED, "n_candidates": 50, "n_jobs": 1}
    knn = SketchedMahalanobisRegressor(5, **params).fit(X, np.arange(len(X)))
    assert knn.engine_ == "sketched"
    assert peak_of(knn, "kneighbors", Q) < LIMIT + 1
