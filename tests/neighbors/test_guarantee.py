"""The guarantee of an estimator is that of its index, and it holds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)

from .cases import normal, oracle_of

X, Y = normal(200, 400), np.arange(200) % 2
EVERY = [
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisRegressor,
]

# Sketches that suffice for adaptive queries, and still cost less than exact rows.
K = 80
SAFE = {"m": 8, "L": 917, "eps": 0.95, "delta": 0.1, "lead": 0, "random_state": 0}


def index_of(X=X, **params):
    return SketchedMahalanobisNeighbors(**{"random_state": 0, **params}).fit(X)


@pytest.mark.parametrize("estimator", EVERY)
def test_every_estimator_has_one_for_the_methods_it_has(estimator):
    params = {"m": 16, "R": 3, "lead": 0, "random_state": 0}
    exact = estimator(**params).fit(X, Y).guarantee()
    assert exact.fixed.kneighbors == exact.adaptive.kneighbors == 0
    params["n_candidates"] = "certified"
    found = estimator(**params).fit(X, Y).guarantee()
    assert (found.fixed.kneighbors, found.adaptive.kneighbors) == (0.01, 1)
    has_all = estimator is SketchedMahalanobisNeighbors
    assert (found.fixed.distances is not None) == has_all
    assert found.adaptive.radius_neighbors == (0 if has_all else None)
    assert "kneighbors" in str(found)


@pytest.mark.parametrize("estimator", EVERY)
def test_by_default_neighbours_are_promised_to_anybody(estimator):
    found = estimator().fit(X, Y).guarantee()
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 0
    assert found.R_neighbors == 0


@pytest.mark.parametrize("params", [{"m": 40}, {"m": 16, "R": 3, "lead": 7}, {"L": 3}])
def test_numbers_are_those_in_use(params):
    index = index_of(**params)
    found = index.guarantee()
    assert found.engine == index.engine_
    for name in ("m", "L", "R", "lead"):
        assert getattr(found, name) == getattr(index, f"{name}_")
    assert (found.n, found.k, found.eps, found.delta) == (200, 400, 0.2, 0.01)


def test_parameters_that_are_not_in_use_yet_are_not_promised():
    index = index_of(m=16).set_params(delta=0.5, eps=0.9, L=3, R=1, sketch="srht")
    found = index.guarantee()
    assert (found.delta, found.eps, found.L) == (0.01, 0.2, 10)
    assert found == index_of(m=16).guarantee()


def test_it_follows_points_and_metric():
    index = index_of(m=16, R=3, lead=0)
    before = index.guarantee()
    after = index.partial_fit(normal(200, 400, seed=1)).guarantee()
    assert after.n == 400
    assert after.fixed.distances == min(1, 400 * before.fixed.pair_distances)
    assert index.update_metric(normal(4, 400, seed=2)).guarantee().engine == "exact"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"metric_learner": normal(5, 400, seed=3)},  # exact distances
        {"m": 60},  # distances that cost less exactly
        {"m": 16, "R": 3, "n_candidates": 200},  # as many candidates as points
    ],
)
def test_what_is_promised_to_be_exact_is(params):
    index = index_of(**params)
    found, Q = index.guarantee(), X[:10] + normal(10, 400, seed=4)
    exact = oracle_of(index).query_all(Q)
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 0
    assert found.fixed.radius_neighbors == found.adaptive.radius_neighbors == 0
    assert_allclose(index.kneighbors(Q)[0], np.sort(exact)[:, :5], rtol=1e-9)
    if found.engine == "exact":
        assert_allclose(index.distances(Q), exact, rtol=1e-9)
        pairs = oracle_of(index).query_pair(np.arange(9), np.arange(50, 59))
        estimates = index.pair_distances(np.arange(9), np.arange(50, 59))
        assert_allclose(estimates, pairs, rtol=1e-9)


def test_a_budget_below_the_points_promises_nothing():
    found = index_of(m=16, R=3, lead=0, n_candidates=199).guarantee()
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 1


def test_following_the_advice_makes_an_index_safe():
    points, safe = normal(50, K), {name: SAFE[name] for name in SAFE if name != "L"}
    safe["n_candidates"] = "certified"
    few = index_of(points, L=10, **safe).guarantee()
    assert few.adaptive.kneighbors == few.adaptive.distances == 1
    assert few.sufficient_L == SAFE["L"]
    index = index_of(points, L=few.sufficient_L, **safe)
    found = index.guarantee()
    assert index.engine_ == "sketched"
    assert max(found.adaptive) <= 0.1 * (1 + 1e-12)
    assert found.R_neighbors > few.R_neighbors


def test_safe_sketches_keep_the_promise():
    index = index_of(normal(50, K), **SAFE, n_candidates="certified")
    Q = normal(100, K, seed=1)
    exact = oracle_of(index).query_all(Q)
    assert (np.abs(index.distances(Q) / exact - 1) <= 0.95).all()
    assert_allclose(index.kneighbors(Q)[0], np.sort(exact)[:, :5], rtol=1e-9)
