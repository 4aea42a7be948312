"""Results of many queries stay within scikit-learn's `working_memory`."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn import config_context

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)

from .cases import CERTIFIED, EXACT, SKETCHED, normal, peak, some_metric, stored

LIMIT = 8
METHODS = {
    "predict": (SketchedMahalanobisClassifier, "predict"),
    "predict_proba": (SketchedMahalanobisClassifier, "predict_proba"),
    "regression": (SketchedMahalanobisRegressor, "predict"),
    "kneighbors": (SketchedMahalanobisRegressor, "kneighbors"),
}
# Queries, neighbours, classes and outputs: all at once would be 12 MiB or more.
SIZES = {
    "many classes": (2_000, 5, 1_000, 1),
    "many neighbours": (6_000, 100, 10, 1),
    "many outputs": (30_000, 5, 10, 50),
    "many neighbours with many outputs": (1_000, 100, 10, 50),
}

any_search = pytest.mark.parametrize(
    "params", [EXACT, CERTIFIED], ids=["exact", "certified"]
)


def targets(n, classes, outputs):
    y = (np.arange(n)[:, np.newaxis] + np.arange(outputs)) % classes
    return y if outputs > 1 else y[:, 0]


def peak_of(knn, method, Q):
    # What is derived from the points belongs to the index. Few queries at a time are
    # transformed by a loop, which is loaded when it is first called.
    for few in (Q[:1], Q[:20]):
        getattr(knn, method)(few)
    with config_context(working_memory=LIMIT):
        return peak(getattr(knn, method), Q)


@pytest.mark.slow
@any_search
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


@any_search
@pytest.mark.parametrize("n", [5_000, 100_000])
@pytest.mark.parametrize("method", ["predict", "kneighbors"])
@pytest.mark.parametrize("n_jobs", [1, 4])
def test_distances_of_queries_to_points_are_not_held(params, n, method, n_jobs):
    X, Q = normal(n, 10), normal(64 if n > 10_000 else 1_000, 10, seed=1)
    knn = SketchedMahalanobisClassifier(metric_learner=2 * np.eye(10), **params)
    knn.set_params(n_jobs=n_jobs).fit(X, np.arange(n) % 3)
    assert peak_of(knn, method, Q) < LIMIT + 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["score", "radius_neighbors", "sum_distances"])
@pytest.mark.parametrize("params", [EXACT, {**SKETCHED, "m": 1}])
def test_other_results_are_made_within_the_limit(params, method):
    """All distances are 12 MiB, those of one query 0.3."""
    index = SketchedMahalanobisNeighbors(radius=0.1, **params).fit(normal(40_000, 4))
    assert peak_of(index, method, normal(40, 4, seed=1)) < LIMIT + 1


def test_estimates_for_a_budget_of_candidates_are_made_in_parts():
    """All of 200 queries at once would be 76 MiB."""
    X, Q = normal(100_000, 10).astype(np.float32), normal(200, 10, seed=1)
    params = {**SKETCHED, "n_candidates": 50, "n_jobs": 1}
    knn = SketchedMahalanobisRegressor(5, **params).fit(X, np.arange(len(X)))
    assert knn.engine_ == "sketched"
    assert peak_of(knn, "kneighbors", Q.astype(np.float32)) < LIMIT + 1


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "n_jobs"), [("dense", 1), ("csr", 2)])
@any_search
def test_many_queries_on_many_points(params, storage, n_jobs):
    """2,000 × 20,000 distances would be 153 MiB; the results are less than 1."""
    centres = 30 * normal(100, 30)
    X = np.repeat(centres, 200, axis=0) + normal(20_000, 30, seed=1)
    Q = np.repeat(centres, 20, axis=0) + normal(2_000, 30, seed=2)
    y = np.repeat(np.arange(100) % 3, 200)
    knn = SketchedMahalanobisClassifier(n_jobs=n_jobs, **params)
    knn.fit(X.astype(np.float32), y)
    Q = stored(Q.astype(np.float32), storage)
    assert peak_of(knn, "predict_proba", Q) < LIMIT + 1


def sparse_points(n, d, entries=25):
    rng = np.random.default_rng(0)
    where = np.repeat(np.arange(n), entries), rng.integers(d, size=entries * n)
    values = rng.random(entries * n, np.float32)
    return sparse.csr_matrix((values, where), shape=(n, d))


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [EXACT, {**CERTIFIED, "m": 16}, {**EXACT, "metric_learner": some_metric(4, 5_120)}],
    ids=["euclidean", "certified", "few rows"],
)
def test_sparse_points_are_never_made_dense_as_a_whole(params):
    """20,000 × 5,120 numbers in float32 are 391 MiB; 25 per row are 4."""
    n, d = 20_000, 5_120
    X, y, dense = sparse_points(n, d), np.arange(n) % 3, n * d * 4 / 2**20
    knn = SketchedMahalanobisClassifier(**params)

    def learn_and_predict():
        knn.fit(X, y)
        knn.predict(X[:10])
        knn.partial_fit(X[:5], y[:5]).predict(X[:2])

    with config_context(working_memory=16):
        assert peak(learn_and_predict) < dense / 3
    assert_array_equal(knn.kneighbors(X[:9], 1)[1].ravel(), np.arange(9))


def test_sparse_queries_are_never_made_dense_as_a_whole():
    """2,000 × 5,120 numbers in float32 are 39 MiB."""
    n, d = 2_000, 5_120
    where = np.arange(n), np.arange(n)
    Q = sparse.csr_matrix((np.ones(n, np.float32), where), shape=(n, d))
    U = some_metric(4, d)
    knn = SketchedMahalanobisClassifier(metric_learner=U).fit(Q[:50], np.arange(50) % 3)
    assert peak_of(knn, "predict", Q) < LIMIT + 1


@pytest.mark.slow
def test_few_points_that_vote_are_searched_for_by_parts():
    X, Q = normal(5_000, 10), normal(3_000, 10, seed=1)
    y = np.full(5_000, None)
    y[::1_000] = [0, 1, 2, 0, 1]
    knn = SketchedMahalanobisClassifier(5, n_jobs=1).fit(X, y)
    # All distances would be 120 MB.
    assert peak_of(knn, "predict", Q) < LIMIT + 1
    other = SketchedMahalanobisClassifier(5).fit(X[::1_000], [0, 1, 2, 0, 1])
    assert_array_equal(knn.predict(Q[:50]), other.predict(Q[:50]))
