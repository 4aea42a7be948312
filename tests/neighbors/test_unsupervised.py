"""Neighbours, distances, sums and samples are those of brute force."""

import pickle
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestNeighbors, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skmahal import SketchedMahalanobisNeighbors
from skmahal._core import bounds
from skmahal.neighbors import _base as base

from .cases import (
    CERTIFIED,
    CLUSTERS,
    EXACT,
    K_ROWS,
    LED,
    PER_CLUSTER,
    SKETCHED,
    D,
    any_kind,
    any_search,
    assert_exact_neighbours,
    clustered,
    labels,
    normal,
    oracle_of,
    points_of,
    some_metric,
    tolerance_of,
)

N = CLUSTERS * PER_CLUSTER
QUERIES = clustered(seed=1)[::16]

# An index whose distances are estimates that keep a promise, and its many features.
PROMISING = {"eps": 0.5, "delta": 1e-9, "L": 5, "lead": 0, "random_state": 0}
WIDE = 400


class Metric(BaseEstimator):
    """A learner that learns what it is given."""

    def __init__(self, components=None):
        self.components = components

    def fit(self, X, y=None):
        self.components_ = self.components
        return self


def brute(index, **params):
    """scikit-learn's brute force under the metric of `index`, in float64."""
    oracle = oracle_of(index)
    return NearestNeighbors(algorithm="brute", **params).fit(oracle.X @ oracle.U.T)


def under(index, Q):
    return np.asarray(Q, dtype=np.float64) @ index.components_.T


def in_type(kind, X):
    """X as the index stores it, in float64."""
    return np.asarray(X, dtype=kind.dtype).astype(np.float64)


def promising(**params):
    """Parameters with as many rows as keep the promise for 400 points."""
    params = {**PROMISING, **params}
    rest = params["L"], params["eps"], params["delta"], params.get("sketch", "gaussian")
    return {"m": bounds.sketch_rows(400, *rest), **params}


def estimating(n=200, d=WIDE, **params):
    """An index whose `distances` are estimates."""
    estimator = SketchedMahalanobisNeighbors(**promising(**params))
    index = estimator.fit(normal(n, d, seed=5))
    assert index.engine_ == "sketched"
    return index


def results(index, Q=QUERIES):
    """What all query methods of an index return."""
    found = index.radius_neighbors(Q, 4.0)
    return [
        *index.kneighbors(Q),
        np.concatenate(found[0]),
        np.concatenate(found[1]),
        index.distances(Q),
        index.pair_distances(np.arange(20), np.arange(20, 40)),
        index.sum_distances(Q, 5, 99),
        index.sum_distances(Q, 5, 99, power=1),
        index.sample(Q, 7, random_state=3),
        index.score(Q),
        index.audit(100, random_state=0).p_value,
        index.components_,
    ]


def assert_same_results(one, other, Q=QUERIES):
    for a, b in zip(results(one, Q), results(other, Q), strict=True):
        assert_array_equal(a, b)


def assert_same_up_to_rounding(ones, others, dtype):
    """Equal results; in float32, rounding may exchange indices of near-ties."""
    rtol = 1e-3 if dtype == np.float32 else 1e-7
    for one, other in zip(ones, others, strict=True):
        if not np.issubdtype(np.asarray(one).dtype, np.integer):
            assert_allclose(one, other, rtol=rtol, atol=1e-9)
        elif dtype == np.float64:
            assert_array_equal(one, other)


# --- fit: metrics, storage, types ---------------------------------------------------


@any_kind
@pytest.mark.parametrize("U", [None, some_metric()], ids=["euclidean", "array"])
def test_neighbours_are_exact(kind, U):
    index = kind.fit(clustered(), metric_learner=U)
    assert_array_equal(index.components_, np.eye(D) if U is None else U)
    assert index.metric_learner_ is None
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


@any_search
@pytest.mark.parametrize(
    "learner",
    [PCA(20), NeighborhoodComponentsAnalysis(20, max_iter=2, random_state=0)],
    ids=["PCA", "NCA"],
)
def test_neighbours_are_exact_under_a_learned_metric(kind, learner):
    X, y = clustered(), labels()
    index = kind.fit(X, y, metric_learner=learner)
    assert_array_equal(index.components_, clone(learner).fit(X, y).components_)
    assert index.metric_learner_ is not learner
    assert not hasattr(learner, "components_")
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


@any_kind
def test_a_frozen_learner_is_not_fitted_again(kind):
    learner = PCA(20).fit(clustered(seed=8))
    index = kind.fit(clustered(), metric_learner=FrozenEstimator(learner))
    assert_array_equal(index.components_, learner.components_)
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


def test_exact_neighbours_do_not_depend_on_the_sketches():
    X = clustered()
    one = SketchedMahalanobisNeighbors(m=2, L=1, lead=0, random_state=0).fit(X)
    other = SketchedMahalanobisNeighbors(m=9, L=7, random_state=1).fit(X)
    for a, b in zip(one.kneighbors(QUERIES), other.kneighbors(QUERIES), strict=True):
        assert_array_equal(a, b)


@any_kind
@pytest.mark.parametrize(
    "form", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asfortranarray]
)
def test_queries_come_in_any_form(kind, form):
    index = kind.fit(clustered(), metric_learner=some_metric())
    Q = in_type(kind, QUERIES)
    distances, indices = index.kneighbors(form(Q))
    rtol = 1e-4 if kind.dtype == np.float32 else 1e-9
    assert_allclose(distances, index.kneighbors(Q)[0], rtol)
    assert_allclose(index.distances(form(Q)), index.distances(Q), rtol)
    assert_allclose(index.sum_distances(form(Q)), index.sum_distances(Q), rtol)
    if kind.dtype == np.float64:
        assert_array_equal(indices, index.kneighbors(Q)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_have_the_type_of_the_points_and_the_metric_is_float64(dtype):
    index = SketchedMahalanobisNeighbors(**SKETCHED).fit(clustered().astype(dtype))
    distances, indices = index.kneighbors(QUERIES)
    assert distances.dtype == index.distances(QUERIES).dtype == dtype
    assert index.pair_distances([0], [1]).dtype == dtype
    assert index.components_.dtype == np.float64
    assert indices.dtype == np.intp
    assert index.radius_neighbors(QUERIES)[0][0].dtype == dtype


def test_integers_and_lists_become_float64():
    index = SketchedMahalanobisNeighbors(2).fit([[0, 0], [3, 4], [6, 8]])
    distances, indices = index.kneighbors([[3, 4]])
    assert_array_equal(indices, [[1, 0]])
    assert_array_equal(distances, [[0.0, 5.0]])
    assert distances.dtype == np.float64


@any_kind
@pytest.mark.parametrize("U", [None, some_metric()], ids=["euclidean", "array"])
def test_what_is_fitted_is_copied(kind, U):
    expected = kind.fit(clustered(), metric_learner=U).kneighbors(QUERIES)
    X, metric = kind.store(clustered()), None if U is None else U.copy()
    index = SketchedMahalanobisNeighbors(**kind.params, metric_learner=metric).fit(X)
    (X.data if sparse.issparse(X) else X)[:] = 0
    if metric is not None:
        metric[:] = 0
    index.components_[:] = 0
    for one, other in zip(index.kneighbors(QUERIES), expected, strict=True):
        assert_array_equal(one, other)


# --- changes of points and metric ---------------------------------------------------


@any_kind
def test_partial_fit_starts_an_index(kind):
    index = SketchedMahalanobisNeighbors(**kind.params)
    assert index.partial_fit(kind.store(clustered())) is index
    assert_same_results(index, kind.fit(clustered()))


@any_kind
def test_partial_fit_appends_points_of_any_type(kind):
    X, other = clustered(), {np.float32: np.float64, np.float64: np.float32}[kind.dtype]
    index = kind.fit(X[:100], metric_learner=some_metric())
    index.kneighbors(QUERIES)
    for part in (X[100:101], sparse.csr_matrix(X[101:180]), X[180:], sparse.eye(1, D)):
        assert index.partial_fit(part.astype(other)) is index
    index.update_points([0, 1], X[[1, 0]].astype(other))
    X = np.vstack([X, np.eye(1, D)])
    X[:2] = X[[1, 0]]
    assert index.n_samples_fit_ == N + 1
    assert index.kneighbors(QUERIES)[0].dtype == kind.dtype
    assert_allclose(points_of(index), X, rtol=1e-6)
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


def test_partial_fit_does_not_learn_the_metric_again():
    index = SketchedMahalanobisNeighbors(metric_learner=PCA(3)).fit(clustered())
    before = index.components_
    index.partial_fit(100 * normal(50, D))
    assert_array_equal(index.components_, before)


@any_kind
def test_update_points_replaces_points(kind):
    X, new = clustered(), clustered(seed=4)[:3]
    index = kind.fit(X, metric_learner=some_metric())
    index.kneighbors(QUERIES)
    assert index.update_points([7, 0, -1], kind.store(new)) is index
    index.update_points(50, new[:1])
    X[[7, 0, -1]], X[50] = new, new[0]
    assert_array_equal(points_of(index), in_type(kind, X))
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


@any_kind
def test_remove_points_deletes_as_numpy_does(kind):
    X, gone = clustered(), [3, 100, -1, 3, 17]
    index = kind.fit(X, metric_learner=some_metric())
    index.kneighbors(QUERIES)
    assert index.remove_points(gone) is index
    index.remove_points(0).remove_points([])
    left = np.delete(np.delete(X, gone, axis=0), 0, axis=0)
    assert index.n_samples_fit_ == len(left)
    assert_array_equal(points_of(index), in_type(kind, left))
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


def routes(U, new, rows, W, V):
    """Ways to say that U becomes `new`, where `rows` differ by ``W Vᵀ``."""
    return [
        ((new,), {}),
        ((new.tolist(),), {}),
        (({"U": new},), {}),
        ((Metric(new).fit(None),), {}),
        ((new[rows],), {"rows": rows}),
        ((new[rows] - U[rows],), {"rows": rows, "additive": True}),
        ((), {"low_rank": (W, V)}),
        ((new,), {"rows": np.arange(len(U))}),
    ]


@pytest.mark.slow
@any_kind
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_the_route_of_an_update_does_not_change_the_results(kind, warm):
    U, rows = some_metric(), [2, 11, 5]
    V = normal(D, 3, seed=3)
    W = np.zeros((K_ROWS, 3))
    W[rows] = normal(3, 3, seed=4)
    new = U + W @ V.T
    fresh = kind.fit(clustered(), metric_learner=new)
    rtol = 1e-5 if kind.dtype == np.float32 else 1e-12
    for args, kwargs in routes(U, new, rows, W, V):
        index = kind.fit(clustered(), metric_learner=U)
        if warm:
            index.kneighbors(QUERIES[:2])
            index.sum_distances(QUERIES[:2])
        assert index.update_metric(*args, **kwargs) is index
        assert_allclose(index.components_, new, rtol=1e-13, atol=1e-13)
        assert_exact_neighbours(index, oracle_of(fresh), QUERIES, kind.dtype)
        sums = fresh.sum_distances(QUERIES)
        assert_allclose(index.sum_distances(QUERIES), sums, rtol)


@any_kind
@pytest.mark.parametrize("k", [1, 15, 40])
def test_a_metric_may_change_its_number_of_rows(kind, k):
    index = kind.fit(clustered(), metric_learner=some_metric())
    index.kneighbors(QUERIES)
    new = some_metric(k=k, seed=1)
    assert index.update_metric(new) is index
    assert_array_equal(index.components_, new)
    fresh = kind.fit(clustered(), metric_learner=new)
    assert index.engine_ == fresh.engine_
    assert_exact_neighbours(index, oracle_of(fresh), QUERIES, kind.dtype)
    index.distances(QUERIES)
    index.update_metric(some_metric())
    fresh = kind.fit(clustered(), metric_learner=some_metric())
    assert index.engine_ == fresh.engine_
    assert_exact_neighbours(index, oracle_of(fresh), QUERIES, kind.dtype)


@any_kind
def test_the_euclidean_metric_can_be_changed(kind):
    index = kind.fit(clustered())
    index.kneighbors(QUERIES)
    w, v = normal(D, 1, seed=3), normal(D, 1, seed=4) / D
    index.update_metric(low_rank=(w, v))
    assert_allclose(index.components_, np.eye(D) + w @ v.T, atol=1e-14)
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)


def random_step(rng, oracle):
    """A change: the estimator's method, its arguments, and U and X afterwards."""
    n, (k, d) = len(oracle.X), oracle.U.shape
    some = rng.permutation(n)[: rng.integers(1, 9)]
    rows = rng.permutation(k)[: rng.integers(1, 4)]
    new = clustered(seed=int(rng.integers(1000)))[: rng.integers(1, 30)]
    values = rng.normal(size=(len(rows), d)) / np.sqrt(d)
    W, V = rng.normal(size=(k, 2)) / k, rng.normal(size=(d, 2))
    U = rng.normal(size=(rng.integers(12, 40), d)) / np.sqrt(d)
    changed = oracle.U.copy()
    changed[rows] = values
    added = oracle.U.copy()
    added[rows] += values
    replaced = oracle.X.copy()
    replaced[some] = clustered(seed=77)[some % N]
    steps = [
        ("partial_fit", (new,), {}, oracle.U, np.vstack([oracle.X, new])),
        ("update_points", (some, replaced[some]), {}, oracle.U, replaced),
        ("remove_points", (some,), {}, oracle.U, np.delete(oracle.X, some, axis=0)),
        ("update_metric", (values,), {"rows": rows}, changed, oracle.X),
        ("update_metric", (values,), {"rows": rows, "additive": True}, added, oracle.X),
        ("update_metric", (), {"low_rank": (W, V)}, oracle.U + W @ V.T, oracle.X),
        ("update_metric", (U,), {}, U, oracle.X),
        ("update_metric", (Metric(changed).fit(None),), {}, changed, oracle.X),
        ("refresh_sketches", (), {}, oracle.U, oracle.X),
    ]
    return steps[rng.integers(len(steps))]


@pytest.mark.slow
@any_kind
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_any_sequence_results_are_those_of_a_fresh_fit(kind, seed):
    rng = np.random.default_rng(seed)
    index = kind.fit(clustered(), metric_learner=some_metric())
    for step in range(25):
        method, args, kwargs, U, X = random_step(rng, oracle_of(index))
        getattr(index, method)(*args, **kwargs)
        after = oracle_of(index)
        assert_allclose(after.U, U, rtol=1e-13, atol=1e-13)
        assert_array_equal(after.X, in_type(kind, X))
        if step % 3 == 2:
            assert_exact_neighbours(index, after, QUERIES, kind.dtype)
            index.sample(QUERIES, 1)
    index.check()
    squares = after.query_all(QUERIES) ** 2
    rtol = 1e-3 if kind.dtype == np.float32 else 1e-9
    assert_allclose(index.sum_distances(QUERIES), squares.sum(axis=1), rtol)


# --- kneighbors ---------------------------------------------------------------------


@any_search
@pytest.mark.parametrize("n_neighbors", [1, 4, N - 1])
def test_kneighbors_agrees_with_scikit_learn(kind, n_neighbors):
    index = kind.fit(clustered(), metric_learner=some_metric(), n_neighbors=n_neighbors)
    peer = brute(index, n_neighbors=n_neighbors)
    for ours, theirs in [
        (index.kneighbors(QUERIES), peer.kneighbors(under(index, QUERIES))),
        (index.kneighbors(), peer.kneighbors()),
    ]:
        assert isinstance(ours, tuple)
        assert_allclose(ours[0], theirs[0], atol=1e-9)
        assert_array_equal(ours[1], theirs[1])


@any_kind
def test_all_points_may_be_neighbours(kind):
    index = kind.fit(clustered())
    _, indices = index.kneighbors(QUERIES, N)
    assert_array_equal(np.sort(indices), np.tile(np.arange(N), (len(QUERIES), 1)))
    _, indices = index.kneighbors(n_neighbors=N - 1)
    others = [np.delete(np.arange(N), i) for i in range(N)]
    assert_array_equal(np.sort(indices), others)


@any_kind
def test_points_are_not_their_own_neighbours(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    oracle = oracle_of(index)
    distances, indices = index.kneighbors(n_neighbors=4)
    exact = oracle.query_all(oracle.X)
    np.fill_diagonal(exact, np.inf)
    atol = tolerance_of(oracle, kind.dtype)
    assert_allclose(distances, np.sort(exact)[:, :4], atol=atol)
    assert_allclose(distances, np.take_along_axis(exact, indices, 1), atol=atol)


@any_kind
def test_duplicates_are_neighbours_of_each_other(kind):
    X = clustered()
    X[40:48] = X[3]
    index = kind.fit(X, metric_learner=some_metric())
    distances, indices = index.kneighbors(n_neighbors=3)
    same = [3, *range(40, 48)]
    assert (distances[same] == 0).all()
    for point in same:
        assert set(indices[point]) <= set(same) - {point}
        assert len(set(indices[point])) == 3
    assert_array_equal(index.kneighbors(X[[3]], 9, return_distance=False), [same])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_points_that_tie_with_a_point_are_ordered_by_position(dtype):
    """There are more of them than neighbours: some points do not find themselves."""
    X = np.repeat(np.arange(3, dtype=dtype), 20)[:, np.newaxis]
    found = SketchedMahalanobisNeighbors(5).fit(X).kneighbors(return_distance=False)
    for i, row in enumerate(found):
        same = [j for j in range(20 * (i // 20), 20 * (i // 20) + 20) if j != i]
        assert row.tolist() == same[:5]


@any_search
def test_n_neighbors_and_return_distance(kind):
    index = kind.fit(clustered(), n_neighbors=3)
    distances, indices = index.kneighbors(QUERIES, 7)
    assert distances.shape == (len(QUERIES), 7)
    assert_array_equal(index.kneighbors(QUERIES, 7, return_distance=False), indices)
    assert_array_equal(index.kneighbors(QUERIES)[1], indices[:, :3])
    assert index.set_params(n_neighbors=5).kneighbors(QUERIES)[1].shape[1] == 5


@any_search
@pytest.mark.parametrize("mode", ["connectivity", "distance"])
@pytest.mark.parametrize("own", [False, True], ids=["queries", "points"])
@pytest.mark.parametrize("within", [False, True], ids=["nearest", "radius"])
def test_graphs_agree_with_scikit_learn(kind, mode, own, within):
    index = kind.fit(clustered(), metric_learner=some_metric(), radius=4.0)
    name = "radius_neighbors_graph" if within else "kneighbors_graph"
    ours = getattr(index, name)(None if own else QUERIES, mode=mode)
    Q = None if own else under(index, QUERIES)
    theirs = getattr(brute(index, radius=4.0), name)(Q, mode=mode)
    assert ours.format == "csr"
    assert ours.shape == theirs.shape
    assert ours.nnz == theirs.nnz
    assert_allclose(ours.toarray(), theirs.toarray(), atol=1e-9)


def test_a_budget_of_candidates_trades_recall_for_time():
    X, Q = normal(400, 64, seed=1), normal(50, 64, seed=2)
    exact = SketchedMahalanobisNeighbors(10, **{**SKETCHED, "m": 4}).fit(X)
    distances = oracle_of(exact).query_all(Q)
    nearest = exact.kneighbors(Q, return_distance=False)
    recalls = []
    for budget in (10, 30, 100, 250, 400, 1000):
        index = clone(exact).set_params(n_candidates=budget).fit(X)
        assert index.engine_ == "sketched"
        found, indices = index.kneighbors(Q)
        named = np.take_along_axis(distances, indices, axis=1)
        assert_allclose(found, named, rtol=1e-12)
        assert (np.diff(found) >= 0).all()
        hits = [np.isin(*pair).mean() for pair in zip(indices, nearest, strict=True)]
        recalls.append(np.mean(hits))
    # More candidates are a superset, so that no query may lose by them.
    assert (np.diff(recalls) >= 0).all()
    assert recalls[0] < 0.8
    assert recalls[-1] == recalls[-2] == 1


def test_a_budget_counts_other_points_than_the_query():
    X = clustered()
    index = SketchedMahalanobisNeighbors(4, n_candidates=4, **SKETCHED).fit(X)
    distances, indices = index.kneighbors()
    assert distances.shape == (N, 4)
    assert (indices != np.arange(N)[:, np.newaxis]).all()
    exact = np.take_along_axis(oracle_of(index).query_all(X), indices, axis=1)
    assert_allclose(distances, exact, rtol=1e-12)


@pytest.mark.parametrize("n_candidates", ["certified", 5])
def test_sketches_that_save_nothing_are_not_used(n_candidates):
    params = {**SKETCHED, "m": K_ROWS, "n_candidates": n_candidates}
    index = SketchedMahalanobisNeighbors(metric_learner=some_metric(), **params)
    index.fit(clustered())
    assert index.engine_ == "exact"
    assert_exact_neighbours(index, oracle_of(index), QUERIES, np.float64)


# --- radius_neighbors ---------------------------------------------------------------


@any_search
@pytest.mark.parametrize("radius", [0.0, 2.0, 4.5, 30.0, 1e3, np.inf])
def test_radius_neighbors_agrees_with_scikit_learn(kind, radius):
    index = kind.fit(clustered(), metric_learner=some_metric(), radius=radius)
    peer = brute(index)
    expected = peer.radius_neighbors(under(index, QUERIES), radius)
    for ours, theirs in [
        (index.radius_neighbors(QUERIES), expected),
        (index.set_params(radius=9.0).radius_neighbors(QUERIES, radius), expected),
        (index.radius_neighbors(None, radius), peer.radius_neighbors(None, radius)),
    ]:
        assert ours[0].dtype == ours[1].dtype == object
        for row in range(len(ours[0])):
            order = np.argsort(theirs[1][row])
            assert_array_equal(ours[1][row], theirs[1][row][order])
            assert_allclose(ours[0][row], theirs[0][row][order], atol=1e-9)


@any_kind
def test_radius_neighbors_finds_all_points_within(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    oracle = oracle_of(index)
    exact = oracle.query_all(in_type(kind, QUERIES))
    atol = tolerance_of(oracle, kind.dtype)
    for radius in (2.0, 4.0, 20.0):
        distances, indices = index.radius_neighbors(QUERIES, radius)
        for row, found in enumerate(indices):
            assert set(np.flatnonzero(exact[row] < radius - atol)) <= set(found)
            assert (exact[row, found] <= radius + atol).all()
            assert_allclose(distances[row], exact[row, found], rtol=0, atol=atol)


@pytest.mark.slow
@any_kind
def test_a_point_is_at_distance_zero_of_itself(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    rng = np.random.default_rng(0)
    for _ in range(3):
        X = points_of(index)
        distances, indices = index.kneighbors(X, 1)
        assert (distances == 0).all()
        assert_array_equal(indices[:, 0], np.arange(N))
        assert (np.diag(index.distances(X)) == 0).all()
        assert (index.pair_distances(np.arange(N), np.arange(N)) == 0).all()
        distances, indices = index.radius_neighbors(X, 0.0)
        assert [found.tolist() for found in indices] == [[i] for i in range(N)]
        assert all((found == 0).all() for found in distances)
        index.update_metric(low_rank=(rng.normal(size=K_ROWS), rng.normal(size=D)))
        index.update_points([5], clustered(seed=3)[[5]])


@any_kind
def test_a_radius_includes_the_points_at_that_distance(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    for query in QUERIES:
        distances, indices = index.kneighbors([query])
        found = index.radius_neighbors([query], distances[0, -1], sort_results=True)
        assert_array_equal(found[1][0], indices[0])
        assert_array_equal(found[0][0], distances[0])


@any_search
def test_sorted_results_are_ordered_by_distance(kind):
    index = kind.fit(clustered(), metric_learner=some_metric(), radius=60.0)
    by_index = index.radius_neighbors(QUERIES, return_distance=False)
    distances, indices = index.radius_neighbors(QUERIES, sort_results=True)
    assert max(len(found) for found in indices) > PER_CLUSTER
    for row, found in enumerate(indices):
        assert (np.diff(distances[row]) >= 0).all()
        assert_array_equal(np.sort(found), by_index[row])
    graph = index.radius_neighbors_graph(QUERIES, mode="distance", sort_results=True)
    assert_array_equal(graph.indices, np.concatenate(indices))
    assert_array_equal(graph.data, np.concatenate(distances))


def test_radius_neighbors_of_equal_number_and_of_none():
    index = SketchedMahalanobisNeighbors().fit([[0.0], [1.0], [10.0]])
    distances, indices = index.radius_neighbors([[0.0], [1.0], [0.5]], 1.0)
    assert [found.tolist() for found in indices] == [[0, 1], [0, 1], [0, 1]]
    assert distances.shape == indices.shape == (3,)
    assert [len(found) for found in index.radius_neighbors([[5.0]], 1.0)[1]] == [0]
    assert index.radius_neighbors_graph([[5.0]], 1.0).nnz == 0


# --- estimated distances ------------------------------------------------------------


@pytest.mark.parametrize("sketch", ["gaussian", "rademacher"])
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distances_keep_the_promise(sketch, storage, dtype):
    X = normal(200, WIDE, seed=5).astype(dtype)
    X = sparse.csr_matrix(X) if storage == "csr" else X
    # The bound for signs is weaker, and would need more rows than is worthwhile.
    params = {"eps": 0.7, "L": 3} if sketch == "rademacher" else {}
    params = promising(sketch=sketch, **params)
    index = SketchedMahalanobisNeighbors(**params).fit(X)
    assert index.engine_ == "sketched"
    Q = normal(40, WIDE, seed=6).astype(dtype)
    ratios = index.distances(Q) / oracle_of(index).query_all(Q)
    assert ratios.shape == (40, 200)
    assert np.abs(ratios - 1).max() <= index.eps
    assert np.abs(ratios - 1).max() > 0.02  # estimates, not brute force
    i, j = np.divmod(np.arange(0, 200 * 200, 37), 200)
    i, j = i[i != j], j[i != j]
    ratios = index.pair_distances(i, j) / oracle_of(index).query_pair(i, j)
    assert np.abs(ratios - 1).max() <= index.eps
    assert np.abs(ratios - 1).max() > 0.02


def test_distances_keep_the_promise_while_metric_and_points_change():
    index, rng = estimating(lead=5), np.random.default_rng(0)
    for _ in range(5):
        index.update_metric(low_rank=tuple(rng.normal(size=(2, WIDE)) / 5))
        index.partial_fit(rng.normal(size=(10, WIDE)))
        index.update_points([3, 9], rng.normal(size=(2, WIDE)))
        index.remove_points([0, 50])
        Q = rng.normal(size=(10, WIDE))
        ratios = index.distances(Q) / oracle_of(index).query_all(Q)
        assert np.abs(ratios - 1).max() <= index.eps
    assert index.n_samples_fit_ == 240


@any_kind
def test_distances_are_exact_if_estimates_would_cost_more(kind):
    index = kind.fit(clustered(), metric_learner=some_metric(), m="auto", R="auto")
    assert index.m_ * index.R_ >= K_ROWS
    assert index.engine_ == "exact"
    oracle = oracle_of(index)
    exact = oracle.query_all(in_type(kind, QUERIES))
    rtol = 1e-3 if kind.dtype == np.float32 else 1e-7
    assert_allclose(index.distances(QUERIES), exact, rtol)
    i, j = np.arange(50), np.arange(150, 200)
    assert_allclose(index.pair_distances(i, j), oracle.query_pair(i, j), rtol)
    assert index.score(QUERIES) == pytest.approx(1, abs=rtol)


@any_kind
def test_pair_distances_broadcast(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    pairs = index.pair_distances([[0], [1], [2]], [10, 20])
    assert pairs.shape == (3, 2)
    assert np.ndim(index.pair_distances(1, 20)) == 0
    rtol = 1e-5 if kind.dtype == np.float32 else 1e-12
    for i, j in ((1, 20), (20, 1), (1 - N, 20 - N)):
        assert_allclose(index.pair_distances(i, j), pairs[1, 1], rtol)
    assert index.pair_distances([], []).shape == (0,)


@pytest.mark.parametrize("sketch", ["gaussian", "rademacher", "countsketch", "srht"])
def test_score_is_one_less_the_mean_relative_error(sketch):
    index = estimating(sketch=sketch, m=16, R=3)
    Q = normal(20, WIDE, seed=6)
    exact = oracle_of(index).query_all(Q)
    expected = 1 - np.mean(np.abs(index.distances(Q) - exact) / exact)
    assert 0.5 < expected < 0.99
    assert index.score(Q) == pytest.approx(expected, abs=1e-9)
    assert index.score(Q, y=np.zeros(20)) == index.score(Q)


def test_score_counts_a_zero_distance_as_exact():
    index = estimating(m=16, R=3)
    Q = points_of(index)[:20]
    exact = oracle_of(index).query_all(Q)
    np.fill_diagonal(exact[:, :20], 1)
    errors = np.abs(index.distances(Q) - exact) / exact
    np.fill_diagonal(errors[:, :20], 0)
    assert index.score(Q) == pytest.approx(1 - errors.mean(), abs=1e-9)


@pytest.mark.parametrize("lead", [0, 7])
def test_refreshing_changes_estimates_and_no_neighbours(lead):
    index = estimating(lead=lead, n_neighbors=3, m=16, n_candidates="certified")
    Q = normal(10, WIDE, seed=6)
    neighbours, estimates = index.kneighbors(Q), index.distances(Q)
    assert index.refresh_sketches() is index
    assert np.isclose(index.distances(Q), estimates, rtol=1e-4).mean() < 0.1
    assert_array_equal(index.kneighbors(Q)[1], neighbours[1])
    assert_allclose(index.kneighbors(Q)[0], neighbours[0], rtol=1e-12)
    exact = oracle_of(index).query_all(Q)
    assert np.abs(index.distances(Q) / exact - 1).mean() < 0.2


# --- sampling and sums --------------------------------------------------------------


@any_kind
@pytest.mark.parametrize("power", [1, 2])
def test_samples_are_proportional_to_distance(kind, power):
    index = kind.fit(clustered(), metric_learner=some_metric())
    draws = index.sample(QUERIES[:2], 20_000, power=power, random_state=0)
    assert draws.shape == (2, 20_000)
    weights = oracle_of(index).query_all(in_type(kind, QUERIES[:2])) ** power
    for row in range(2):
        # The sixteen groups as cells, so that each expects hundreds of draws.
        counts = np.bincount(draws[row] // PER_CLUSTER, minlength=CLUSTERS)
        mass = weights[row].reshape(CLUSTERS, -1).sum(axis=1)
        mass, counts = mass[mass > 0.01 * mass.sum()], counts[mass > 0.01 * mass.sum()]
        expected = mass / mass.sum() * counts.sum()
        assert stats.chisquare(counts, expected).pvalue > 1e-6
        within = np.bincount(draws[row] % PER_CLUSTER, minlength=PER_CLUSTER)
        mass = weights[row].reshape(CLUSTERS, -1).sum(axis=0)
        expected = mass / mass.sum() * within.sum()
        assert stats.chisquare(within, expected).pvalue > 1e-6


def test_samples_are_fresh_unless_seeded():
    index = SketchedMahalanobisNeighbors().fit(clustered())
    one = index.sample(QUERIES, 40)
    assert one.shape == (len(QUERIES), 40)
    assert one.dtype == np.intp
    assert (index.sample(QUERIES, 40) != one).any()
    assert index.sample(QUERIES).shape == (len(QUERIES), 1)
    seeded = index.sample(QUERIES, 40, random_state=1)
    assert_array_equal(index.sample(QUERIES, 40, random_state=1), seeded)
    assert (index.sample(QUERIES, 40, random_state=2) != seeded).any()
    stream = np.random.RandomState(0)
    one = index.sample(QUERIES, 40, random_state=stream)
    assert (index.sample(QUERIES, 40, random_state=stream) != one).any()


@any_kind
def test_a_sample_never_is_the_query_itself(kind):
    index = kind.fit(clustered())
    for power in (1, 2):
        draws = index.sample(points_of(index)[:5], 3000, power, random_state=0)
        assert (draws != np.arange(5)[:, np.newaxis]).all()


def test_samples_are_uniform_if_all_distances_are_zero():
    index = SketchedMahalanobisNeighbors().fit(np.ones((4, 3)))
    counts = np.bincount(index.sample(np.ones((1, 3)), 4000, random_state=0)[0])
    assert stats.chisquare(counts).pvalue > 1e-6


# Parts of the tree's buckets of 128 points, whole ones with parts beside, and none.
RANGES = [(0, N), (0, 1), (3, 4), (7, 200), (0, 200), (128, N), (100, N), (9, 9)]


@any_kind
@pytest.mark.parametrize("power", [1, 2])
def test_sums_of_distances_are_exact(kind, power):
    index = kind.fit(clustered(), metric_learner=some_metric())
    powers = oracle_of(index).query_all(in_type(kind, QUERIES)) ** power
    rtol = 1e-4 if kind.dtype == np.float32 else 1e-10
    for start, stop in [*RANGES, (N, N)]:
        sums = index.sum_distances(QUERIES, start, stop, power)
        assert_allclose(sums, powers[:, start:stop].sum(axis=1), rtol)
    last = index.sum_distances(QUERIES, 5, power=power)
    assert_allclose(last, powers[:, 5:].sum(axis=1), rtol)
    squares = (powers ** (2 / power)).sum(axis=1)
    assert_allclose(index.sum_distances(QUERIES), squares, rtol)


# --- randomness, threads, memory ----------------------------------------------------


@any_search
def test_an_integer_seed_gives_the_same_results_on_every_run(kind):
    one, other = (kind.fit(clustered(), random_state=7) for _ in range(2))
    assert_same_results(one, other)


def test_seeds_determine_the_sketches():
    Q = normal(10, WIDE, seed=6)
    generators = [np.random.RandomState(0) for _ in range(2)]
    states = [0, 0, 1, None, None, *generators]
    estimates = [estimating(random_state=s, m=16).distances(Q) for s in states]
    same = [[np.allclose(one, other) for one in estimates] for other in estimates]
    expected = np.eye(7, dtype=bool)
    expected[:2, :2] = expected[5:, 5:] = True
    assert_array_equal(same, expected)


@any_search
def test_the_global_random_state_of_numpy_is_not_used(kind):
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()  # noqa: NPY002
    index = kind.fit(clustered(), random_state=None)
    index.update_metric(some_metric(k=D)).refresh_sketches()
    results(index)
    after = np.random.get_state()  # noqa: NPY002
    for one, other in zip(before, after, strict=True):
        assert_array_equal(one, other)


@any_kind
@pytest.mark.parametrize("n_jobs", [2, 3, -1])
def test_threads_give_the_results_of_one(kind, n_jobs):
    index = kind.fit(clustered(), metric_learner=some_metric())
    alone = results(index)
    threaded = results(index.set_params(n_jobs=n_jobs))
    assert_same_up_to_rounding(alone, threaded, kind.dtype)


@any_kind
def test_threads_agree_right_after_an_update(kind):
    X = np.vstack([clustered(), 30 * normal(600, D, seed=2)])
    Q = np.vstack([clustered(seed=1)[::3], 30 * normal(80, D, seed=3)])
    index = kind.fit(X, metric_learner=some_metric(), n_jobs=4)
    rng = np.random.default_rng(0)
    index.kneighbors(Q)
    for _ in range(3):
        index.update_metric(low_rank=(rng.normal(size=K_ROWS) / 5, rng.normal(size=D)))
        assert_exact_neighbours(index, oracle_of(index), Q, kind.dtype)


@any_kind
def test_results_do_not_depend_on_the_working_memory(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    expected = results(index)
    with config_context(working_memory=0.01):
        found = results(index)
    assert_same_up_to_rounding(expected, found, kind.dtype)


# --- numbers that are hard to represent ---------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("params", [EXACT, CERTIFIED], ids=["exact", "certified"])
@pytest.mark.parametrize("U", [None, some_metric()], ids=["euclidean", "array"])
def test_neighbours_are_exact_far_from_the_origin(dtype, params, U):
    X = clustered(offset=1e6, spread=10.0).astype(dtype)
    Q = clustered(offset=1e6, spread=10.0, seed=1)[::16].astype(dtype)
    index = SketchedMahalanobisNeighbors(metric_learner=U, **params).fit(X)
    oracle = oracle_of(index)
    exact = oracle.query_all(Q)
    distances, indices = index.kneighbors(Q)
    # Distances do not depend on the offset, so neither may their error.
    atol = 8 * (1e-13 if dtype == np.float64 else 1e-5) * exact.max()
    assert_allclose(distances, np.sort(exact)[:, :5], rtol=0, atol=atol)
    assert_allclose(distances, np.take_along_axis(exact, indices, 1), rtol=0, atol=atol)
    assert (index.kneighbors(X, 1)[0] == 0).all()
    rtol = 1e-9 if dtype == np.float64 else 1e-3
    assert_allclose(index.sum_distances(Q), (exact**2).sum(axis=1), rtol)


@any_kind
def test_constant_points_are_all_at_distance_zero(kind):
    index = kind.fit(np.full((50, D), 3.5))
    assert (index.kneighbors()[0] == 0).all()
    assert (index.distances(np.full((2, D), 3.5)) == 0).all()
    assert index.score(np.full((2, D), 3.5)) == 1


@pytest.mark.parametrize("params", [EXACT, CERTIFIED], ids=["exact", "certified"])
def test_one_point_is_enough(params):
    index = SketchedMahalanobisNeighbors(1, **params).fit(normal(1, D))
    assert_array_equal(index.kneighbors(normal(3, D))[1], [[0], [0], [0]])
    index.partial_fit(normal(4, D, seed=1)).remove_points([0, 1, 2])
    assert_array_equal(index.kneighbors(normal(4, D, seed=1)[2:], 1)[1], [[0], [1]])


@pytest.mark.parametrize("far", [1e15, 1e25, 1e38])
@pytest.mark.parametrize("params", [EXACT, SKETCHED, CERTIFIED])
def test_queries_far_away_are_right_or_refused(params, far):
    """Never a warning, and never a distance that is not a number."""
    index = SketchedMahalanobisNeighbors(**params).fit(clustered().astype(np.float32))
    Q = np.full((2, D), far, dtype=np.float32)
    exact = oracle_of(index).query_all(Q)
    for method in ("kneighbors", "distances", "sample", "score", "sum_distances"):
        try:
            found = getattr(index, method)(Q)
        except ValueError as error:
            assert "too large" in str(error)  # noqa: PT017
            continue
        if method == "kneighbors":
            assert_allclose(found[0], np.sort(exact)[:, :5], rtol=1e-5)
        elif method == "distances":
            assert np.isfinite(found).all()
            assert (found > 0).all()
        elif method == "sum_distances":
            assert_allclose(found, (exact**2).sum(axis=1), rtol=1e-4)


# --- as a scikit-learn estimator ----------------------------------------------------


def test_fitted_attributes_are_consistent():
    index = SketchedMahalanobisNeighbors(metric_learner=some_metric(), **LED)
    index.fit(clustered())
    assert (index.n_samples_fit_, index.n_features_in_) == (N, D)
    assert index.components_.shape == (K_ROWS, D)
    assert (index.m_, index.L_, index.R_, index.lead_) == (6, 5, 1, 4)
    assert index.engine_ == "sketched"
    assert not hasattr(index, "feature_names_in_")
    index.set_params(m="auto", R="auto", lead="auto", delta=0.01).fit(clustered())
    assert index.m_ * index.R_ >= K_ROWS
    assert index.engine_ == "exact"


def test_more_points_need_more_votes():
    index = SketchedMahalanobisNeighbors(m=24, L=25, lead=0).fit(normal(20, D))
    before = index.R_
    assert before % 2 == 1
    index.partial_fit(np.zeros((20_000, D)))
    assert before < index.R_ <= index.L_


def test_parameters_take_effect_at_the_next_fit():
    index = SketchedMahalanobisNeighbors(metric_learner=some_metric(), **LED)
    expected = results(index.fit(clustered()))
    fitted = index.m_, index.L_, index.R_, index.lead_, index.engine_
    other = {"m": 3, "L": 9, "R": 7, "eps": 0.9, "delta": 0.5, "lead": 2}
    index.set_params(**other, sketch="srht", random_state=5)
    assert (index.m_, index.L_, index.R_, index.lead_, index.engine_) == fitted
    for one, two in zip(expected, results(index), strict=True):
        assert_array_equal(one, two)
    index.fit(clustered())
    assert (index.m_, index.L_, index.R_, index.lead_) == (3, 9, 7, 2)


@any_search
def test_a_refit_forgets_everything_before_it(kind):
    index = kind.fit(pd.DataFrame(clustered()).rename(columns=str).to_numpy())
    index.set_params(metric_learner=some_metric()).fit(
        pd.DataFrame(clustered(), columns=NAMES)
    )
    index.update_metric(some_metric(k=13)).remove_points(range(100))
    index.fit(clustered())
    assert not hasattr(index, "feature_names_in_")
    assert_same_results(index, kind.fit(clustered(), metric_learner=some_metric()))


@any_search
def test_clone_has_the_parameters_and_no_index(kind):
    index = kind.fit(clustered(), metric_learner=PCA(20))
    other = clone(index)
    with pytest.raises(NotFittedError):
        other.kneighbors(QUERIES)
    assert_same_results(other.fit(clustered()), index)


@any_kind
def test_pickle_keeps_every_result(kind):
    index = kind.fit(clustered(), metric_learner=some_metric())
    index.kneighbors(QUERIES)
    index.update_metric(normal(2, D), rows=[1, 2])
    other = pickle.loads(pickle.dumps(index))
    assert_same_up_to_rounding(results(other), results(index), kind.dtype)
    for one in (other, index):
        one.update_metric(low_rank=(normal(K_ROWS), normal(D)))
        one.partial_fit(clustered(seed=9)[:7])
        one.refresh_sketches()
    assert_same_up_to_rounding(results(other), results(index), kind.dtype)


READ_ONLY = """
import joblib, numpy as np, sys
index, Q, expected = joblib.load(sys.argv[1], mmap_mode="r")
distances, indices = index.kneighbors(Q)
np.testing.assert_array_equal(indices, expected)
index.update_metric(np.ones((1, Q.shape[1])), rows=[0])
index.update_points([3], Q[:1]).partial_fit(Q[1:3]).remove_points([0])
assert index.kneighbors(Q[:3], 1)[0].max() == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("params", [EXACT, CERTIFIED], ids=["exact", "certified"])
def test_arrays_of_a_mapped_file_are_replaced(params, storage, tmp_path):
    """A write to read-only memory ends the process, so this one has its own."""
    X = clustered() if storage == "dense" else sparse.csr_matrix(clustered())
    index = SketchedMahalanobisNeighbors(metric_learner=some_metric(), **params)
    index.fit(X).kneighbors(QUERIES)
    index.update_metric(normal(2, D), rows=[1, 2])
    expected = pickle.loads(pickle.dumps(index)).kneighbors(QUERIES)[1]
    joblib.dump((index, QUERIES, expected), tmp_path / "index")
    command = [sys.executable, "-c", READ_ONLY, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_ends_a_pipeline():
    X, Q = 5 + 3 * clustered(), 5 + 3 * QUERIES
    index = SketchedMahalanobisNeighbors(**SKETCHED)
    pipeline = make_pipeline(StandardScaler(), index).fit(X)
    scaler = StandardScaler().fit(X)
    alone = clone(index).fit(scaler.transform(X))
    assert pipeline[-1].engine_ == "sketched"
    assert_same_results(pipeline[-1], alone, scaler.transform(Q))
    assert pipeline.score(Q) == alone.score(scaler.transform(Q))


def test_grid_search_finds_the_larger_sketch():
    X = normal(120, 240, seed=1)
    grid = {"m": [4, 40], "L": [1, 5]}
    index = SketchedMahalanobisNeighbors(lead=0, R=1, random_state=0)
    search = GridSearchCV(index, grid, cv=3).fit(X)
    assert search.best_params_["m"] == 40
    scores = search.cv_results_["mean_test_score"]
    # The mean of |sqrt(χ²/m) - 1| is 0.27 for m = 4 and 0.09 for m = 40.
    assert_allclose(scores, [0.73, 0.91, 0.73, 0.91], atol=0.05)
    assert search.best_estimator_.engine_ == "sketched"
    assert search.score(X[:5]) == search.best_estimator_.score(X[:5])


NAMES = [f"x{i}" for i in range(D)]


def test_data_frames_give_the_names_of_features():
    X = pd.DataFrame(clustered(), columns=NAMES)
    index = SketchedMahalanobisNeighbors(**SKETCHED).fit(X)
    assert index.feature_names_in_.tolist() == NAMES
    Q = pd.DataFrame(QUERIES, columns=NAMES)
    plain = SketchedMahalanobisNeighbors(**SKETCHED).fit(X.to_numpy())
    assert_array_equal(index.kneighbors(Q)[1], plain.kneighbors(QUERIES)[1])
    with pytest.warns(UserWarning, match="feature names"):
        index.kneighbors(QUERIES)
    index.partial_fit(Q).update_points([0], Q[:1]).remove_points([1])
    for ask in (index.kneighbors, index.distances, index.partial_fit, index.score):
        with pytest.raises(ValueError, match="feature names"):
            ask(Q[NAMES[::-1]])


@any_kind
def test_many_updates_in_a_row(kind):
    rng = np.random.default_rng(0)
    index = kind.fit(clustered(), metric_learner=some_metric())
    index.distances(QUERIES)
    for _ in range(80):
        step = rng.normal(size=K_ROWS) / 50, rng.normal(size=D)
        index.update_metric(low_rank=step)
    assert_exact_neighbours(index, oracle_of(index), QUERIES, kind.dtype)
    index.check()


def test_sparse_points_get_transformed_rows_between_two_single_queries(monkeypatch):
    # Otherwise only indexes of millions of numbers ask how a single query begins.
    monkeypatch.setattr(base, "_LARGE", 0)
    rng = np.random.default_rng(0)
    X = sparse.random(4000, 200, 0.05, format="csr", random_state=0)
    U, q = rng.normal(size=(16, 200)), X[:1]
    index = SketchedMahalanobisNeighbors().fit(X)
    index.kneighbors(q)
    index.update_metric(U)
    truth = np.linalg.norm((X.toarray() - q.toarray()) @ U.T, axis=1)
    assert_allclose(index.kneighbors(q)[0][0], np.sort(truth)[:5], atol=1e-7)
