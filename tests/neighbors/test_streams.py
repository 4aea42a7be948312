"""Streams: ids, windows, labels that come late, new classes and weights."""

import pickle
from threading import Thread

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
    kneighbors_graph,
    radius_neighbors_graph,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)
from skmahal._core import cached
from skmahal.online import LEGO

D = 4
KINDS = {
    "neighbors": SketchedMahalanobisNeighbors,
    "transformer": SketchedMahalanobisNeighborsTransformer,
    "classifier": SketchedMahalanobisClassifier,
    "regressor": SketchedMahalanobisRegressor,
}
any_kind = pytest.mark.parametrize("kind", KINDS)
supervised = pytest.mark.parametrize("kind", ["classifier", "regressor"])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def labels(kind, n, seed=0):
    """Targets as keywords, where a kind of estimator has any."""
    y = np.random.default_rng(seed).integers(3, size=n)
    return {"y": y} if kind in ("classifier", "regressor") else {}


def fitted(kind, X, ids=None, **params):
    params.setdefault("n_neighbors", 3)
    return KINDS[kind](**params).fit(X, ids=ids, **labels(kind, len(X)))


# --- ids ------------------------------------------------------------------------------


@any_kind
@pytest.mark.parametrize("names", [False, True], ids=["integers", "strings"])
def test_points_are_found_by_their_ids(kind, names):
    X = normal(20, D)
    ids = [f"point {i}" for i in range(20)] if names else np.arange(100, 120)
    index = fitted(kind, X, ids)
    assert_array_equal(index.ids_, ids)
    assert len(index) == 20
    assert ids[3] in index
    assert "somebody" not in index
    assert [] not in index
    assert True not in fitted(kind, X[:2], [1, 2])
    assert 1.0 not in fitted(kind, X[:2], [1, 2])
    assert_array_equal(index.points([ids[7], ids[2]]), X[[7, 2]])
    index.remove_points(ids=[ids[3], ids[0]])
    assert ids[3] not in index
    assert_array_equal(index.points(ids[7]), X[[7]])
    new = normal(1, D, seed=1)
    index.update_points(ids=ids[7], X=new, **labels(kind, 1))
    assert_array_equal(index.points(ids[7]), new)
    assert_array_equal(index.ids_, np.delete(ids, [0, 3]))


def test_neighbours_are_returned_by_their_ids():
    X, ids = normal(50, D), np.arange(50)[::-1] * 10
    index = fitted("neighbors", X, ids)
    _, at = index.kneighbors(X[:5])
    distances, found = index.kneighbors(X[:5], return_ids=True)
    assert_array_equal(found, ids[at])
    assert_array_equal(distances, index.kneighbors(X[:5])[0])
    assert_array_equal(
        index.kneighbors(None, 2, return_distance=False, return_ids=True),
        ids[index.kneighbors(None, 2, return_distance=False)],
    )
    near = index.radius_neighbors(X[:5], 1.0, return_distance=False)
    named = index.radius_neighbors(X[:5], 1.0, return_distance=False, return_ids=True)
    for one, other in zip(near, named, strict=True):
        assert_array_equal(ids[one], other)


@any_kind
def test_positions_are_ids_where_none_are_given(kind):
    X = normal(9, D)
    index = fitted(kind, X)
    assert_array_equal(index.ids_, np.arange(9))
    assert 8 in index
    assert 9 not in index
    assert "8" not in index
    assert True not in index
    assert 1.0 not in index
    index.remove_points(ids=[4])
    assert_array_equal(index.points(), np.delete(X, 4, axis=0))
    with pytest.raises(ValueError, match="ids must be None"):
        index.partial_fit(X[:1], ids=[4], **labels(kind, 1))


def test_longer_names_are_kept():
    index = fitted("neighbors", normal(3, D), ["a", "b", "c"])
    index.partial_fit(normal(1, D, seed=1), ids=["a much longer name"])
    assert_array_equal(index.ids_, ["a", "b", "c", "a much longer name"])
    index = pickle.loads(pickle.dumps(index))
    assert "a much longer name" in index


BAD_IDS = {
    "repeated": (["a", "b", "a"], "'a' more than once"),
    "too few": (["a", "b"], "3 different integers or strings"),
    "floats": ([0.0, 1.0, 2.0], "3 different integers or strings"),
    "booleans": ([True, False, True], "3 different integers or strings"),
    "mixed": ([1, "a", None], "3 different integers or strings"),
    "too large": (np.array([2**63, 1, 2], np.uint64), "64 bits"),
    "ragged": ([[1], [2, 3], 4], "3 different integers or strings"),
}


@any_kind
@pytest.mark.parametrize("case", BAD_IDS)
def test_bad_ids_are_refused(kind, case):
    ids, message = BAD_IDS[case]
    with pytest.raises(ValueError, match=message):
        KINDS[kind]().fit(normal(3, D), ids=ids, **labels(kind, 3))
    index = fitted(kind, normal(3, D), [7, 8, 9])
    with pytest.raises(ValueError, match=f"{message}|ids must be integers"):
        index.partial_fit(normal(3, D), ids=ids, **labels(kind, 3))
    assert_array_equal(index.ids_, [7, 8, 9])


@any_kind
def test_ids_that_do_not_fit_the_index_are_refused(kind):
    index = fitted(kind, normal(3, D), [7, 8, 9])
    y, X = labels(kind, 1), normal(1, D)
    with pytest.raises(ValueError, match="has the id 8 already"):
        index.partial_fit(X, ids=[8], **y)
    with pytest.raises(ValueError, match="ids are needed"):
        index.partial_fit(X, **y)
    with pytest.raises(ValueError, match="ids must be integers, as those of `fit`"):
        index.partial_fit(X, ids=["a"], **y)
    with pytest.raises(ValueError, match="no point of the index has the id 0"):
        index.remove_points(ids=[7, 0])
    with pytest.raises(ValueError, match="indices or ids must be given, got neither"):
        index.remove_points()
    with pytest.raises(ValueError, match="indices or ids must be given, got both"):
        index.update_points([0], X, ids=[7], **y)
    with pytest.raises(ValueError, match=r"ids must be different"):
        index.update_points(ids=[7, 7], X=normal(2, D), **labels(kind, 2))
    assert_array_equal(index.ids_, [7, 8, 9])
    assert index.check() < 1e-9


@any_kind
def test_masks_are_positions(kind):
    X, mask = normal(9, D), np.arange(9) % 3 == 0
    index = fitted(kind, X)
    index.update_points(mask, -X[mask], **labels(kind, 3))
    assert_array_equal(index.points(), np.where(mask[:, np.newaxis], -X, X))
    index.remove_points(mask.tolist())
    assert_array_equal(index.points(), X[~mask])


# --- windows --------------------------------------------------------------------------


class Window(RuleBasedStateMachine):
    """An index with ids and a window beside lists that hold the same."""

    def __init__(self):
        super().__init__()
        self.points, self.next, self.seed = {}, 0, 0

    def rows(self, count):
        self.seed += 1
        return normal(count, D, seed=self.seed)

    def names(self, count):
        self.next += count
        return [f"p{i}" for i in range(self.next - count, self.next)]

    @initialize(count=st.integers(1, 9), most=st.integers(1, 7), csr=st.booleans())
    def fit(self, count, most, csr):
        self.most = most
        self.given = sparse.csr_matrix if csr else np.asarray
        self.index = SketchedMahalanobisNeighbors(1, max_points=most)
        self.add(count)

    @rule(count=st.integers(1, 9))
    def add(self, count):
        X, ids = self.rows(count), self.names(count)
        self.index.partial_fit(self.given(X), ids=ids)
        self.points |= dict(zip(ids, X, strict=True))
        for one in list(self.points)[: -self.most]:
            del self.points[one]

    @precondition(lambda self: len(self.points) > 1)
    @rule(data=st.data())
    def remove(self, data):
        one = data.draw(st.sampled_from(list(self.points)))
        self.index.remove_points(ids=one)
        del self.points[one]

    @rule(data=st.data())
    def replace(self, data):
        one = data.draw(st.sampled_from(list(self.points)))
        [x] = X = self.rows(1)
        self.index.update_points(ids=[one], X=self.given(X))
        # A point that was replaced counts as new.
        del self.points[one]
        self.points[one] = x

    @rule(most=st.sampled_from([1, 2, 3, 4, 5, 6, 7, None]))
    def resize(self, most):
        """The next points that come see the new size; None is no limit."""
        self.most = 10**6 if most is None else most
        self.index.set_params(max_points=most)

    @rule()
    def save(self):
        self.index = pickle.loads(pickle.dumps(self.index))

    @rule()
    def move(self):
        self.index.update_metric(low_rank=(self.rows(D)[:, :1], self.rows(D)[:, :1]))

    @invariant()
    def has_the_last_points(self):
        assert set(self.index.ids_.tolist()) == set(self.points)
        assert len(self.index) == len(self.points)
        for one, x in self.points.items():
            found = self.index.points(one)
            assert_array_equal(
                found.toarray() if sparse.issparse(found) else found, [x]
            )
        self.index.check()


TestWindow = Window.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@any_kind
def test_a_window_holds_the_last_points(kind):
    X = normal(30, D)
    index = fitted(kind, X[:12], max_points=8)
    assert_array_equal(index.points(), X[4:12])
    before = index.ids_
    for i in range(12, 30):
        index.partial_fit(X[[i]], **labels(kind, 1))
    assert len(index) == 8
    assert_array_equal(index.ids_, before)
    held = index.points()
    assert_array_equal(held[np.argsort(held[:, 0])], X[22:][np.argsort(X[22:, 0])])
    index.partial_fit(X, **labels(kind, 30))
    held = index.points()
    assert_array_equal(held[np.argsort(held[:, 0])], X[22:][np.argsort(X[22:, 0])])


def test_neighbours_in_a_window_are_those_of_a_new_index():
    stream, rng = normal(600, 16), np.random.default_rng(1)
    index = fitted("neighbors", stream[:50], max_points=200)
    start = 50
    while start < 600:
        stop = min(600, start + int(rng.integers(1, 60)))
        index.partial_fit(stream[start:stop])
        theirs = NearestNeighbors(n_neighbors=3).fit(index.points())
        last = stream[max(0, stop - 200) : stop]
        assert_array_equal(np.sort(index.points(), axis=0), np.sort(last, axis=0))
        found, at = index.kneighbors(stream[:20])
        expected, places = theirs.kneighbors(stream[:20])
        assert_allclose(found, expected, atol=1e-6)
        assert_array_equal(at, places)
        start = stop


def test_a_refused_point_leaves_a_window_that_was_made_smaller():
    X = normal(10, 2).astype(np.float32)
    index = SketchedMahalanobisNeighbors(1, max_points=10).fit(X)
    index.set_params(max_points=5)
    with pytest.raises(ValueError, match="too large"):
        index.partial_fit(np.full((1, 2), 3e38, np.float32))
    assert_array_equal(index.points(), X)
    index.partial_fit(X[:1] + 1)
    expected = np.concatenate([X[6:], X[:1] + 1])
    assert_array_equal(np.sort(index.points(), axis=0), np.sort(expected, axis=0))


def test_a_window_cannot_begin_later():
    index = fitted("neighbors", normal(9, D)).set_params(max_points=9)
    with pytest.raises(ValueError, match="max_points was None when"):
        index.partial_fit(normal(1, D))
    assert len(index) == 9


@pytest.mark.parametrize("full", [False, True])
def test_a_learner_that_fails_leaves_a_window(full):
    class Fails(LEGO):
        def partial_fit(self, pairs, y):
            super().partial_fit(pairs, y)
            if len(pairs) == 5:
                raise RuntimeError("the learner failed")
            return self

    X, y = normal(20, D), np.arange(20) % 2
    knn = SketchedMahalanobisClassifier(1, metric_learner=Fails(), max_points=12)
    knn.fit(X[: 12 if full else 9], y[: 12 if full else 9])
    before, U = knn.points(), knn.components_
    with pytest.raises(RuntimeError, match="the learner failed"):
        knn.partial_fit(X[12:17], np.array([0, 1, 2, 0, 1]))
    assert_array_equal(knn.points(), before)
    assert_array_equal(knn.components_, U)
    assert_array_equal(knn.classes_, [0, 1])
    knn.partial_fit(X[12:16], y[12:16])
    expected = [*before, *X[12:16]][-12:]
    assert_array_equal(np.sort(knn.points(), axis=0), np.sort(expected, axis=0))
    knn.check()


# --- labels that come late ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_points_without_a_label_do_not_vote(weights, share):
    rng, X, Q = np.random.default_rng(0), normal(300, D), normal(40, D, seed=1)
    y, missing = rng.integers(3, size=300), rng.random(300) < share
    given = np.where(missing, None, y.astype(object))
    knn = SketchedMahalanobisClassifier(5, weights=weights).fit(X, given)
    theirs = KNeighborsClassifier(5, weights=weights).fit(X[~missing], y[~missing])
    assert_array_equal(knn.predict(Q), theirs.predict(Q))
    assert_allclose(knn.predict_proba(Q), theirs.predict_proba(Q))
    knn.update_labels(missing, y[missing])
    theirs.fit(X, y)
    assert_array_equal(knn.predict(Q), theirs.predict(Q))
    assert_array_equal(knn.predict(None), _by_the_others(X, y, weights))


def _by_the_others(X, y, weights):
    others = [np.delete(np.arange(len(X)), i) for i in range(len(X))]
    return [
        KNeighborsClassifier(5, weights=weights).fit(X[at], y[at]).predict(X[[i]])[0]
        for i, at in enumerate(others)
    ]


def test_any_point_can_be_without_a_label_where_points_are_their_own_queries():
    X, y = normal(40, D), np.arange(40) % 3
    knn = SketchedMahalanobisClassifier(3).fit(
        X, [None if i < 30 else y[i] for i in range(40)]
    )
    labelled = SketchedMahalanobisClassifier(3).fit(X[30:], y[30:])
    assert_array_equal(knn.predict(None)[:30], labelled.predict(X[:30]))
    assert_array_equal(knn.predict(None)[30:], labelled.predict(None))


@pytest.mark.parametrize("missing", [None, np.nan])
def test_labels_are_missing_as_none_or_nan(missing):
    X = [[0.0], [1.0], [2.0]]
    for y in (["a", "b", missing], np.array(["a", "b", missing], dtype=object)):
        knn = SketchedMahalanobisClassifier(1).fit(X, y)
        assert_array_equal(knn.predict([[2.0]]), ["b"])
        assert_array_equal(knn.classes_, ["a", "b"])
    knn = SketchedMahalanobisClassifier(1).fit(X, [4, 5, missing])
    assert_array_equal(knn.predict([[2.0]]), [5])
    several = np.array([[0, 1], [1, 0], [missing, missing]], dtype=object)
    knn = SketchedMahalanobisClassifier(1).fit(X, several)
    assert_array_equal(knn.predict([[2.0]]), [[1, 0]])
    knn.update_labels([2], [[0, 0]])
    assert_array_equal(knn.predict([[2.0]]), [[0, 0]])
    with pytest.raises(ValueError, match="all labels of a point or none"):
        knn.update_labels([2], [[missing, 0]])
    assert_array_equal(knn.predict([[2.0]]), [[0, 0]])


def test_a_stream_may_begin_without_labels():
    knn = SketchedMahalanobisClassifier(3)
    knn.partial_fit([[0.0]], [None], classes=["a", "b"], ids=["first"])
    with pytest.raises(ValueError, match="No point of the index has both a label"):
        knn.predict([[0.0]])
    knn.partial_fit([[1.0]], [None], ids=["second"])
    knn.update_labels(ids="first", y=["b"])
    assert_array_equal(knn.predict([[1.0]]), ["b"])
    assert_array_equal(knn.predict_proba([[1.0]]), [[0.0, 1.0]])


def test_labels_are_corrected_and_taken_back():
    X, y = normal(30, D), np.arange(30) % 2
    knn = SketchedMahalanobisClassifier(1).fit(X, y)
    knn.update_labels([4, 5], [1, 0])
    assert_array_equal(knn.predict(X[4:6]), [1, 0])
    knn.update_labels([4], [None])
    nearest = SketchedMahalanobisClassifier(1).fit(
        np.delete(X, 4, 0), np.delete(knn.predict(X), 4)
    )
    assert_array_equal(knn.predict(X[4:5]), nearest.predict(X[4:5]))
    regressor = SketchedMahalanobisRegressor(1).fit(X, y)
    regressor.update_labels([7], [0.25])
    assert_array_equal(regressor.predict(X[7:8]), [0.25])


@pytest.mark.parametrize("weights", ["uniform", "distance", lambda d: 1 / (1 + d)])
@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_places_without_a_vote_count_for_nothing(kind, weights):
    """Where fewer points vote than there are neighbours."""
    X, rng = np.arange(8.0)[:, np.newaxis], np.random.default_rng(0)
    votes = np.isin(np.arange(8), [1, 5, 6])
    y = rng.integers(3, size=8) if kind == "classifier" else rng.normal(size=8)
    knn = KINDS[kind](6, weights=weights)
    knn.fit(X, y, sample_weight=votes.astype(float))
    other = KINDS[kind](3, weights=weights).fit(X[votes], y[votes])
    assert_allclose(knn.predict(X), other.predict(X))
    if kind == "classifier":
        knn = KINDS[kind](6, weights=weights)
        knn.fit(X, np.where(votes, y.astype(object), None))
        assert_allclose(knn.predict_proba(X), other.predict_proba(X))


def test_a_budget_of_candidates_is_enough_for_those_that_vote():
    X, y = normal(400, 60), np.arange(400) % 3
    params = {"n_candidates": 10, "m": 8, "R": 1, "lead": 0, "random_state": 0}
    knn = SketchedMahalanobisClassifier(5, **params)
    knn.fit(X, [label if i % 8 == 0 else None for i, label in enumerate(y)])
    assert set(knn.predict(X[:9])) <= {0, 1, 2}


def test_labels_of_objects_are_numbers_or_names():
    X = normal(4, D)
    knn = SketchedMahalanobisClassifier(1)
    knn.partial_fit(X[:3], np.array([0, 1, None], dtype=object))
    knn.partial_fit(X[3:], np.array([1], dtype=object))
    knn.update_labels([0], np.array([2], dtype=object))
    assert_array_equal(knn.predict(X[[0, 1, 3]]), [2, 1, 1])
    with pytest.raises(ValueError, match="y must have labels of one type"):
        knn.fit(X, [1, None, "a", 2])
    with pytest.raises(ValueError, match="y has 2 outputs, expected 1"):
        knn.partial_fit(X[:1], [[None, None]])


def test_missing_labels_of_pandas():
    pandas = pytest.importorskip("pandas")
    X = normal(3, D)
    for y in (
        pandas.Series(["a", pandas.NA, "b"], dtype="string"),
        pandas.Series([1, pandas.NA, 2], dtype="Int64"),
        pandas.Series([1.0, None, 2.0]),
        pandas.Series(["a", None, "b"], dtype="category"),
    ):
        knn = SketchedMahalanobisClassifier(1).fit(X, y)
        assert_array_equal(knn.predict(X[[0, 2]]), np.asarray(y)[[0, 2]])
        assert len(knn.classes_) == 2


def test_a_learner_that_needs_labels_is_refused_without():
    X, y = normal(6, D), [None] * 6
    knn = SketchedMahalanobisClassifier(1, metric_learner=LEGO())
    with pytest.raises(ValueError, match="y"):
        knn.partial_fit(X, y, classes=[0, 1])
    knn = SketchedMahalanobisClassifier(1, metric_learner=PCA(2))
    knn.partial_fit(X, y, classes=[0, 1])
    assert_allclose(knn.components_, PCA(2).fit(X).components_)


@pytest.mark.parametrize("method", ["partial_fit", "update_labels"])
def test_a_frozen_learner_learns_nothing(method):
    X, y = normal(40, D), np.arange(40) % 3
    learner = LEGO(random_state=0).fit(X, y)
    A = learner.get_mahalanobis_matrix()
    knn = SketchedMahalanobisClassifier(3, metric_learner=FrozenEstimator(learner))
    knn.fit(X[:30], [*y[:20], *[None] * 10])
    if method == "partial_fit":
        knn.partial_fit(X[30:], y[30:])
    else:
        knn.update_labels(np.arange(20, 30), y[20:30])
    assert_array_equal(learner.get_mahalanobis_matrix(), A)
    assert_allclose(knn.components_.T @ knn.components_, A)


def test_bad_labels_are_refused_and_change_nothing():
    X, y = normal(10, D), np.arange(10) % 2
    knn = SketchedMahalanobisClassifier(1).fit(X, y)
    for bad, message in [
        (([0, 1], [0]), "y has 1 targets, expected 2"),
        (([0], ["a"]), r"labels as the classes \[0, 1\], got 'a'"),
        (([0], [[0, 1]]), "y has 2 outputs, expected 1"),
        (([10], [0]), "indices: index 10"),
        (([0, 0], [0, 1]), "index 0 is repeated"),
        (([0], [0.5]), "Unknown label type"),
        (([0], [1], [-1.0]), "sample_weight must not be negative"),
    ]:
        with pytest.raises((ValueError, IndexError), match=message):
            knn.update_labels(*bad)
    assert_array_equal(knn.predict(X), y)
    assert_array_equal(knn.classes_, [0, 1])


def test_an_online_learner_learns_from_labels_that_come_late():
    X = normal(60, D)
    y = (X[:, 0] > 0).astype(int)
    late = SketchedMahalanobisClassifier(3, metric_learner=LEGO(random_state=0))
    late.fit(X[:30], y[:30])
    at_once = clone(late).fit(X[:30], y[:30])
    at_once.partial_fit(X[30:], y[30:])
    late.partial_fit(X[30:], [None] * 30)
    U = late.components_
    late.update_labels(np.arange(30, 60), y[30:])
    assert np.abs(late.components_ - U).max() > 1e-6
    assert_allclose(late.components_, at_once.components_)
    U = late.components_
    late.update_labels([3], [1 - y[3]])
    assert_array_equal(late.components_, U)


def test_labels_come_to_a_frame_with_names():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(normal(12, 2), columns=["a", "b"])
    knn = SketchedMahalanobisClassifier(1).fit(X, pandas.Series(["x", "y", None] * 4))
    knn.update_labels([2], ["z"])
    assert_array_equal(knn.predict(X[2:3]), ["z"])


# --- new classes ----------------------------------------------------------------------


@pytest.mark.parametrize("names", [np.array([5, 3, 9]), np.array(["m", "b", "zebra"])])
def test_new_classes_may_come_at_any_time(names):
    X, Q = normal(90, D), normal(20, D, seed=1)
    y = names[np.repeat([0, 1, 2], 30)]
    knn = SketchedMahalanobisClassifier(5)
    for start in range(0, 90, 30):
        knn.partial_fit(X[start : start + 30], y[start : start + 30])
        theirs = KNeighborsClassifier(5).fit(X[: start + 30], y[: start + 30])
        assert_array_equal(knn.classes_, theirs.classes_)
        assert_array_equal(knn.predict(Q), theirs.predict(Q))
        assert_array_equal(knn.predict_proba(Q), theirs.predict_proba(Q))
    again = pickle.loads(pickle.dumps(knn))
    assert_array_equal(again.predict_proba(Q), knn.predict_proba(Q))
    knn.update_points(
        [0], X[:1], y=[names.max() * 2 if names.dtype.kind == "i" else "new"]
    )
    assert len(knn.classes_) == 4


@pytest.mark.parametrize("place", ["replaced", "centred"])
@pytest.mark.parametrize("most", [4, None])
def test_an_interruption_leaves_points_with_their_classes(monkeypatch, place, most):
    knn = SketchedMahalanobisClassifier(1, max_points=most)
    knn.fit([[0.0], [1.0], [2.0], [3.0]], list("abab"))
    works, done = getattr(cached, place), []

    def interrupted(*args):
        if not done:
            done.append(True)
            raise KeyboardInterrupt
        return works(*args)

    with monkeypatch.context() as patch:
        patch.setattr(cached, place, interrupted)
        try:
            knn.partial_fit([[9.0]], ["c"])
        except KeyboardInterrupt:
            came = 9.0 in knn.points()
            assert_array_equal(knn.classes_, list("abc") if came else list("ab"))
            assert knn.predict([[9.0]]) == ("c" if came else "b")
    knn.partial_fit([[20.0]], ["d"])
    assert_array_equal(knn.predict(knn.points()), knn.predict(knn.points()))
    assert knn.predict([[20.0]]) == "d"
    assert knn.predict([[9.0]]) in ("c", "b")
    knn.check()


def test_a_class_that_comes_while_another_thread_predicts(monkeypatch):
    knn = SketchedMahalanobisClassifier(1).fit([[0.0], [10.0]], ["a", "b"])
    validate = SketchedMahalanobisClassifier._queries

    def meanwhile(self, X, index):
        thread = Thread(target=knn.partial_fit, args=([[5.0]], ["c"]))
        monkeypatch.setattr(SketchedMahalanobisClassifier, "_queries", validate)
        thread.start()
        thread.join()
        return validate(self, X, index)

    for method in ("predict", "predict_proba"):
        monkeypatch.setattr(SketchedMahalanobisClassifier, "_queries", meanwhile)
        found = getattr(knn, method)([[5.0], [0.0], [10.0]])
        if method == "predict":
            assert_array_equal(found, ["c", "a", "b"])
        else:
            assert_array_equal(found, np.eye(3)[[2, 0, 1]])


def test_classes_of_the_first_call_are_all_there_will_be():
    knn = SketchedMahalanobisClassifier(1)
    knn.partial_fit([[0.0]], ["a"], classes=["a", "b"])
    with pytest.raises(ValueError, match="y contains 'c', which is not among"):
        knn.partial_fit([[1.0]], ["c"])
    assert_array_equal(knn.classes_, ["a", "b"])


# --- weights --------------------------------------------------------------------------


@supervised
@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_weights_multiply_votes(kind, weights):
    X, Q, rng = normal(80, D), normal(15, D, seed=1), np.random.default_rng(2)
    y, sample_weight = rng.integers(3, size=80), rng.uniform(0.1, 3, size=80)
    knn = KINDS[kind](5, weights=weights)
    knn.fit(X[:50], y[:50], sample_weight=sample_weight[:50])
    knn.partial_fit(X[50:], y[50:], sample_weight=sample_weight[50:])
    distances, at = knn.kneighbors(Q)
    votes = sample_weight[at] * (1 if weights == "uniform" else 1 / distances)
    if kind == "regressor":
        assert_allclose(knn.predict(Q), (votes * y[at]).sum(1) / votes.sum(1))
    else:
        shares = np.stack([(votes * (y[at] == c)).sum(1) for c in range(3)], axis=1)
        assert_allclose(knn.predict_proba(Q), shares / shares.sum(1, keepdims=True))
        assert_array_equal(knn.predict(Q), shares.argmax(1))


@supervised
def test_points_of_weight_zero_are_not_neighbours(kind):
    X, Q, y = normal(80, D), normal(15, D, seed=1), np.arange(80) % 3
    kept = np.arange(80) % 4 > 0
    knn = KINDS[kind](5).fit(X, y, sample_weight=kept.astype(float))
    other = KINDS[kind](5).fit(X[kept], y[kept])
    assert_array_equal(knn.predict(Q), other.predict(Q))
    knn.update_labels(~kept, y[~kept], sample_weight=np.ones(20))
    assert_array_equal(knn.predict(Q), KINDS[kind](5).fit(X, y).predict(Q))
    with pytest.raises(ValueError, match="must not be zero for all points"):
        knn.fit(X, y, sample_weight=np.zeros(80))


@supervised
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.0], r"one number for each of the 3 rows of X, got .* shape \(1,\)"),
        ([1.0, np.nan, 1.0], "sample_weight contains NaN"),
        ([1.0, -2.0, 1.0], "sample_weight must not be negative, got -2"),
        (["a", "b", "c"], "sample_weight must be an array of numbers"),
    ],
)
def test_bad_weights_of_points_are_refused(kind, bad, message):
    knn = KINDS[kind](1).fit(normal(3, D), [0, 1, 0])
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=message):
            getattr(knn, method)(normal(3, D), [0, 1, 0], sample_weight=bad)
    assert len(knn) == 3


def test_weights_of_classes_multiply_votes():
    X, Q = normal(90, D), normal(30, D, seed=1)
    y = np.repeat(["a", "b", "c"], [60, 20, 10])
    plain = SketchedMahalanobisClassifier(7).fit(X, y).predict_proba(Q)
    given = {"a": 0.5, "c": 4.0}
    knn = SketchedMahalanobisClassifier(7, class_weight=given).fit(X, y)
    shares = plain * [0.5, 1.0, 4.0]
    assert_allclose(knn.predict_proba(Q), shares / shares.sum(1, keepdims=True))
    knn = SketchedMahalanobisClassifier(7, class_weight="balanced").fit(X, y)
    shares = plain / [60, 20, 10]
    assert_allclose(knn.predict_proba(Q), shares / shares.sum(1, keepdims=True))
    both = np.stack([y, y], axis=1)
    knn.set_params(class_weight=["balanced", {"a": 2.0}]).fit(X, both)
    assert_allclose(knn.predict_proba(Q)[0], shares / shares.sum(1, keepdims=True))
    knn.set_params(class_weight=[None, {"a": 2.0}])
    assert_allclose(knn.predict_proba(Q)[0], plain)
    for bad in ({"a": 2.0}, [{"a": 2.0}], [{"a": -1.0}, None], ["even", None]):
        with pytest.raises(ValueError, match="class_weight must"):
            knn.set_params(class_weight=bad).predict(Q)
    knn = SketchedMahalanobisClassifier(7).fit(X, y)
    for value in (np.nan, "x", -1.0, np.inf):
        with pytest.raises(ValueError, match="class_weight must"):
            knn.set_params(class_weight={"a": value}).predict(Q)
    absent = np.arange(90) % 3 == 0
    knn.set_params(class_weight="balanced")
    knn.fit(X, y, sample_weight=1.0 - absent)
    other = clone(knn).fit(X[~absent], y[~absent])
    assert_allclose(knn.predict_proba(Q), other.predict_proba(Q))
    knn.set_params(class_weight=dict.fromkeys("abc", 0.0))
    for method in (knn.predict, knn.predict_proba):
        with pytest.raises(ValueError, match="class_weight must not be zero for all"):
            method(Q)


@supervised
def test_a_stream_begins_with_fewer_points_than_neighbours(kind):
    theirs = {"classifier": KNeighborsClassifier, "regressor": KNeighborsRegressor}
    X, y, Q = normal(9, D), np.arange(9) % 2, normal(5, D, seed=1)
    knn = KINDS[kind](6)
    for n in range(1, 9):
        knn.partial_fit(X[n - 1 : n], y[n - 1 : n])
        expected = theirs[kind](min(n, 6)).fit(X[:n], y[:n]).predict(Q)
        assert_allclose(knn.predict(Q), expected)


# --- as scikit-learn spells it --------------------------------------------------------


@any_kind
@pytest.mark.parametrize("key", ["V", "VI"])
def test_a_metric_is_spelled_as_in_scikit_learn(kind, key):
    X, A = normal(60, D), normal(D, D, seed=1)
    V = A @ A.T + np.eye(D)
    matrix = V if key == "V" else np.linalg.inv(V)
    spelled = {"metric": "mahalanobis", "n_neighbors": 4}
    # With V, a search of scikit-learn among its own points fails.
    params = {"VI": np.linalg.inv(V)}
    theirs = NearestNeighbors(algorithm="brute", metric_params=params, **spelled).fit(X)
    ours = fitted(kind, X, metric_params={key: matrix}, **spelled)
    for found, expected in zip(ours.kneighbors(X), theirs.kneighbors(X), strict=True):
        assert_allclose(found, expected, atol=1e-6)


@any_kind
def test_an_empty_dictionary_of_metric_params_is_none(kind):
    X = normal(20, D)
    index = fitted(kind, X, metric="euclidean", metric_params={})
    expected = fitted(kind, X).kneighbors(X)[0]
    assert_array_equal(index.kneighbors(X)[0], expected)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"metric": "mahalanobis"}, "needs metric_params={'V': covariance}"),
        (
            {"metric_params": {"V": np.eye(D)}},
            "with metric='mahalanobis', got the keys",
        ),
        ({"metric": "mahalanobis", "metric_params": {"W": 1}}, r"got the keys \['W'\]"),
        (
            {
                "metric": "mahalanobis",
                "metric_params": {"V": np.eye(D)},
                "metric_learner": np.eye(D),
            },
            "metric_params must be None if metric_learner is given",
        ),
        ({"metric": "cosine"}, "metric"),
        ({"p": 1}, "'p' parameter"),
    ],
)
def test_other_metrics_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        SketchedMahalanobisNeighbors(**params).fit(normal(5, D))


def test_functions_of_scikit_learn_take_an_index():
    X = normal(40, D)
    index = SketchedMahalanobisNeighbors(5).fit(X)
    theirs = NearestNeighbors(n_neighbors=5).fit(X)
    for include in (True, False):
        ours, expected = (
            kneighbors_graph(one, 3, mode="distance", include_self=include)
            for one in (index, theirs)
        )
        assert_allclose(ours.toarray(), expected.toarray(), atol=1e-6)
    ours, expected = (radius_neighbors_graph(one, 1.5) for one in (index, theirs))
    assert_allclose(ours.toarray(), expected.toarray())


@supervised
def test_weights_are_routed_through_pipelines_and_grids(kind):
    X, y = normal(60, D), np.arange(60) % 2
    weights = np.random.default_rng(0).uniform(0.1, 2, size=60)
    with config_context(enable_metadata_routing=True):
        knn = KINDS[kind](3).set_fit_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), knn)
        pipe.fit(X, y, sample_weight=weights)
        expected = KINDS[kind](3).fit(
            StandardScaler().fit_transform(X), y, sample_weight=weights
        )
        Q = normal(9, D, seed=1)
        found = pipe.predict(Q)
        assert_allclose(found, expected.predict(pipe[0].transform(Q)))
        knn.set_score_request(sample_weight=False)
        grid = GridSearchCV(knn, {"n_neighbors": [1, 5]}, cv=3)
        grid.fit(X, y, sample_weight=weights)
    best = clone(KINDS[kind](3)).set_params(**grid.best_params_)
    best.fit(X, y, sample_weight=weights)
    assert_allclose(grid.predict(Q), best.predict(Q))
