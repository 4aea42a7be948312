"""SketchedMahalanobisRegressor predicts as scikit-learn's exact kNN does."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.neighbors import KNeighborsRegressor

from skmahal import SketchedMahalanobisRegressor

from .cases import (
    SEARCHES,
    any_way,
    any_weights,
    by_rank,
    coarse_digits,
    normal,
    ranks_between,
    stored,
    ties_at,
    whole_metric,
)

any_outputs = pytest.mark.parametrize("outputs", ["one", "column", "three"])

# Means over ten neighbours, summed in another order.
ROUNDING = 20 * np.finfo(float).eps


def targets(outputs, n):
    shape = {"one": (n,), "column": (n, 1), "three": (n, 3)}[outputs]
    return normal(*shape, seed=7)


def fitted(search, X, y, **params):
    """A regressor, and the metric U it has."""
    U = whole_metric(d=X.shape[1])
    params = {"metric_learner": {"U": U}, **SEARCHES[search], **params}
    return SketchedMahalanobisRegressor(**params).fit(X, y), U


@pytest.mark.slow
@any_way
@any_weights
@any_outputs
@pytest.mark.parametrize("K", [1, 10])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_means_are_those_of_exact_knn_with_ties(search, weights, outputs, K, storage):
    X, _, Q = coarse_digits()
    y = targets(outputs, len(X))
    knn, U = fitted(search, stored(X, storage), y, n_neighbors=K, weights=weights)
    exact = by_rank(KNeighborsRegressor(K), X, y, U, weights)
    expected = exact.predict(ranks_between(Q, X, U))
    predicted = knn.predict(stored(Q, storage))
    assert predicted.shape == expected.shape
    assert_allclose(predicted, expected, rtol=0, atol=ROUNDING * np.abs(y).max())


@any_way
@any_weights
@any_outputs
def test_brute_force_agrees_wherever_the_neighbours_are_determined(
    search, weights, outputs
):
    X, _, Q = coarse_digits()
    y = targets(outputs, len(X))
    knn, U = fitted(search, X, y, weights=weights)
    brute = KNeighborsRegressor(algorithm="brute", weights=weights).fit(X @ U.T, y)
    certain = ~ties_at(5, Q, X, U)
    assert certain.sum() > 50
    expected = brute.predict(Q @ U.T)[certain]
    atol = ROUNDING * np.abs(y).max()
    assert_allclose(knn.predict(Q)[certain], expected, rtol=0, atol=atol)


@any_way
def test_whole_numbers_are_targets_too(search):
    X, y, Q = coarse_digits()
    knn, U = fitted(search, X, y)
    exact = by_rank(KNeighborsRegressor(), X, y, U)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, X, U)))


@any_way
@any_weights
def test_points_are_predicted_from_the_others(search, weights):
    X, y, _ = coarse_digits()
    knn, U = fitted(search, X, y, weights=weights)
    exact = by_rank(KNeighborsRegressor(), X, y, U, weights)
    assert_allclose(knn.predict(None), exact.predict(None), rtol=0, atol=9 * ROUNDING)


def test_no_weights_are_equal_weights():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisRegressor(weights=None).fit(X, y)
    assert_array_equal(knn.predict(Q), knn.set_params(weights="uniform").predict(Q))


def test_points_at_distance_zero_drive_out_all_others():
    X, y = [[0.0], [0.0], [1.0]], [1.0, 2.0, 50.0]
    knn = SketchedMahalanobisRegressor(3, weights="distance").fit(X, y)
    assert_allclose(knn.predict([[0.0], [1.0]]), [1.5, 50.0])


# --- targets that are added, replaced and removed with their points -----------------


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["dense", "csr"])
@any_outputs
@any_way
def test_targets_stay_with_their_points(search, storage, outputs):
    rng = np.random.default_rng(0)
    X, y = rng.integers(-9, 10, size=(60, 20)) * 1.0, targets(outputs, 60)
    Q = rng.integers(-9, 10, size=(20, 20)) * 1.0
    knn, U = fitted(search, stored(X, storage), y)
    for step in range(20):
        n, count = len(X), int(rng.integers(1, 12))
        new_X = rng.integers(-9, 10, size=(count, 20)) * 1.0
        new_y = rng.normal(size=(count, *y.shape[1:]))
        if step % 3 == 0:
            assert knn.partial_fit(stored(new_X, storage), new_y) is knn
            X, y = np.vstack([X, new_X]), np.concatenate([y, new_y])
        elif step % 3 == 1:
            where = rng.permutation(n)[:count] - n
            assert knn.update_points(where, stored(new_X, storage), new_y) is knn
            X[where], y[where] = new_X, new_y
        else:
            where = rng.integers(n, size=count)
            assert knn.remove_points(where) is knn
            X, y = np.delete(X, where, axis=0), np.delete(y, where, axis=0)
        if step % 7 == 3:
            U[0] = rng.integers(-1, 2, size=20)
            knn.update_metric(U[0], rows=0)
        exact = by_rank(KNeighborsRegressor(), X, y, U)
        expected = exact.predict(ranks_between(Q, X, U))
        atol = ROUNDING * np.abs(y).max()
        assert_allclose(knn.predict(Q), expected, rtol=0, atol=atol)


def test_the_first_partial_fit_is_fit():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisRegressor()
    assert knn.partial_fit(X, y) is knn
    assert_array_equal(knn.predict(Q), clone(knn).fit(X, y).predict(Q))


def test_fit_forgets_the_number_of_outputs():
    knn = SketchedMahalanobisRegressor(1).fit([[0.0], [1.0]], [[1.0, 2.0], [3.0, 4.0]])
    knn.fit([[0.0], [1.0]], [5.0, 6.0])
    assert_array_equal(knn.predict([[1.0]]), [6.0])


@pytest.mark.parametrize("dtype", [object, str])
def test_targets_are_copied_in_any_type(dtype):
    X, Y = normal(30, 4), normal(30, 2, seed=3)
    y = Y.copy()
    knn = SketchedMahalanobisRegressor(1).fit(X, y.astype(dtype))
    assert_allclose(knn.predict(X), Y)
    knn.fit(X, y).update_points([0], X[:1], [[7.0, 7.0]])
    assert_array_equal(y, Y)
    y[:] = 0
    assert_array_equal(knn.predict(X)[1:], Y[1:])
