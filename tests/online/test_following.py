"""An index that follows an online learner gives the results of a fresh fit."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)
from skmahal._core.index import Index
from skmahal.online import LEGO, POLA, OnlineITML

D = 24
LEARNERS = {
    "LEGO": LEGO(random_state=0),
    "OnlineITML": OnlineITML(random_state=0),
    "POLA": POLA(random_state=0),
}
SKETCHED = {
    "n_candidates": "certified",
    **{"m": 6, "L": 3, "lead": 2, "delta": 1e-9, "random_state": 0},
}
EXACT = {}

any_learner = pytest.mark.parametrize("name", LEARNERS)
any_engine = pytest.mark.parametrize(
    "params", [EXACT, SKETCHED], ids=["exact", "sketched"]
)


def labelled(n, seed=0, d=D):
    """Points of three classes that differ in three features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    X[:, :3] += np.eye(3)[y]
    return X, y


def assert_follows(index, learner, points, dtype=np.float64):
    """The results are those of a new index with the metric of the learner."""
    Q = labelled(9, seed=99)[0].astype(dtype)
    fresh = SketchedMahalanobisNeighbors(3, metric_learner=learner.components_)
    fresh.fit(points)
    rtol = 1e-9 if dtype == np.float64 else 1e-5
    expected, indices = fresh.kneighbors(Q)
    distances, found = index.kneighbors(Q, 3)
    assert_allclose(distances, expected, rtol=rtol)
    if dtype == np.float64:
        assert_array_equal(found, indices)
    components = learner.components_.astype(dtype)
    # An index of float32 points follows a learner of float32 to that precision.
    atol = 1e-12 if dtype == np.float64 else 1e-6 * np.abs(components).max()
    assert_allclose(index.components_, components, rtol=0, atol=atol)
    index.check()


@pytest.mark.slow
@any_learner
@any_engine
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_steps_go_into_any_number_of_indexes(name, params, dtype):
    X, y = labelled(300)
    X = X.astype(dtype)
    learner = clone(LEARNERS[name]).fit(X[:50], y[:50])
    indexes = [
        SketchedMahalanobisNeighbors(3, **params).fit(X).update_metric(learner)
        for _ in range(2)
    ]
    for start in range(50, 300, 10):
        learner.partial_fit(X[start : start + 10], y[start : start + 10])
        indexes[0].update_metric(learner)
        if start % 50 == 0:
            indexes[1].update_metric(learner)
        for index in indexes[: 1 + (start % 50 == 0)]:
            assert_follows(index, learner, X, dtype)


def test_neighbours_of_float32_points_are_exact_while_a_learner_goes_on():
    """Squared lengths followed the steps, and U the rounded sum of the learner."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 12)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    near = X + np.float32(1e-3) * rng.normal(size=X.shape).astype(np.float32)
    knn = SketchedMahalanobisClassifier(1, metric_learner=LEARNERS["LEGO"])
    knn.fit(X[:100], y[:100])
    for start in range(100, 600, 20):
        knn.partial_fit(X[start : start + 20], y[start : start + 20])
        held, U = X[: start + 20].astype(np.float64), knn.components_
        distances, found = knn.kneighbors(near[: start + 20])
        gaps = (near[: start + 20, np.newaxis] - held[found]) @ U.T
        assert_allclose(distances, np.linalg.norm(gaps, axis=2), rtol=1e-6)
        knn.check()


class Spy:
    """Ranks of the updates that reach an index, and the number of whole new metrics.

    Whether an update is of low rank shows in its cost only, so that private methods are
    watched.
    """

    def __init__(self, monkeypatch):
        self.ranks, self.replaced = [], 0
        add_low_rank, set_metric = Index.add_low_rank, Index.set_metric

        def added(index, W, V, **kwargs):
            self.ranks.append(W.shape[1])
            return add_low_rank(index, W, V, **kwargs)

        def replaced(index, *args, **kwargs):
            self.replaced += 1
            return set_metric(index, *args, **kwargs)

        monkeypatch.setattr(Index, "add_low_rank", added)
        monkeypatch.setattr(Index, "set_metric", replaced)


def test_all_steps_since_the_last_call_are_one_update(monkeypatch):
    X, y = labelled(200)
    learner = clone(LEARNERS["LEGO"]).fit(X[:50], y[:50])
    index = SketchedMahalanobisNeighbors(3).fit(X).update_metric(learner)
    index.kneighbors(X[:2])
    version, spy = learner.version_, Spy(monkeypatch)
    learner.partial_fit(X[50:54], y[50:54])
    steps = learner.version_ - version
    assert steps > 1
    index.update_metric(learner)
    assert (spy.ranks, spy.replaced) == ([steps], 0)
    index.update_metric(learner)
    assert (sum(spy.ranks), spy.replaced) == (steps, 0)


def test_where_the_log_was_cut_the_whole_metric_is_taken():
    X, y = labelled(400)
    learner = clone(LEARNERS["LEGO"]).fit(X[:20], y[:20])
    index = SketchedMahalanobisNeighbors(3).fit(X).update_metric(learner)
    token = learner.state_token()
    learner.partial_fit(X[20:], y[20:])
    assert learner.updates_since(token) is None
    assert_follows(index.update_metric(learner), learner, X)


def test_a_metric_changed_by_hand_is_not_taken_for_the_learners(monkeypatch):
    X, y = labelled(100)
    changes = [
        {"low_rank": (np.ones(D), np.ones(D))},
        {"metric": np.ones((1, D)), "rows": [3]},
        {"metric": np.ones((1, D)), "rows": [3], "additive": True},
        {"metric": 2 * np.eye(D)},
    ]
    for change in changes:
        learner = clone(LEARNERS["LEGO"]).fit(X[:50], y[:50])
        index = SketchedMahalanobisNeighbors(3).fit(X).update_metric(learner)
        index.update_metric(**change)
        learner.partial_fit(X[50:55], y[50:55])
        assert_follows(index.update_metric(learner), learner, X)


def test_another_learner_is_not_taken_for_the_one_before():
    X, y = labelled(100)
    learners = [clone(LEARNERS["LEGO"]).fit(X[:n], y[:n]) for n in (30, 60)]
    index = SketchedMahalanobisNeighbors(3).fit(X)
    for learner in (*learners, *learners):
        learner.partial_fit(X[60:63], y[60:63])
        assert_follows(index.update_metric(learner), learner, X)


# --- one call for a stream --------------------------------------------------------


@pytest.mark.slow
@any_learner
@any_engine
def test_partial_fit_adds_points_learns_from_them_and_moves_the_index(name, params):
    X, y = labelled(200)
    names = np.array(["a", "b", "c"])[y]
    learner = LEARNERS[name]
    knn = SketchedMahalanobisClassifier(3, metric_learner=learner, **params)
    alone = clone(learner).fit(X[:40], names[:40])
    knn.partial_fit(X[:40], names[:40], classes=["a", "b", "c"])
    for start in range(40, 200, 20):
        batch = slice(start, start + 20)
        knn.partial_fit(X[batch], names[batch])
        alone.partial_fit(X[batch], names[batch])
        assert_array_equal(knn.metric_learner_.components_, alone.components_)
        assert_follows(knn, alone, X[: start + 20])
    U = alone.components_
    exact = KNeighborsClassifier(3, algorithm="brute").fit(X @ U.T, names)
    Q = labelled(50, seed=1)[0]
    assert_array_equal(knn.predict(Q), exact.predict(Q @ U.T))
    assert knn.metric_learner is learner
    assert not hasattr(learner, "components_")


def test_an_index_without_targets_learns_where_labels_come():
    X, y = labelled(120)
    index = SketchedMahalanobisNeighbors(3, metric_learner=LEARNERS["LEGO"])
    index.fit(X[:40], y[:40])
    index.partial_fit(X[40:80], y[40:80])
    assert_follows(index, index.metric_learner_, X[:80])
    version = index.metric_learner_.version_
    index.partial_fit(X[80:])
    assert index.metric_learner_.version_ == version
    assert_follows(index, index.metric_learner_, X)


def test_targets_that_are_no_classes_are_refused_by_the_learner():
    X, y = labelled(40)
    knn = SketchedMahalanobisRegressor(metric_learner=LEARNERS["LEGO"])
    with pytest.raises(ValueError, match="Unknown label type"):
        knn.fit(X, y + 0.5)
    assert not hasattr(knn, "n_samples_fit_")


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["append", "add_low_rank"])
def test_a_failure_half_way_leaves_points_and_learner(monkeypatch, place, error):
    X, y = labelled(42)
    knn = SketchedMahalanobisClassifier(3, metric_learner=LEARNERS["LEGO"])
    knn.fit(X[:40], y[:40])
    components, version = knn.components_, knn.metric_learner_.version_

    def fail(*args, **kwargs):
        raise error("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(Index, place, fail)
        with pytest.raises(error, match="in the middle"):
            knn.partial_fit(X[40:], y[40:])
    assert knn.n_samples_fit_ == len(knn._maintenance.records) == 40
    assert knn.metric_learner_.version_ == version
    assert_array_equal(knn.components_, components)
    knn.partial_fit(X[40:], y[40:])
    assert_follows(knn, knn.metric_learner_, X)


class Stream(RuleBasedStateMachine):
    """Learner steps, changes of points and queries, in any order."""

    @initialize(
        name=st.sampled_from(sorted(LEARNERS)),
        params=st.sampled_from([EXACT, SKETCHED]),
    )
    def begin(self, name, params):
        self.X, self.y = labelled(40)
        self.learner = clone(LEARNERS[name]).fit(self.X, self.y)
        self.index = SketchedMahalanobisClassifier(3, **params).fit(self.X, self.y)
        self.index.update_metric(self.learner)
        self.seed = 1

    def more(self, count):
        self.seed += 1
        return labelled(count, seed=self.seed)

    @rule(count=st.integers(1, 30), follow=st.booleans())
    def learn(self, count, follow):
        self.learner.partial_fit(*self.more(count))
        if follow:
            self.index.update_metric(self.learner)

    @rule(count=st.integers(1, 10))
    def add(self, count):
        X, y = self.more(count)
        self.index.partial_fit(X, y)
        self.X, self.y = np.vstack([self.X, X]), np.concatenate([self.y, y])

    @rule(where=st.floats(0, 0.99))
    def replace(self, where):
        X, y = self.more(1)
        i = int(where * len(self.X))
        self.index.update_points([i], X, y)
        self.X[i], self.y[i] = X[0], y[0]

    @rule(where=st.floats(0, 0.99))
    def remove(self, where):
        if len(self.X) > 10:
            i = int(where * len(self.X))
            self.index.remove_points([i])
            self.X, self.y = np.delete(self.X, i, axis=0), np.delete(self.y, i)

    @rule()
    def change_by_hand(self):
        k = len(self.index.components_)
        self.index.update_metric(low_rank=(0.1 * np.ones(k), np.ones(D) / D))

    @rule()
    def ask(self):
        self.index.predict(self.X[:2])

    @rule()
    def compare(self):
        self.index.update_metric(self.learner)
        assert_follows(self.index, self.learner, self.X)

    @invariant()
    def points_and_labels_go_together(self):
        if hasattr(self, "index"):
            assert_array_equal(self.index._maintenance.records["target"][:, 0], self.y)


Stream.TestCase.settings = settings(max_examples=15, stateful_step_count=15)
test_any_interleaving_gives_the_results_of_a_fresh_fit = Stream.TestCase
