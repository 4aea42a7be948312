"""Outlier scores of a stream are those of a detector that was fitted anew."""

import pickle
import threading
from contextlib import suppress
from copy import copy, deepcopy

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import LocalOutlierFactor
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import MahalanobisOutlierDetector

# The scores are private: tests count the searches of single changes.
from skmahal._core.index import Index
from skmahal._core.outliers import OutlierScores
from skmahal.online import OnlineITML
from tests.faults import Steps

from .cases import normal, points_of, some_metric, state_of, stored

D = 6
RTOL = {np.float64: 1e-7, np.float32: 1e-4}
STORED = [(np.float64, "dense"), (np.float32, "dense"), (np.float64, "csr")]
STORED += [(np.float32, "csr")]
seeds = st.integers(0, 2**32 - 1)
few_points = pytest.mark.filterwarnings("ignore:n_neighbors=")


def lof(X, n_neighbors, **params):
    """scikit-learn's detector, fitted to points as they are.

    In a tree, equal points have distance 0. By brute force, in scikit-learn 1.6, they
    have a rounding error, and scores are relative to that.
    """
    params = {"algorithm": "kd_tree", "novelty": True, **params}
    return LocalOutlierFactor(n_neighbors, **params).fit(X)


def transformed(detector, X):
    return np.asarray(X, dtype=float) @ detector.components_.T


def assert_as_fitted_anew(detector, Q, rtol=1e-7, **params):
    """Scores of all points and of queries, and the offset, are scikit-learn's."""
    points, K = transformed(detector, points_of(detector)), detector.n_neighbors
    theirs = lof(points, min(K, len(points)), **params)
    assert detector.n_neighbors_ == theirs.n_neighbors_
    assert detector.n_samples_fit_ == len(points)
    scores = theirs.negative_outlier_factor_
    assert_allclose(detector.negative_outlier_factor_, scores, rtol=rtol)
    assert_allclose(detector.offset_, theirs.offset_, rtol=rtol)
    found = theirs.score_samples(transformed(detector, Q))
    assert_allclose(detector.score_samples(Q), found, rtol=rtol)
    shifted = theirs.decision_function(transformed(detector, Q))
    assert_allclose(detector.decision_function(Q), shifted, rtol=rtol, atol=2 * rtol)


# --- any history --------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Changes in any order; scores are compared after some of them."""

    @initialize(
        seed=seeds,
        kind=st.sampled_from(STORED),
        k=st.sampled_from([None, 2, D, 9]),
        n=st.sampled_from([2, 9, 60, 200]),
        K=st.sampled_from([1, 4, 10]),
        contamination=st.sampled_from(["auto", 0.1]),
    )
    def build(self, seed, kind, k, n, K, contamination):
        (self.dtype, self.storage), self.look = kind, True
        self.params = {"contamination": contamination}
        U = None if k is None else normal(k, D, seed=seed)
        self.detector = MahalanobisOutlierDetector(
            K, metric_learner=U, novelty=True, **self.params
        )
        if n < K:
            with pytest.warns(UserWarning, match=f"n_neighbors={K} is more"):
                self.detector.fit(self.points(seed, n))
        else:
            self.detector.fit(self.points(seed, n))

    def points(self, seed, count):
        return stored(normal(count, D, seed=seed).astype(self.dtype), self.storage)

    def some(self, seed, most):
        rng, n = np.random.default_rng(seed), self.detector.n_samples_fit_
        return rng.permutation(n)[: rng.integers(1, min(most, n) + 1)]

    @rule(seed=seeds, count=st.sampled_from([1, 1, 3, 40]), look=st.booleans())
    def add(self, seed, count, look):
        self.detector.partial_fit(self.points(seed, count))
        self.look = look

    @rule(seed=seeds, most=st.sampled_from([1, 3, 100]), look=st.booleans())
    def replace(self, seed, most, look):
        at = self.some(seed, most)
        self.detector.update_points(at, self.points(seed, len(at)))
        self.look = look

    @rule(seed=seeds, most=st.sampled_from([1, 3, 100]), look=st.booleans())
    def remove(self, seed, most, look):
        at = self.some(seed, most)[: self.detector.n_samples_fit_ - 2]
        self.detector.remove_points(at)
        self.look = look

    @rule(seed=seeds, size=st.sampled_from([0.01, 1.0]), look=st.booleans())
    def low_rank(self, seed, size, look):
        k = len(self.detector.components_)
        factors = size * normal(k, 2, seed=seed), normal(D, 2, seed=seed + 1)
        self.detector.update_metric(low_rank=factors)
        self.look = look

    @rule(seed=seeds, k=st.sampled_from([3, D]), look=st.booleans())
    def metric(self, seed, k, look):
        self.detector.update_metric(normal(k, D, seed=seed))
        self.look = look

    @rule()
    def save(self):
        self.detector = pickle.loads(pickle.dumps(self.detector))

    @rule()
    def refuse(self):
        self.look = False
        with pytest.raises(ValueError, match="NaN"):
            self.detector.partial_fit(np.full((1, D), np.nan))

    @invariant()
    def scores_are_as_fitted_anew(self):
        if self.look:
            Q, rtol = self.points(7, 5), RTOL[self.dtype]
            Q = Q.toarray() if sparse.issparse(Q) else Q
            assert_as_fitted_anew(self.detector, Q, rtol, **self.params)
            self.detector.check()


TestAnyHistory = pytest.mark.slow(AnyHistory.TestCase)
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lof", "knn"])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_ties_are_as_in_a_fit(method, storage):
    """Distances of small whole numbers are exact, and often equal."""
    rng = np.random.default_rng(0)
    U = rng.integers(-1, 2, size=(4, D)).astype(float)
    params = {"method": method, "metric_learner": U}
    X = rng.integers(0, 3, size=(150, D)).astype(float)
    detector = MahalanobisOutlierDetector(5, **params).fit(stored(X, storage))
    for _ in range(30):
        new = rng.integers(0, 3, size=(2, D)).astype(float)
        at = rng.permutation(len(X))[:2]
        detector.update_points(at, stored(new, storage))
        detector.partial_fit(stored(new[::-1], storage))
        detector.remove_points(at[0])
        X[at] = new
        X = np.delete(np.vstack([X, new[::-1]]), at[0], axis=0)
        anew = MahalanobisOutlierDetector(5, **params).fit(stored(X, storage))
        found = detector.negative_outlier_factor_
        assert_array_equal(found, anew.negative_outlier_factor_)
        assert detector.offset_ == anew.offset_


def test_distances_are_scores_too():
    X, Q = normal(200, D), normal(5, D, seed=1)
    detector = MahalanobisOutlierDetector(4, method="knn", novelty=True).fit(X[:150])
    detector.partial_fit(X[150:160]).partial_fit(X[160:]).remove_points([0, 50])
    means = detector.kneighbors()[0].mean(axis=1)
    assert_allclose(detector.negative_outlier_factor_, -means, rtol=1e-12)
    means = detector.kneighbors(Q)[0].mean(axis=1)
    assert_allclose(detector.score_samples(Q), -means, rtol=1e-12)


def test_a_far_point_is_an_outlier_by_its_distance():
    X = np.vstack([normal(200, D), np.full((1, D), 20.0)])
    detector = MahalanobisOutlierDetector(4, method="knn")
    labels = detector.fit_predict(X)
    assert labels[-1] == -1
    assert np.count_nonzero(labels == -1) < 20


def test_equal_points():
    """Three of each: the neighbours of a point are the others at its place."""
    places = normal(40, D)
    X = np.repeat(places, 3, axis=0)
    for K, count in ((2, 1), (5, 2)):
        detector = MahalanobisOutlierDetector(K).fit(X[:90])
        detector.partial_fit(X[90:]).update_points([0, 1, 2], X[:3])
        squares = ((X[:, np.newaxis] - X) ** 2).sum(axis=2)
        by_distance = {"algorithm": "brute", "metric": "precomputed"}
        theirs = lof(np.sqrt(squares), K, **by_distance)
        found = detector.negative_outlier_factor_
        assert_allclose(found, theirs.negative_outlier_factor_, rtol=1e-9)
        assert (found == -1).all() == (count == 1)


@pytest.mark.parametrize(("dtype", "storage"), STORED)
def test_points_of_all_kinds(dtype, storage):
    X = normal(300, D).astype(dtype)
    detector = MahalanobisOutlierDetector(
        5, metric_learner=some_metric(4, D), novelty=True
    )
    detector.fit(stored(X[:250], storage)).partial_fit(stored(X[250:], storage))
    assert detector.negative_outlier_factor_.dtype == dtype
    assert_as_fitted_anew(detector, normal(5, D, seed=1).astype(dtype), RTOL[dtype])


def test_a_learner_goes_on():
    X, y = normal(300, D), np.arange(300) % 3
    learner = OnlineITML(random_state=0)
    detector = MahalanobisOutlierDetector(5, metric_learner=learner, novelty=True)
    detector.fit(X[:250], y[:250])
    before = detector.components_
    detector.partial_fit(X[250:], y[250:])
    assert (detector.components_ != before).any()
    assert_as_fitted_anew(detector, normal(5, D, seed=1))


# --- what a change costs --------------------------------------------------------------


def searches_of(detector, change):
    before = detector.n_searches_
    change(detector)
    detector.negative_outlier_factor_  # noqa: B018
    return detector.n_searches_ - before


def test_a_new_point_is_the_only_one_to_be_searched():
    X, Z = normal(2000, D), normal(20, D, seed=1)
    detector = MahalanobisOutlierDetector(10).fit(X)
    assert detector.n_searches_ == 2000
    for z in Z:
        assert searches_of(detector, lambda one, z=z: one.partial_fit(z[None])) == 1
    assert searches_of(detector, lambda one: one.partial_fit(Z + 0.1)) == 20
    detector.check()


def test_only_points_that_lose_a_neighbour_are_searched():
    X = normal(2000, D)
    detector = MahalanobisOutlierDetector(10).fit(X)
    for at in (0, 700, 1500):
        graph = detector.kneighbors_graph()
        lost = int(graph[:, [at]].sum())
        assert searches_of(detector, lambda one, at=at: one.remove_points(at)) == lost
        lost = int(detector.kneighbors_graph()[:, [at]].sum())
        new = normal(1, D, seed=at)
        count = searches_of(
            detector, lambda one, n=new, at=at: one.update_points(at, n)
        )
        assert count == lost + 1
    detector.check()


def test_a_change_of_the_metric_waits_for_a_reader():
    detector = MahalanobisOutlierDetector(10, metric_learner=np.eye(D))
    detector.fit(normal(500, D))
    detector.update_metric(normal(1, D), rows=[0]).update_metric(normal(D, D, seed=1))
    detector.partial_fit(normal(1, D)).remove_points([3])
    assert detector.n_searches_ == 500
    detector.negative_outlier_factor_  # noqa: B018
    assert detector.n_searches_ == 1000
    detector.negative_outlier_factor_  # noqa: B018
    assert detector.n_searches_ == 1000


def held_scores(X=None):
    index = Index(some_metric(4, D), normal(500, D) if X is None else X)
    scores = OutlierScores(index, 5)
    with scores.reading():
        return index, scores


def test_points_may_be_replaced_and_appended_at_once():
    index, scores = held_scores()
    with index.lock.changing():
        version = index.version
        index.assign(np.array([7, 3]), normal(5, D, seed=1))
        scores.follow_points(version, [7, 3], 3)
    assert 505 <= scores.n_searches < 600
    with scores.reading():
        scores.check()
    assert scores.n_searches < 600


@pytest.mark.parametrize("method", ["lof", "knn"])
def test_scores_in_a_window_are_those_of_a_new_detector(method):
    stream = normal(500, D)
    detector = MahalanobisOutlierDetector(5, method=method, max_points=200)
    detector.fit(stream[:190], ids=np.arange(190))
    for start in range(190, 500, 31):
        ids = np.arange(start, min(500, start + 31))
        detector.partial_fit(stream[ids], ids=ids)
        assert_array_equal(np.sort(detector.ids_), np.arange(ids[-1] + 1)[-200:])
        new = MahalanobisOutlierDetector(5, method=method).fit(detector.points())
        assert_allclose(
            detector.negative_outlier_factor_, new.negative_outlier_factor_, rtol=1e-9
        )
    # Points of about 31 neighbourhoods in 200 are searched anew, and not all.
    before = detector.n_searches_
    detector.partial_fit(normal(1, D, seed=1), ids=[1000])
    assert detector.n_searches_ - before < 30
    detector.remove_points(ids=[1000])
    assert 1000 not in detector


def test_a_change_of_the_metric_between_is_noticed():
    index, scores = held_scores()
    with index.lock.changing():
        version = index.version
        index.append(normal(3, D, seed=2))
        index.set_metric(some_metric(4, D, seed=1))
        scores.follow_points(version, [], 3)
    assert scores.n_searches == 500
    with scores.reading():
        scores.check()
    assert scores.n_searches == 1003


# --- failures and threads -------------------------------------------------------------

CHANGES = {
    "partial_fit": lambda one: one.partial_fit(normal(3, D, seed=1)),
    "update_points": lambda one: one.update_points([3, 9], normal(2, D, seed=1)),
    "remove_points": lambda one: one.remove_points([5]),
    "update_metric": lambda one: one.update_metric(normal(1, D), rows=[1]),
    "fit": lambda one: one.fit(normal(50, D, seed=1)),
}


def small():
    learner = some_metric(4, D)
    return MahalanobisOutlierDetector(3, metric_learner=learner).fit(normal(80, D))


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("name", CHANGES)
def test_a_failure_leaves_all_of_a_change_or_nothing(name, error):
    def change(detector):
        return CHANGES[name](detector).negative_outlier_factor_

    before, after = small().negative_outlier_factor_, change(small())
    with Steps() as steps:
        change(small())
    for at in range(0, steps.count, max(1, steps.count // 40)):
        detector, fault = small(), Steps(at, error)
        with suppress(error), fault:
            change(detector)
        found = detector.negative_outlier_factor_
        is_before = found.shape == before.shape and np.allclose(found, before)
        whole = before if is_before else after
        assert_allclose(found, whole, rtol=1e-9, err_msg=str(fault.where))
        detector.check()


BAD = {
    "NaN": lambda one: one.partial_fit(np.full((1, D), np.nan)),
    "2 features": lambda one: one.partial_fit(np.ones((1, 2))),
    "NaN ": lambda one: one.update_points([0], np.full((1, D), np.nan)),
    "out of range": lambda one: one.update_points([80], normal(1, D)),
    "repeated": lambda one: one.update_points([1, 1], normal(2, D)),
    "2 rows, expected 1": lambda one: one.update_points([1], normal(2, D)),
    "out of range ": lambda one: one.remove_points([80]),
    "at least two": lambda one: one.remove_points(np.arange(79)),
    "too large": lambda one: one.partial_fit(np.full((1, D), 1e200)),
    "every": lambda one: one.remove_points(np.arange(80)),
    "n_jobs": lambda one: one.set_params(n_jobs=0).remove_points([0]),
    "n_jobs ": lambda one: one.set_params(n_jobs=0).update_points([0], normal(1, D)),
    "neither": lambda one: one.update_metric(),
    "1 sample": lambda one: one.fit(normal(1, D)),
    "method": lambda one: one.set_params(method="other").fit(normal(9, D)),
    "contamination": lambda one: one.set_params(contamination=0.6).fit(normal(9, D)),
}


@pytest.mark.parametrize("message", BAD)
def test_a_refused_call_changes_nothing(message):
    detector = small()
    params = detector.get_params()
    before, scores = state_of(detector), detector.negative_outlier_factor_
    with pytest.raises((ValueError, IndexError), match=message.strip()):
        BAD[message](detector)
    detector.set_params(**params)
    assert state_of(detector) == before
    assert_array_equal(detector.negative_outlier_factor_, scores)


def test_readers_see_scores_of_one_version():
    X, U = normal(260, D), some_metric(4, D)
    scores = [lof(X[:n] @ U.T, 5).negative_outlier_factor_ for n in range(200, 261)]
    expected = {len(each): each for each in scores}
    detector = MahalanobisOutlierDetector(5, metric_learner=U).fit(X[:200])
    wrong, done = [], threading.Event()

    def read():
        while not done.is_set():
            found = detector.negative_outlier_factor_
            if not np.allclose(found, expected[len(found)], rtol=1e-7):
                wrong.append(len(found))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for n in range(200, 260):
            detector.partial_fit(X[n : n + 1])
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not wrong
    # A reader does not compute what the thread that changes points is about to.
    assert detector.n_searches_ == 260


# --- scikit-learn's conventions -------------------------------------------------------

CONFORMING = [
    MahalanobisOutlierDetector(),
    MahalanobisOutlierDetector(novelty=True),
    MahalanobisOutlierDetector(5, method="knn", novelty=True),
    MahalanobisOutlierDetector(metric_learner=PCA(), novelty=True, n_jobs=2),
]
LEFT_OUT = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_estimators_partial_fit_n_features,
    estimator_checks.check_param_validation,
]


@few_points
@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@few_points
@pytest.mark.filterwarnings("ignore:X .*feature names")
@pytest.mark.parametrize("check", LEFT_OUT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("novelty", [False, True])
def test_conventions_that_are_not_checked_by_default(check, novelty):
    detector = MahalanobisOutlierDetector(novelty=novelty)
    check("MahalanobisOutlierDetector", detector)


def test_the_tags_are_those_of_scikit_learn():
    ours, theirs = map(get_tags, (MahalanobisOutlierDetector(), LocalOutlierFactor()))
    # scikit-learn 1.6 does not say that its neighbours take sparse data.
    theirs.input_tags.sparse = True
    for name in ("estimator_type", "requires_fit", "non_deterministic", "input_tags"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_labels_are_those_of_scikit_learn():
    X, Q = normal(300, D), 2 * normal(50, D, seed=1)
    for contamination in ("auto", 0.1, 0.5):
        params = {"n_neighbors": 8, "contamination": contamination}
        ours, theirs = (
            MahalanobisOutlierDetector(**params),
            LocalOutlierFactor(**params),
        )
        assert_array_equal(ours.fit_predict(X), theirs.fit_predict(X))
        ours.set_params(novelty=True)
        theirs.set_params(novelty=True)
        assert_array_equal(ours.fit(X).predict(Q), theirs.fit(X).predict(Q))


@pytest.mark.parametrize("name", ["predict", "decision_function", "score_samples"])
def test_new_data_are_scored_with_novelty_alone(name):
    detector = MahalanobisOutlierDetector(3).fit(normal(30, D))
    assert not hasattr(detector, name)
    with pytest.raises(AttributeError, match=name):
        getattr(detector, name)
    detector.set_params(novelty=True)
    assert not hasattr(detector, "fit_predict")
    assert getattr(detector, name)(normal(2, D)).shape == (2,)
    with pytest.raises(NotFittedError):
        getattr(MahalanobisOutlierDetector(novelty=True), name)(normal(2, D))


def test_parameters_count_when_it_is_fitted():
    detector = MahalanobisOutlierDetector(3).fit(normal(30, D))
    scores = detector.negative_outlier_factor_
    detector.set_params(n_neighbors=7, method="knn", contamination=0.2)
    detector.partial_fit(normal(1, D, seed=1)).remove_points(30)
    assert (detector.n_neighbors_, detector.offset_) == (3, -1.5)
    assert_allclose(detector.negative_outlier_factor_, scores, rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["negative_outlier_factor_", "offset_", "n_neighbors_"]
)
def test_there_are_no_fitted_attributes_before_fit(name):
    assert not hasattr(MahalanobisOutlierDetector(), name)


def test_scikit_learn_s_warnings():
    with pytest.warns(UserWarning, match="n_neighbors=20 is more than the 5 points; 4"):
        detector = MahalanobisOutlierDetector().fit(normal(5, D))
    assert detector.n_neighbors_ == 4
    # Neighbours that are used grow with the points.
    detector.partial_fit(normal(30, D, seed=1))
    assert detector.n_neighbors_ == 20
    X = np.vstack([np.zeros((20, 2)), np.ones((1, 2))])
    with pytest.warns(UserWarning, match="equal points"):
        MahalanobisOutlierDetector(3).fit(X)
    MahalanobisOutlierDetector(3, novelty=True).fit(X)


def test_names_of_features_are_checked():
    frame = pd.DataFrame(normal(50, 3), columns=list("abc"))
    detector = MahalanobisOutlierDetector(3, novelty=True).fit(frame)
    assert_array_equal(detector.feature_names_in_, list("abc"))
    detector.partial_fit(frame[:2])
    with pytest.raises(ValueError, match="feature names"):
        detector.score_samples(frame[["c", "b", "a"]])
    with pytest.warns(UserWarning, match="feature names"):
        detector.score_samples(frame.to_numpy())


def test_queries_do_not_change_the_attributes():
    detector = small().set_params(novelty=True)
    before = dict(vars(detector))
    detector.update_metric(normal(1, D), rows=[1]).predict(normal(2, D))
    detector.negative_outlier_factor_  # noqa: B018
    assert vars(detector).keys() == before.keys()
    assert vars(detector)["_scores"] is before["_scores"]


# --- copies ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize(
    "duplicate", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_gives_the_same_scores_then_and_later(duplicate, change):
    detector = small().partial_fit(normal(2, D, seed=3))
    if change is not None:
        CHANGES[change](detector)
    other = duplicate(detector)
    for _ in range(2):
        mine, others = detector, other
        assert_array_equal(
            mine.negative_outlier_factor_, others.negative_outlier_factor_
        )
        assert mine.n_searches_ == others.n_searches_
        for one in (detector, other):
            CHANGES["remove_points"](one)
            CHANGES["partial_fit"](one)
            CHANGES["update_points"](one)
    other.partial_fit(normal(1, D))
    assert detector.n_samples_fit_ == other.n_samples_fit_ - 1
    detector.check()


def test_a_clone_is_not_fitted_and_a_shallow_copy_is():
    detector = small()
    assert not hasattr(clone(detector), "offset_")
    assert copy(detector).offset_ == -1.5


def test_saved_neighbours_are_checked():
    state = small().__getstate__()
    for name, value in (("indices", 80), ("distances", -1.0)):
        values = {**state, "_scores": {**state["_scores"]}}
        values["_scores"][name] = np.full_like(values["_scores"][name], value)
        values = {key: value for key, value in values.items() if key[1:] != "digest"}
        with pytest.raises(ValueError, match="not valid"):
            MahalanobisOutlierDetector()._restored(values)
