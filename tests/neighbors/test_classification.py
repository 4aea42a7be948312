"""SketchedMahalanobisClassifier predicts what scikit-learn's exact kNN predicts."""

import pickle

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import SketchedMahalanobisClassifier
from skmahal.neighbors import _classification

from .cases import (
    EXACT,
    NOT_IN_THE_DEFAULT_SET,
    SKETCHED,
    SMALLEST_SKETCH,
    clustered,
    labels,
    normal,
    peak,
    some_metric,
)
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
    SketchedMahalanobisClassifier(),
    SketchedMahalanobisClassifier(**SMALLEST_SKETCH),
    SketchedMahalanobisClassifier(weights="distance", m=1, L=3, random_state=0),
    SketchedMahalanobisClassifier(metric_learner=PCA(), n_jobs=2),
]

OF_CLASSIFIERS = [
    *NOT_IN_THE_DEFAULT_SET,
    estimator_checks.check_classifiers_multilabel_output_format_predict,
    estimator_checks.check_classifiers_multilabel_output_format_predict_proba,
]

any_engine = pytest.mark.parametrize("engine", ENGINES)
any_weights = pytest.mark.parametrize(
    "weights", ["uniform", "distance", bell], ids=["uniform", "distance", "callable"]
)


@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("check", OF_CLASSIFIERS, ids=lambda c: c.__name__)
def test_scikit_learn_conventions_that_are_not_checked_by_default(estimator, check):
    check("SketchedMahalanobisClassifier", clone(estimator))


def test_the_checks_meet_both_engines():
    X, y = normal(20, 3), np.arange(20) % 2
    engines = [clone(estimator).fit(X, y).engine_ for estimator in CONFORMING]
    assert engines == ["exact", "sketched", "sketched", "exact"]


def test_the_tags_are_those_of_scikit_learn():
    assert_same_tags(SketchedMahalanobisClassifier(), KNeighborsClassifier())


# --- the answers of scikit-learn's KNeighborsClassifier -------------------------------


def fitted(engine, X, y, **params):
    """A classifier of the given engine, and the metric U it has."""
    k, settings = ENGINES[engine]
    U = whole_metric(k, X.shape[1])
    knn = SketchedMahalanobisClassifier(metric_learner=U, **{**settings, **params})
    knn.fit(X, y)
    assert knn.engine_ == engine.split("-")[0]
    return knn, U


@any_engine
@any_weights
@pytest.mark.parametrize("K", [1, 4, 10])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_labels_are_those_of_exact_knn_to_the_last_tie(engine, weights, K, storage):
    X, y, Q = coarse_digits()
    knn, U = fitted(engine, stored(X, storage), y, n_neighbors=K, weights=weights)
    exact = by_rank(KNeighborsClassifier(K), X, y, U, weights)
    ranks = ranks_between(Q, X, U)
    assert_array_equal(knn.predict(stored(Q, storage)), exact.predict(ranks))
    shares = knn.predict_proba(stored(Q, storage))
    assert_allclose(shares, exact.predict_proba(ranks), rtol=0, atol=1e-15)


def test_the_data_has_ties_of_distances_and_of_votes():
    X, y, Q = coarse_digits()
    U = whole_metric(2)
    assert ties_at(4, Q, X, U).sum() > 50
    assert ties_at(4, Q, X, whole_metric(12)).sum() > 3
    shares = np.sort(
        by_rank(KNeighborsClassifier(4), X, y, U).predict_proba(ranks_between(Q, X, U))
    )
    assert (shares[:, -1] == shares[:, -2]).sum() > 20


@any_engine
@any_weights
def test_brute_force_agrees_wherever_the_neighbours_are_determined(engine, weights):
    X, y, Q = coarse_digits()
    knn, U = fitted(engine, X, y, weights=weights)
    brute = KNeighborsClassifier(algorithm="brute", weights=weights).fit(X @ U.T, y)
    certain = ~ties_at(5, Q, X, U)
    assert certain.sum() > 50
    assert_array_equal(knn.predict(Q)[certain], brute.predict(Q @ U.T)[certain])
    shares, expected = knn.predict_proba(Q), brute.predict_proba(Q @ U.T)
    assert_allclose(shares[certain], expected[certain], rtol=0, atol=1e-15)
    assert_array_equal(knn.classes_, brute.classes_)


@any_engine
@any_weights
def test_labels_may_be_strings(engine, weights):
    X, y, Q = coarse_digits()
    names = np.array([f"digit {9 - one}" for one in range(10)])
    knn, U = fitted(engine, X, names[y], weights=weights)
    exact = by_rank(KNeighborsClassifier(), X, names[y], U, weights)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, X, U)))
    assert_array_equal(knn.classes_, np.sort(names))
    of_objects, _ = fitted(engine, X, names[y].astype(object), weights=weights)
    assert_array_equal(of_objects.predict(Q), knn.predict(Q))


@any_engine
@any_weights
def test_outputs_may_be_many(engine, weights):
    X, y, Q = coarse_digits()
    both = np.stack([y, y % 3], axis=1)
    knn, U = fitted(engine, X, both, weights=weights)
    exact = by_rank(KNeighborsClassifier(), X, both, U, weights)
    ranks = ranks_between(Q, X, U)
    assert_array_equal(knn.predict(Q), exact.predict(ranks))
    shares, expected = knn.predict_proba(Q), exact.predict_proba(ranks)
    assert isinstance(shares, list)
    for one, other in zip(shares, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-15)
    for one, other in zip(knn.classes_, exact.classes_, strict=True):
        assert_array_equal(one, other)


def test_labels_in_one_column_are_one_output():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisClassifier()
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        knn.fit(X, y[:, np.newaxis])
    assert_array_equal(knn.predict(Q), clone(knn).fit(X, y).predict(Q))
    assert knn.outputs_2d_ is False


@any_engine
@any_weights
def test_points_are_classified_by_the_others(engine, weights):
    X, y, _ = coarse_digits()
    knn, U = fitted(engine, X, y, weights=weights)
    ranks = ranks_between(X, X, U)
    exact = by_rank(KNeighborsClassifier(), X, y, U, weights)
    assert_array_equal(knn.predict(None), exact.predict(None))
    # As many neighbours with the point itself among them are other neighbours.
    assert (knn.predict(X) != exact.predict(None)).any()
    assert_array_equal(knn.predict(X), exact.predict(ranks))


@any_engine
@pytest.mark.parametrize("weights", ["uniform", bell], ids=["uniform", "callable"])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "mixed"])
def test_duplicates_are_classified_as_scikit_learn_does(engine, weights, alike):
    """Four copies of every point, with one label, or with many and all as neighbours.

    Which copies are the neighbours is left to chance by scikit-learn.
    """
    K = 6 if alike else 8
    X = np.repeat(normal(250, 20, seed=1), 4, axis=0)
    y = np.arange(1000) // 4 * 7 % 5 if alike else np.arange(1000) * 7 // 3 % 5
    Q = np.vstack([X[::4], normal(250, 20, seed=2)])
    knn, U = fitted(engine, X, y, n_neighbors=K, weights=weights)
    brute = KNeighborsClassifier(K, weights=weights, algorithm="brute")
    brute.fit(X @ U.T, y)
    shares = brute.predict_proba(Q @ U.T)
    assert_allclose(knn.predict_proba(Q), shares, rtol=0, atol=1e-7)
    first, second = np.sort(shares)[:, :-3:-1].T
    certain = first - second > 1e-6
    assert certain.mean() > 0.4
    assert_array_equal(knn.predict(Q)[certain], brute.predict(Q @ U.T)[certain])


def test_no_weights_are_equal_weights():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisClassifier(weights=None).fit(X, y)
    equal = clone(knn).set_params(weights="uniform").fit(X, y)
    assert_array_equal(knn.predict(Q), equal.predict(Q))
    assert_array_equal(knn.predict_proba(Q), equal.predict_proba(Q))


def test_points_at_distance_zero_outvote_all_others():
    X = np.array([[0.0], [0.0], [0.0], [1e-150], [1.0]])
    knn = SketchedMahalanobisClassifier(5, weights="distance").fit(X, [0, 1, 1, 2, 2])
    assert_allclose(knn.predict_proba([[0.0]]), [[1 / 3, 2 / 3, 0]])
    assert_array_equal(knn.predict([[0.0]]), [1])
    assert_array_equal(knn.predict([[1.0]]), [2])


def test_votes_are_compared_before_they_are_rounded_to_shares():
    """Votes may differ in the last bit and their shares not at all."""
    votes = np.array([[5 / 11, np.nextafter(5 / 11, 1), 15 / 44]])
    knn = SketchedMahalanobisClassifier(3, weights=lambda distances: votes)
    knn.fit([[0.0], [1.0], [2.0]], [0, 1, 2])
    [shares] = knn.predict_proba([[0.0]])
    assert shares[0] == shares[1]
    assert_array_equal(knn.predict([[0.0]]), [1])


@any_engine
def test_float32_points_give_the_labels_of_float64(engine):
    X, y, Q = coarse_digits()
    knn, _ = fitted(engine, X.astype(np.float32), y, weights="distance")
    assert knn.components_.dtype == np.float32
    wide, _ = fitted(engine, X, y, weights="distance")
    assert_array_equal(knn.predict(Q), wide.predict(Q))


@any_engine
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_float64_points_join_those_of_float32(engine, storage):
    X, y, Q = coarse_digits()
    knn, U = fitted(engine, stored(X[:300].astype(np.float32), storage), y[:300])
    knn.predict(Q)
    knn.partial_fit(stored(X[300:], storage), y[300:])
    knn.update_points([0, 1], stored(X[[1, 0]], storage), y[[1, 0]])
    assert X.dtype == np.float64
    assert knn._engine.X.dtype == np.float32
    now, labels_now = X.copy(), y.copy()
    now[:2], labels_now[:2] = X[[1, 0]], y[[1, 0]]
    exact = by_rank(KNeighborsClassifier(), now, labels_now, U)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, now, U)))


@any_engine
def test_threads_give_the_labels_of_one(engine):
    X, y, Q = coarse_digits()
    one, _ = fitted(engine, X, y)
    two, _ = fitted(engine, X, y, n_jobs=2)
    assert_array_equal(one.predict_proba(Q), two.predict_proba(Q))


# --- labelled points that come and go -------------------------------------------------


def test_the_first_partial_fit_is_fit():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisClassifier(**EXACT)
    assert knn.partial_fit(X, y) is knn
    assert_array_equal(knn.predict_proba(Q), clone(knn).fit(X, y).predict_proba(Q))


@any_engine
def test_classes_may_be_named_before_they_are_seen(engine):
    X, y, Q = coarse_digits()
    k, settings = ENGINES[engine]
    U = whole_metric(k)
    knn = SketchedMahalanobisClassifier(metric_learner=U, **settings)
    first = y < 5
    knn.partial_fit(X[first], y[first], classes=range(10))
    assert_array_equal(knn.classes_, np.arange(10))
    assert knn.predict_proba(Q).shape == (len(Q), 10)
    assert not knn.predict_proba(Q)[:, 5:].any()
    assert knn.partial_fit(X[~first], y[~first]) is knn
    order = np.concatenate([np.flatnonzero(first), np.flatnonzero(~first)])
    exact = by_rank(KNeighborsClassifier(), X[order], y[order], U)
    ranks = ranks_between(Q, X[order], U)
    assert_allclose(knn.predict_proba(Q), exact.predict_proba(ranks), atol=1e-15)


@pytest.mark.parametrize("again", [[2, 0, 1], [0, 1, 2, 2], np.array([0.0, 1, 2])])
def test_classes_may_be_repeated_in_any_order(again):
    knn = SketchedMahalanobisClassifier(1)
    knn.partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1, 2])
    knn.partial_fit([[2.0]], [2], classes=again)
    assert_array_equal(knn.predict([[0.0], [2.0]]), [0, 2])


def test_classes_of_many_outputs_are_a_list():
    knn = SketchedMahalanobisClassifier(1)
    y = np.array([["a", "x"], ["b", "x"]])
    knn.partial_fit([[0.0], [1.0]], y, classes=[["a", "b"], ["x", "y"]])
    knn.partial_fit([[2.0]], [["a", "y"]], classes=[["b", "a"], ["x", "y"]])
    assert_array_equal(knn.predict([[2.0]]), [["a", "y"]])


def test_fit_forgets_classes_and_outputs():
    knn = SketchedMahalanobisClassifier(1).partial_fit([[0.0]], [0], classes=[0, 1])
    knn.fit([[0.0], [1.0]], [["a", "b"], ["c", "d"]])
    assert_array_equal(knn.predict([[1.0]]), [["c", "d"]])
    knn.fit([[0.0], [1.0]], [3, 4])
    assert_array_equal(knn.classes_, [3, 4])


def test_partial_fit_does_not_learn_the_metric_again():
    X, y = clustered(), labels()
    knn = SketchedMahalanobisClassifier(metric_learner=PCA(3)).fit(X, y)
    before = knn.components_
    knn.partial_fit(100 * normal(50, X.shape[1]), y[:50])
    assert_array_equal(knn.components_, before)


class Plain:
    """Points and labels in arrays, and a step that changes both."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def step(self, rng, knn, storage, draw):
        n, count = len(self.X), int(rng.integers(1, 30))
        action = rng.choice(["add", "replace", "remove"])
        X, y = draw(rng, count)
        if action == "add":
            knn.partial_fit(stored(X, storage), y)
            self.X, self.y = np.vstack([self.X, X]), np.concatenate([self.y, y])
        elif action == "replace":
            where = rng.permutation(n)[:count] - n * int(rng.integers(2))
            X, y = X[: len(where)], y[: len(where)]
            knn.update_points(where, stored(X, storage), y)
            self.X[where], self.y[where] = X, y
        elif n > count + 40:
            where = rng.integers(n, size=count)
            knn.remove_points(where)
            self.X = np.delete(self.X, where, axis=0)
            self.y = np.delete(self.y, where, axis=0)


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("n_outputs", [1, 2])
@any_engine
def test_labels_stay_with_their_points(engine, storage, n_outputs):
    rng = np.random.default_rng(0)

    def draw(rng, count):
        y = rng.integers(4, size=(count, 2))
        return rng.integers(-9, 10, size=(count, 20)) * 1.0, y if n_outputs == 2 else (
            y[:, 0]
        )

    plain = Plain(*draw(rng, 60))
    k, settings = ENGINES[engine]
    U = whole_metric(k, 20)
    knn = SketchedMahalanobisClassifier(metric_learner=U, **settings)
    knn.fit(stored(plain.X, storage), plain.y)
    Q = draw(rng, 20)[0]
    for step in range(30):
        plain.step(rng, knn, storage, draw)
        if step % 10 == 4:
            U[0] = rng.integers(-1, 2, size=20)
            knn.update_metric(U[0], rows=0)
        assert knn.n_samples_fit_ == len(plain.X)
        exact = by_rank(KNeighborsClassifier(), plain.X, plain.y, U)
        expected = exact.predict(ranks_between(Q, plain.X, U))
        assert_array_equal(knn.predict(Q), expected)


@any_engine
@pytest.mark.parametrize("mmap_mode", [None, "r"])
def test_a_stored_classifier_goes_on(engine, mmap_mode, tmp_path):
    X, y, Q = coarse_digits()
    knn, U = fitted(engine, X, y)
    knn.predict(Q)
    joblib.dump(knn, tmp_path / "knn")
    back = joblib.load(tmp_path / "knn", mmap_mode=mmap_mode)
    for one in (back, pickle.loads(pickle.dumps(knn))):
        assert_array_equal(one.predict_proba(Q), knn.predict_proba(Q))
        one.update_points([3, 4], X[[5, 6]], y[[5, 6]])
        one.partial_fit(Q[:9], y[:9]).remove_points([0])
        now = np.delete(np.vstack([X, Q[:9]]), 0, axis=0)
        labels_now = np.delete(np.concatenate([y, y[:9]]), 0)
        now[[2, 3]], labels_now[[2, 3]] = X[[5, 6]], y[[5, 6]]
        exact = by_rank(KNeighborsClassifier(), now, labels_now, U)
        assert_array_equal(one.predict(Q), exact.predict(ranks_between(Q, now, U)))


# --- memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(("storage", "n_jobs"), [("dense", 1), ("csr", 2)])
@pytest.mark.parametrize("params", [EXACT, SKETCHED], ids=["exact", "sketched"])
def test_queries_by_points_is_never_held(params, storage, n_jobs):
    """2,000 × 20,000 distances would be 153 MiB; the answers are less than 1."""
    centres = 30 * normal(100, 30)
    X = np.repeat(centres, 200, axis=0) + normal(20_000, 30, seed=1)
    Q = np.repeat(centres, 20, axis=0) + normal(2_000, 30, seed=2)
    y = np.repeat(np.arange(100) % 3, 200)
    knn = SketchedMahalanobisClassifier(n_jobs=n_jobs, **params)
    knn.fit(X.astype(np.float32), y)
    Q = stored(Q.astype(np.float32), storage)
    knn.predict(Q[:200])  # what is derived from the points belongs to the index
    with config_context(working_memory=8):
        assert peak(knn.predict_proba, Q) < 8 + 1


@pytest.mark.parametrize(
    "params",
    [{**SKETCHED, "m": 16}, {**EXACT, "metric_learner": some_metric(4, 5_120)}],
    ids=["sketched", "exact"],
)
def test_sparse_points_are_never_made_dense_as_a_whole(params):
    """20,000 × 5,120 numbers in float32 are 391 MiB; 25 of each row are 4."""
    n, d, rng = 20_000, 5_120, np.random.default_rng(0)
    where = np.repeat(np.arange(n), 25), rng.integers(d, size=25 * n)
    X = sparse.csr_matrix((rng.random(25 * n, np.float32), where), shape=(n, d))
    y, dense = np.arange(n) % 3, n * d * 4 / 2**20
    knn = SketchedMahalanobisClassifier(**params)

    def learn_and_answer():
        knn.fit(X, y)
        knn.predict(X[:10])
        knn.partial_fit(X[:5], y[:5]).predict(X[:2])

    with config_context(working_memory=16):
        assert peak(learn_and_answer) < dense / 3
    assert_array_equal(knn.kneighbors(X[:9], 1)[1].ravel(), np.arange(9))


def test_leading_directions_are_of_a_sample_of_sparse_points():
    """2,000 × 5,120 numbers in float32 are 39 MiB."""
    n, d, rng = 2_000, 5_120, np.random.default_rng(0)
    where = np.repeat(np.arange(n), 25), rng.integers(d, size=25 * n)
    X = sparse.csr_matrix((rng.random(25 * n, np.float32), where), shape=(n, d))
    knn = SketchedMahalanobisClassifier(m=16, L=2, lead=8)
    with config_context(working_memory=4):
        assert peak(knn.fit, X, np.arange(n) % 3) < 39 * 3 / 4
    assert knn.lead_ == 8


def test_sparse_queries_are_made_dense_a_batch_at_a_time():
    """2,000 × 5,120 numbers in float32 are 39 MiB, and a batch of its own 16."""
    n, d = 2_000, 5_120
    where = np.arange(n), np.arange(n)
    Q = sparse.csr_matrix((np.ones(n, np.float32), where), shape=(n, d))
    U = some_metric(4, d)
    knn = SketchedMahalanobisClassifier(metric_learner=U).fit(Q[:50], np.arange(50) % 3)
    knn.predict(Q[:5])
    with config_context(working_memory=8):
        assert peak(knn.predict, Q) < 8 + 1


# --- bad input ------------------------------------------------------------------------

N, D = 30, 4
X, Q, U = normal(N, D), normal(3, D, seed=1), normal(3, D, seed=2)
Y = np.arange(N) % 3

BAD_CALLS = {
    "fit, other length": ("inconsistent numbers", call("fit", X, Y[:-1])),
    "fit, no labels": ("requires y to be passed", call("fit", X, None)),
    "fit, numbers": ("Unknown label type", call("fit", X, X[:, 0])),
    "fit, NaN": ("Input y contains NaN", call("fit", X, np.where(Y, Y, np.nan))),
    "fit, three dimensions": (
        "array with dim 3",
        call("fit", X, Y.reshape(-1, 1, 1)),
    ),
    "partial_fit, other length": (
        "inconsistent numbers",
        call("partial_fit", Q, [0, 1]),
    ),
    "partial_fit, no labels": ("requires y", call("partial_fit", Q, None)),
    "partial_fit, unseen": (
        r"y contains 7, which is not among the classes \[0, 1, 2\]",
        call("partial_fit", Q, [0, 7, 8]),
    ),
    "partial_fit, another type": (
        "y contains '1'",
        call("partial_fit", Q, list("110")),
    ),
    "partial_fit, numbers": ("y contains 0.5", call("partial_fit", Q, [0, 0.5, 1])),
    "partial_fit, outputs": (
        "y has 2 outputs, expected 1",
        call("partial_fit", Q, [[0, 1]] * 3),
    ),
    "partial_fit, more classes": (
        r"those of the first call, \[0, 1, 2\], got \[0, 1, 2, 3\]",
        call("partial_fit", Q, [0, 1, 2], classes=[0, 1, 2, 3]),
    ),
    "partial_fit, fewer classes": (
        "those of the first call",
        call("partial_fit", Q, [0, 1, 1], classes=[0, 1]),
    ),
    "partial_fit, ragged classes": (
        "classes must be an array",
        call("partial_fit", Q, [0, 1, 1], classes=[[0], [1, 2]]),
    ),
    "partial_fit, None": ("y contains None", call("partial_fit", Q, [0, 1, None])),
    "partial_fit, a fraction": (
        "y contains 0.5, which is not among",
        call("partial_fit", Q, np.array([0, 0.5, 1])),
    ),
    "partial_fit, below": ("y contains -1", call("partial_fit", Q, [0, 1, -1])),
    "partial_fit, classes of many": (
        "classes must be an array",
        call("partial_fit", Q, [0, 1, 1], classes=[[0, 1, 2]]),
    ),
    "partial_fit, features": (
        "X has 3 features",
        call("partial_fit", Q[:, :3], [0] * 3),
    ),
    "update_points, other length": (
        "inconsistent numbers",
        call("update_points", [0, 1, 2], Q, [0]),
    ),
    "update_points, positions": (
        "X has 3 rows, expected 2, one for each of indices",
        call("update_points", [0, 1], Q, [0, 1, 2]),
    ),
    "update_points, twice": (
        "indices: index 1",
        call("update_points", [0, 1, 1], Q, [0, 1, 2]),
    ),
    "update_points, unseen": (
        "y contains 5",
        call("update_points", [0, 1, 2], Q, [0, 5, 1]),
    ),
    "update_points, outputs": (
        "y has 2 outputs, expected 1",
        call("update_points", [0, 1, 2], Q, [[0, 1]] * 3),
    ),
    "remove_points, beyond": ("indices: index 30", call("remove_points", N)),
    "remove_points, all": ("every one of the 30", call("remove_points", range(N))),
    "predict, NaN": ("contains NaN", call("predict", np.full((1, D), np.nan))),
}


def small(engine):
    settings = SMALLEST_SKETCH if engine == "sketched" else {}
    knn = SketchedMahalanobisClassifier(
        metric_learner=U, random_state=0, **settings
    ).fit(X, Y)
    assert knn.engine_ == engine
    knn.predict(Q)
    return knn


@pytest.mark.parametrize("engine", ["exact", "sketched"])
@pytest.mark.parametrize("bad", BAD_CALLS)
def test_bad_input_is_refused_and_changes_nothing(bad, engine):
    names, refused = BAD_CALLS[bad]
    error = IndexError if "index 30" in names else ValueError
    assert_refused(small(engine), refused, error, names)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_learner_that_fails_shows_its_error(error):
    knn = SketchedMahalanobisClassifier(metric_learner=FailsToFit(error))
    assert_refused(knn, call("fit", X, Y), error, "the learner failed")
    assert_refused(knn, call("partial_fit", X, Y), error, "the learner failed")
    with pytest.raises(NotFittedError):
        knn.predict(Q)
    knn = small("sketched").set_params(metric_learner=FailsToFit(error))
    assert_refused(knn, call("fit", X, Y % 2), error, "the learner failed")


def test_sparse_labels_are_refused():
    knn = small("exact")
    sparse_labels = sparse.csr_matrix(np.eye(N))
    assert_refused(knn, call("fit", X, sparse_labels), TypeError, "y must be dense")


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
@pytest.mark.parametrize(
    ("weights", "names"),
    [
        (np.zeros_like, "weights must not be zero"),
        (lambda distances: distances[:, 0], "weights must give an array of the shape"),
        (lambda distances: np.nan * distances, "weights contains NaN or infinity"),
        (lambda distances: np.inf + distances, "weights contains NaN or infinity"),
        (lambda distances: 1j * distances, "weights must be real"),
        ("bad", "weights must be 'uniform', 'distance', None or a function, got 'bad'"),
        (np.ones(3), "weights must be 'uniform'"),
    ],
    ids=["zero", "shape", "NaN", "infinity", "complex", "name", "array"],
)
def test_weights_that_are_no_weights_are_refused(method, weights, names):
    knn = SketchedMahalanobisClassifier().fit(X, Y)
    knn.predict(Q)
    knn.set_params(weights=weights)
    assert_refused(knn, call(method, Q), ValueError, names)


def test_weights_that_sum_to_zero_make_votes_and_no_shares():
    """scikit-learn warns of a division by zero, and gives infinite shares."""

    def signed(distances):
        return np.tile([1.0, -1.0, 2.0, -2.0], (len(distances), 1))

    X, y = [[0.0], [1.0], [2.0], [3.0]], [2, 1, 2, 1]
    knn = SketchedMahalanobisClassifier(4, weights=signed).fit(X, y)
    theirs = KNeighborsClassifier(4, weights=signed).fit(X, y)
    assert_array_equal(knn.predict([[0.0]]), theirs.predict([[0.0]]))
    assert_array_equal(knn.predict([[0.0]]), [2])
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert not np.isfinite(theirs.predict_proba([[0.0]])).any()
    message = "weights must not sum to zero over the neighbours of a query"
    assert_refused(knn, call("predict_proba", [[0.0]]), ValueError, message)


@pytest.mark.parametrize("classes", [[[0, 1]], [0, 1], [[0, 1]] * 3, 3, "ab"])
def test_there_are_classes_for_every_output(classes):
    knn = SketchedMahalanobisClassifier()
    both = np.stack([Y % 2, Y % 2], axis=1)
    bad = call("partial_fit", X, both, classes=classes)
    assert_refused(knn, bad, ValueError, "classes must be a list of 2 arrays")


def test_more_neighbours_than_points_are_refused():
    knn = SketchedMahalanobisClassifier(N + 1).fit(X, Y)
    assert_refused(knn, call("predict", Q), ValueError, "n_neighbors")


@pytest.mark.parametrize("dtype", [int, str, object])
def test_of_many_classes_a_message_lists_ten(dtype):
    y = (np.arange(2000) // 2).astype(str).astype(dtype)
    knn = SketchedMahalanobisClassifier().fit(normal(2000, 2), y)
    unseen = np.array([1001]).astype(str).astype(dtype)
    with pytest.raises(ValueError, match=r"\.\.\.\] \(1000 in all\)") as error:
        knn.partial_fit(normal(1, 2), unseen)
    assert str(error.value).count(",") == 11
    with pytest.raises(ValueError, match="those of the first call") as error:
        knn.partial_fit(normal(1, 2), y[:1], classes=y[2:])
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("dtype", [int, np.int8, np.uint64, float, bool, "U9", "S9"])
def test_labels_that_sort_are_not_looked_up_one_by_one(dtype, monkeypatch):
    monkeypatch.setattr(_classification, "_looked_up", None)
    y = np.array([3, 0, 7, 7, 3]).astype(dtype)
    knn = SketchedMahalanobisClassifier(1)
    knn.fit(X[:5], y).partial_fit(X[5:10], y)
    assert_array_equal(knn.predict(X[:10]), np.concatenate([y, y]))


def test_a_label_of_another_kind_counts_as_what_it_is_equal_to():
    knn = SketchedMahalanobisClassifier(1).fit(X, Y)
    knn.partial_fit(Q, np.array([0.0, 1.0, 2.0])).partial_fit(-Q, [True, False, True])
    assert_array_equal(knn.predict(np.vstack([Q, -Q])), [0, 1, 2, 1, 0, 1])
