"""SketchedMahalanobisClassifier predicts as scikit-learn's exact kNN does."""

import pickle

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import DataConversionWarning
from sklearn.neighbors import KNeighborsClassifier

from skmahal import SketchedMahalanobisClassifier

from .cases import (
    EXACT,
    SEARCHES,
    any_way,
    any_weights,
    bell,
    by_rank,
    clustered,
    coarse_digits,
    labels,
    normal,
    ranks_between,
    stored,
    ties_at,
    whole_metric,
)


def fitted(search, X, y, **params):
    """A classifier, and the metric U it has."""
    U = whole_metric(d=X.shape[1])
    params = {"metric_learner": {"U": U}, **SEARCHES[search], **params}
    return SketchedMahalanobisClassifier(**params).fit(X, y), U


@pytest.mark.slow
@any_way
@any_weights
@pytest.mark.parametrize("K", [1, 4, 10])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_labels_are_those_of_exact_knn_to_the_last_tie(search, weights, K, storage):
    X, y, Q = coarse_digits()
    knn, U = fitted(search, stored(X, storage), y, n_neighbors=K, weights=weights)
    exact = by_rank(KNeighborsClassifier(K), X, y, U, weights)
    ranks = ranks_between(Q, X, U)
    assert_array_equal(knn.predict(stored(Q, storage)), exact.predict(ranks))
    shares = knn.predict_proba(stored(Q, storage))
    assert_allclose(shares, exact.predict_proba(ranks), rtol=0, atol=1e-15)


def test_the_data_has_ties_of_distances_and_of_votes():
    X, y, Q = coarse_digits()
    U = whole_metric(2)
    assert ties_at(4, Q, X, U).sum() > 50
    assert ties_at(4, Q, X, whole_metric()).sum() > 3
    shares = np.sort(
        by_rank(KNeighborsClassifier(4), X, y, U).predict_proba(ranks_between(Q, X, U))
    )
    assert (shares[:, -1] == shares[:, -2]).sum() > 20


@any_way
@any_weights
def test_brute_force_agrees_wherever_the_neighbours_are_determined(search, weights):
    X, y, Q = coarse_digits()
    knn, U = fitted(search, X, y, weights=weights)
    brute = KNeighborsClassifier(algorithm="brute", weights=weights).fit(X @ U.T, y)
    certain = ~ties_at(5, Q, X, U)
    assert certain.sum() > 50
    assert_array_equal(knn.predict(Q)[certain], brute.predict(Q @ U.T)[certain])
    shares, expected = knn.predict_proba(Q), brute.predict_proba(Q @ U.T)
    assert_allclose(shares[certain], expected[certain], rtol=0, atol=1e-15)
    assert_array_equal(knn.classes_, brute.classes_)


@any_way
@any_weights
def test_labels_may_be_strings(search, weights):
    X, y, Q = coarse_digits()
    names = np.array([f"digit {9 - one}" for one in range(10)])
    knn, U = fitted(search, X, names[y], weights=weights)
    exact = by_rank(KNeighborsClassifier(), X, names[y], U, weights)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, X, U)))
    assert_array_equal(knn.classes_, np.sort(names))
    of_objects, _ = fitted(search, X, names[y].astype(object), weights=weights)
    assert_array_equal(of_objects.predict(Q), knn.predict(Q))


@any_way
@any_weights
def test_outputs_may_be_many(search, weights):
    X, y, Q = coarse_digits()
    both = np.stack([y, y % 3], axis=1)
    knn, U = fitted(search, X, both, weights=weights)
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


@any_way
@any_weights
def test_points_are_classified_by_the_others(search, weights):
    X, y, _ = coarse_digits()
    knn, U = fitted(search, X, y, weights=weights)
    ranks = ranks_between(X, X, U)
    exact = by_rank(KNeighborsClassifier(), X, y, U, weights)
    assert_array_equal(knn.predict(None), exact.predict(None))
    # As many neighbours with the point itself among them are other neighbours.
    assert (knn.predict(X) != exact.predict(None)).any()
    assert_array_equal(knn.predict(X), exact.predict(ranks))


@any_way
@pytest.mark.parametrize("weights", ["uniform", bell], ids=["uniform", "callable"])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "mixed"])
def test_duplicates_are_classified_as_scikit_learn_does(search, weights, alike):
    """Four copies of every point, with one label, or with many and all as neighbours.

    Which copies are the neighbours is left to chance by scikit-learn.
    """
    K = 6 if alike else 8
    X = np.repeat(normal(250, 20, seed=1), 4, axis=0)
    y = np.arange(1000) // 4 * 7 % 5 if alike else np.arange(1000) * 7 // 3 % 5
    Q = np.vstack([X[::4], normal(250, 20, seed=2)])
    knn, U = fitted(search, X, y, n_neighbors=K, weights=weights)
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


@any_way
def test_float32_points_give_the_labels_of_float64(search):
    X, y, Q = coarse_digits()
    knn, _ = fitted(search, X.astype(np.float32), y, weights="distance")
    assert knn.kneighbors(Q)[0].dtype == np.float32
    wide, _ = fitted(search, X, y, weights="distance")
    assert_array_equal(knn.predict(Q), wide.predict(Q))


@any_way
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_float64_points_join_those_of_float32(search, storage):
    X, y, Q = coarse_digits()
    knn, U = fitted(search, stored(X[:300].astype(np.float32), storage), y[:300])
    knn.predict(Q)
    knn.partial_fit(stored(X[300:], storage), y[300:])
    knn.update_points([0, 1], stored(X[[1, 0]], storage), y[[1, 0]])
    assert knn.kneighbors(Q)[0].dtype == np.float32
    now, labels_now = X.copy(), y.copy()
    now[:2], labels_now[:2] = X[[1, 0]], y[[1, 0]]
    exact = by_rank(KNeighborsClassifier(), now, labels_now, U)
    assert_array_equal(knn.predict(Q), exact.predict(ranks_between(Q, now, U)))


@any_way
def test_threads_give_the_labels_of_one(search):
    X, y, Q = coarse_digits()
    one, _ = fitted(search, X, y)
    two, _ = fitted(search, X, y, n_jobs=2)
    assert_array_equal(one.predict_proba(Q), two.predict_proba(Q))


# --- labelled points that are added, replaced and removed ---------------------------


def test_the_first_partial_fit_is_fit():
    X, y, Q = coarse_digits()
    knn = SketchedMahalanobisClassifier(**EXACT)
    assert knn.partial_fit(X, y) is knn
    assert_array_equal(knn.predict_proba(Q), clone(knn).fit(X, y).predict_proba(Q))


@any_way
def test_classes_may_be_named_before_they_are_seen(search):
    X, y, Q = coarse_digits()
    U = whole_metric()
    knn = SketchedMahalanobisClassifier(metric_learner=U, **SEARCHES[search])
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


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("n_outputs", [1, 2])
@any_way
def test_labels_stay_with_their_points(search, storage, n_outputs):
    rng = np.random.default_rng(0)

    def draw(rng, count):
        y = rng.integers(4, size=(count, 2))
        return rng.integers(-9, 10, size=(count, 20)) * 1.0, y if n_outputs == 2 else (
            y[:, 0]
        )

    plain = Plain(*draw(rng, 60))
    U = whole_metric(d=20)
    knn = SketchedMahalanobisClassifier(metric_learner=U, **SEARCHES[search])
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


@any_way
@pytest.mark.parametrize("mmap_mode", [None, "r"])
def test_a_stored_classifier_goes_on(search, mmap_mode, tmp_path):
    X, y, Q = coarse_digits()
    knn, U = fitted(search, X, y)
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


# --- labels ---------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="weights must not sum to zero over"):
        knn.predict_proba([[0.0]])


@pytest.mark.parametrize("dtype", [int, str, object])
def test_of_many_classes_a_message_lists_ten(dtype):
    y = (np.arange(2000) // 2).astype(str).astype(dtype)
    knn = SketchedMahalanobisClassifier()
    knn.partial_fit(normal(2000, 2), y, classes=np.unique(y))
    unseen = np.array([1001]).astype(str).astype(dtype)
    with pytest.raises(ValueError, match=r"\.\.\.\] \(1000 in all\)") as error:
        knn.partial_fit(normal(1, 2), unseen)
    assert str(error.value).count(",") == 11
    with pytest.raises(ValueError, match="those of earlier calls") as error:
        knn.partial_fit(normal(1, 2), y[:1], classes=y[2:])
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("dtype", [int, np.int8, np.uint64, float, bool, "U9", "S9"])
def test_labels_of_any_type(dtype):
    X, y = normal(10, 4), np.array([3, 0, 7, 7, 3]).astype(dtype)
    knn = SketchedMahalanobisClassifier(1)
    knn.fit(X[:5], y).partial_fit(X[5:], y)
    assert_array_equal(knn.predict(X), np.concatenate([y, y]))
    assert knn.classes_.dtype == y.dtype


def test_a_label_of_another_kind_counts_as_what_it_is_equal_to():
    X, Q = normal(30, 4), normal(3, 4, seed=1)
    knn = SketchedMahalanobisClassifier(1).fit(X, np.arange(30) % 3)
    knn.partial_fit(Q, np.array([0.0, 1.0, 2.0])).partial_fit(-Q, [True, False, True])
    assert_array_equal(knn.predict(np.vstack([Q, -Q])), [0, 1, 2, 1, 0, 1])


def test_it_is_an_instance_of_the_class_of_scikit_learn():
    """Samplers of imbalanced-learn take no other; see tests/clients."""
    assert isinstance(SketchedMahalanobisClassifier(), KNeighborsClassifier)
    assert KNeighborsClassifier not in SketchedMahalanobisClassifier.__mro__
    assert not isinstance(KNeighborsClassifier(), SketchedMahalanobisClassifier)
