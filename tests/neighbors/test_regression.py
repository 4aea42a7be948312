"""SketchedMahalanobisRegressor predicts what scikit-learn's exact kNN predicts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import SketchedMahalanobisRegressor

from .cases import NOT_IN_THE_DEFAULT_SET, SMALLEST_SKETCH, normal
from .labelled import (
    ENGINES,
    assert_same_tags,
    bell,
    by_rank,
    coarse_digits,
    ranks_between,
    stored,
    ties_at,
    whole_metric,
)
from .test_bad_input import FailsToFit, assert_refused, call

CONFORMING = [
    SketchedMahalanobisRegressor(),
    SketchedMahalanobisRegressor(**SMALLEST_SKETCH),
    SketchedMahalanobisRegressor(weights="distance", m=1, L=3, random_state=0),
    SketchedMahalanobisRegressor(metric_learner=PCA(), n_jobs=2),
]

any_engine = pytest.mark.parametrize("engine", ENGINES)
any_weights = pytest.mark.parametrize(
    "weights", ["uniform", "distance", bell], ids=["uniform", "distance", "callable"]
)
any_outputs = pytest.mark.parametrize("outputs", ["one", "column", "three"])

# Means over ten neighbours, summed in another order.
ROUNDING = 20 * np.finfo(float).eps


@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("check", NOT_IN_THE_DEFAULT_SET, ids=lambda c: c.__name__)
def test_scikit_learn_conventions_that_are_not_checked_by_default(estimator, check):
    check("SketchedMahalanobisRegressor", clone(estimator))


def test_the_checks_meet_both_engines():
    X, y = normal(20, 3), normal(20)
    engines = [clone(estimator).fit(X, y).engine_ for estimator in CONFORMING]
    assert engines == ["exact", "sketched", "sketched", "exact"]


def test_the_tags_are_those_of_scikit_learn():
    assert_same_tags(SketchedMahalanobisRegressor(), KNeighborsRegressor())
    assert get_tags(SketchedMahalanobisRegressor()).classifier_tags is None


# --- the answers of scikit-learn's KNeighborsRegressor --------------------------------


def targets(outputs, n):
    shape = {"one": (n,), "column": (n, 1), "three": (n, 3)}[outputs]
    return normal(*shape, seed=7)


def fitted(engine, X, y, **params):
    """A regressor of the given engine, and the metric U it has."""
    k, settings = ENGINES[engine]
    U = whole_metric(k, X.shape[1])
    knn = SketchedMahalanobisRegressor(metric_learner=U, **{**settings, **params})
    knn.fit(X, y)
    assert knn.engine_ == engine.split("-")[0]
    return knn, U


@any_engine
@any_weights
@any_outputs
@pytest.mark.parametrize("K", [1, 10])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_means_are_those_of_exact_knn_with_ties(engine, weights, outputs, K, storage):
    X, _, Q = coarse_digits()
    y = targets(outputs, len(X))
    knn, U = fitted(engine, stored(X, storage), y, n_neighbors=K, weights=weights)
    exact = by_rank(KNeighborsRegressor(K), X, y, U, weights)
    expected = exact.predict(ranks_between(Q, X, U))
    predicted = knn.predict(stored(Q, storage))
    assert predicted.shape == expected.shape
    assert_allclose(predicted, expected, rtol=0, atol=ROUNDING * np.abs(y).max())


@any_engine
@any_weights
@any_outputs
def test_brute_force_agrees_wherever_the_neighbours_are_determined(
    engine, weights, outputs
):
    X, _, Q = coarse_digits()
    y = targets(outputs, len(X))
    knn, U = fitted(engine, X, y, weights=weights)
    brute = KNeighborsRegressor(algorithm="brute", weights=weights).fit(X @ U.T, y)
    certain = ~ties_at(5, Q, X, U)
    assert certain.sum() > 50
    expected = brute.predict(Q @ U.T)[certain]
    atol = ROUNDING * np.abs(y).max()
    assert_allclose(knn.predict(Q)[certain], expected, rtol=0, atol=atol)


@any_engine
def test_whole_numbers_are_targets_too(engine):
    X, y, Q = coarse_digits()
    knn, U = fitted(engine, X, y)
    exact = by_rank(KNeighborsRegressor(), X, y, U)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, X, U)))


@any_engine
@any_weights
def test_points_are_predicted_from_the_others(engine, weights):
    X, y, _ = coarse_digits()
    knn, U = fitted(engine, X, y, weights=weights)
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


# --- points with targets that come and go ---------------------------------------------


@pytest.mark.parametrize("storage", ["dense", "csr"])
@any_outputs
@any_engine
def test_targets_stay_with_their_points(engine, storage, outputs):
    rng = np.random.default_rng(0)
    X, y = rng.integers(-9, 10, size=(60, 20)) * 1.0, targets(outputs, 60)
    Q = rng.integers(-9, 10, size=(20, 20)) * 1.0
    knn, U = fitted(engine, stored(X, storage), y)
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


# --- bad input ------------------------------------------------------------------------

N, D = 30, 4
X, Q, U = normal(N, D), normal(3, D, seed=1), normal(3, D, seed=2)
Y = normal(N, 2, seed=3)

NOT_NUMBERS = {
    "NaN": np.nan,
    "None": None,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "NaN in text": "nan",
    "infinity in text": "inf",
    "text": "much",
}

BAD_CALLS = {
    "fit, other length": ("inconsistent numbers", call("fit", X, Y[:-1])),
    "fit, no targets": ("requires y to be passed", call("fit", X, None)),
    "fit, NaN": ("contains NaN", call("fit", X, np.full(N, np.nan))),
    "fit, text": ("could not convert string", call("fit", X, ["a"] * N)),
    "partial_fit, other length": (
        "inconsistent numbers",
        call("partial_fit", Q, Y[:2]),
    ),
    "partial_fit, no targets": ("requires y", call("partial_fit", Q, None)),
    "partial_fit, outputs": (
        "y has 1 outputs, expected 2",
        call("partial_fit", Q, Y[:3, 0]),
    ),
    "partial_fit, infinity": (
        "contains infinity",
        call("partial_fit", Q, np.full((3, 2), np.inf)),
    ),
    "update_points, other length": (
        "inconsistent numbers",
        call("update_points", [0, 1, 2], Q, Y[:1]),
    ),
    "update_points, outputs": (
        "y has 3 outputs, expected 2",
        call("update_points", [0, 1, 2], Q, np.ones((3, 3))),
    ),
    "update_points, positions": (
        "one for each of indices",
        call("update_points", [0, 1], Q, Y[:3]),
    ),
    "remove_points, all": ("every one of the 30", call("remove_points", range(N))),
}


def small(engine):
    settings = SMALLEST_SKETCH if engine == "sketched" else {}
    knn = SketchedMahalanobisRegressor(metric_learner=U, random_state=0, **settings)
    knn.fit(X, Y).predict(Q)
    assert knn.engine_ == engine
    return knn


@pytest.mark.parametrize("engine", ["exact", "sketched"])
@pytest.mark.parametrize("bad", BAD_CALLS)
def test_bad_input_is_refused_and_changes_nothing(bad, engine):
    names, refused = BAD_CALLS[bad]
    assert_refused(small(engine), refused, ValueError, names)


@pytest.mark.parametrize("what", NOT_NUMBERS)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("dtype", [object, str])
def test_targets_that_are_no_numbers_are_refused(what, method, dtype):
    y = Y.astype(dtype)
    y[3, 1] = NOT_NUMBERS[what]
    assert_refused(small("exact"), call(method, X, y), ValueError, r"\by\b")
    unfitted = SketchedMahalanobisRegressor()
    assert_refused(unfitted, call(method, X, y[:, 1]), ValueError, r"\by\b")


@pytest.mark.parametrize("dtype", [object, str])
def test_targets_are_copied_in_any_type(dtype):
    y = Y.copy()
    knn = SketchedMahalanobisRegressor(1).fit(X, y.astype(dtype))
    assert_allclose(knn.predict(X), Y)
    knn.fit(X, y).update_points([0], X[:1], [[7.0, 7.0]])
    assert_array_equal(y, Y)
    y[:] = 0
    assert_array_equal(knn.predict(X)[1:], Y[1:])


def test_a_learner_that_fails_shows_its_error():
    knn = SketchedMahalanobisRegressor(metric_learner=FailsToFit())
    assert_refused(knn, call("fit", X, Y), RuntimeError, "the learner failed")
    with pytest.raises(NotFittedError):
        knn.predict(Q)
    knn = small("exact").set_params(metric_learner=FailsToFit())
    assert_refused(knn, call("fit", X, Y[:, 0]), RuntimeError, "the learner failed")


def test_weights_of_zero_are_refused():
    knn = SketchedMahalanobisRegressor(weights=np.zeros_like).fit(X, Y)
    knn.kneighbors(Q)
    assert_refused(knn, call("predict", Q), ValueError, "weights must not be zero")


BAD_WEIGHTS = {
    "NaN": (lambda distances: np.full_like(distances, np.nan), "weights contains NaN"),
    "infinity": (lambda d: np.where(d, 1 / d, np.inf) + np.inf, "weights contains"),
    "text": (lambda d: np.full(d.shape, "a"), "weights must be an array of numbers"),
    "sum": (
        lambda d: d - d.mean(axis=1, keepdims=True),
        "weights must not sum to zero",
    ),
    "name": ("bad", "weights must be 'uniform', 'distance', None or a function"),
    "number": (2.0, "weights must be 'uniform', .* got 2.0"),
}


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_weights_that_are_no_weights_are_refused(what):
    weights, names = BAD_WEIGHTS[what]
    # Distances 1 and 3, whose differences from their mean sum to zero exactly.
    knn = SketchedMahalanobisRegressor(2).fit([[0.0], [4.0]], [1.0, 2.0])
    knn.predict([[1.0]])
    knn.set_params(weights=weights)
    assert_refused(knn, call("predict", [[1.0]]), ValueError, names)
