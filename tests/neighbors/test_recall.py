"""`recall` on the estimators: what is requested, refused, stated, saved and drawn."""

import pickle
import threading
from copy import deepcopy

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)
from skmahal._core.kernels import available
from skmahal.inspection import RecallDisplay
from tests.core.data import clusters

ALL = [
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
]
needs_numba = pytest.mark.skipif(not available(), reason="needs numba")
X = clusters(8300, 24, 80, 0.5).astype(np.float32)
X, Q = X[:8000], X[8000:]
y = (X[:, 0] > 0).astype(int)


def fitted(kind, **params):
    index = kind(n_neighbors=10, **params)
    return index.fit(X, y)


def recall_of(found, exact):
    pairs = zip(found, exact, strict=True)
    return np.mean([len(np.intersect1d(*pair)) for pair in pairs]) / exact.shape[1]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("recall", [0, 1, 1.5, -0.1, "all", np.nan])
def test_recall_must_be_between_0_and_1(kind, recall):
    with pytest.raises(ValueError, match="'recall' parameter"):
        fitted(kind, recall=recall)


@pytest.mark.parametrize("kind", ALL)
def test_recall_with_what_contradicts_it(kind):
    with pytest.raises(ValueError, match="recall must be None if adaptive is True"):
        fitted(kind, recall=0.9, adaptive=True)
    for n_candidates in ("certified", 50):
        with pytest.raises(ValueError, match="recall needs n_candidates='exact', got"):
            fitted(kind, recall=0.9, n_candidates=n_candidates)


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("kind", ALL)
def test_all_estimators_have_the_recall(kind):
    index, exact = fitted(kind, recall=0.9), fitted(kind)
    distances, found = index.kneighbors(Q)
    assert recall_of(found, exact.kneighbors(Q)[1]) > 0.88
    assert 0.9 <= index.recall_ < 1 == exact.recall_
    gaps = np.linalg.norm(Q[:, np.newaxis] - X[found], axis=2)
    np.testing.assert_allclose(distances, gaps, rtol=1e-5)
    # From another index: in this one, recent queries may have raised the recall.
    graph = fitted(kind, recall=0.9).kneighbors_graph(Q, mode="distance")
    np.testing.assert_array_equal(graph.indices.reshape(len(Q), -1), found)
    np.testing.assert_allclose(graph.data, gaps.ravel(), rtol=1e-5)
    # Points as queries: none is its own neighbour.
    _, own = index.kneighbors(None)
    assert (own != np.arange(len(X))[:, np.newaxis]).all()
    assert recall_of(own, exact.kneighbors(None)[1]) > 0.88


@needs_numba
def test_predictions_are_those_of_neighbours():
    classifier = fitted(SketchedMahalanobisClassifier, recall=0.95)
    peer = KNeighborsClassifier(10).fit(X, y)
    assert np.mean(classifier.predict(Q) == peer.predict(Q)) > 0.98
    regressor = fitted(SketchedMahalanobisRegressor, recall=0.95)
    peer = KNeighborsRegressor(10).fit(X, y)
    assert np.mean(np.abs(regressor.predict(Q) - peer.predict(Q))) < 0.02


@needs_numba
def test_radius_neighbors_and_distances_are_exact():
    index = fitted(SketchedMahalanobisNeighbors, recall=0.5)
    exact = fitted(SketchedMahalanobisNeighbors)
    for one, other in zip(
        index.radius_neighbors(Q[:5], 3.0),
        exact.radius_neighbors(Q[:5], 3.0),
        strict=True,
    ):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(index.distances(Q[:5]), exact.distances(Q[:5]))


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("copied", [deepcopy, lambda i: pickle.loads(pickle.dumps(i))])
def test_saved_and_loaded_answers_are_the_same_bits(copied):
    index = fitted(SketchedMahalanobisNeighbors, recall=0.9)
    rng = np.random.default_rng(0)
    for step in range(4):
        index.update_metric(low_rank=(rng.normal(size=24), rng.normal(size=24) / 4))
        index.partial_fit(X[:40] + 0.01 * step)
        index.update_points(np.arange(30) + 100 * step, X[50:80] + 1)
        other = copied(index)
        for one, two in zip(index.kneighbors(Q), other.kneighbors(Q), strict=True):
            np.testing.assert_array_equal(one, two)
        assert other.guarantee().recall == index.guarantee().recall
        other.check()
    index.remove_points(np.arange(0, 8000, 2))
    index.check()


@needs_numba
def test_guarantee_and_audit_say_what_was_measured():
    index = fitted(SketchedMahalanobisNeighbors, recall=0.9)
    found = index.guarantee()
    assert found.recall.target == 0.9 <= found.recall.least <= found.recall.measured
    assert found.recall.measured == index.recall_
    assert found.recall.n_queries == 400
    assert 0 < found.recall.share < 0.5
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 1
    assert found.fixed.radius_neighbors == 0
    text = str(found)
    assert "0.9 is requested" in text
    assert "Nothing is promised for" in text
    assert "kneighbors: exact" not in text
    version = found.recall.version
    index.update_metric(low_rank=(5 * np.eye(24)[0], np.eye(24)[0]))
    index.kneighbors(Q[:1])
    assert index.guarantee().recall.version > version
    audit = index.audit(random_state=0)
    assert audit.recall.target == 0.9
    assert audit.recall.passed
    assert "which agrees with the 0.9 that was requested." in str(audit)
    exact = fitted(SketchedMahalanobisNeighbors)
    assert exact.guarantee().recall is None
    assert exact.audit(random_state=0).recall is None


@needs_numba
def test_grid_search_over_recall():
    search = GridSearchCV(
        SketchedMahalanobisClassifier(), {"recall": [None, 0.5, 0.9]}, cv=2
    )
    search.fit(X[:4000], y[:4000])
    assert (search.cv_results_["mean_test_score"] > 0.8).all()
    assert clone(search.best_estimator_).recall in (None, 0.5, 0.9)


def test_sparse_points_are_searched_exactly():
    rows = sparse.random(3000, 50, 0.1, format="csr", random_state=0)
    index = SketchedMahalanobisNeighbors(5, recall=0.5).fit(rows)
    exact = SketchedMahalanobisNeighbors(5).fit(rows)
    found = index.kneighbors(rows[:20])[1]
    np.testing.assert_array_equal(found, exact.kneighbors(rows[:20])[1])
    assert index.recall_ == 1.0
    assert "kneighbors: exact" in str(index.guarantee())


@needs_numba
def test_queries_beside_updates_and_new_cells():
    index = fitted(SketchedMahalanobisNeighbors, recall=0.9)
    errors, done = [], threading.Event()

    def ask():
        try:
            while not done.is_set():
                distances, found = index.kneighbors(Q[:20])
                assert (found >= 0).all()
                assert (found < index.n_samples_fit_ + 500).all()
                assert np.isfinite(distances).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for step in range(12):
        index.update_metric(low_rank=(rng.normal(size=24), rng.normal(size=24)))
        index.partial_fit(X[:100] + 0.1)
        index.update_points(np.arange(50), X[50:100] + step)
        index.remove_points(np.arange(60))
        if step == 6:
            held = index._maintenance.index
            held.probes.work = held.probes.work._replace(wasted=1e18)
    done.set()
    for thread in threads:
        thread.join()
    assert not errors
    index.check()


@needs_numba
def test_a_display_of_recall_against_time():
    pytest.importorskip("matplotlib").use("Agg")
    index = fitted(SketchedMahalanobisNeighbors, recall=0.9)
    display = RecallDisplay.from_estimator(index, n_queries=50)
    assert (np.diff(display.recalls) >= 0).all()
    assert display.recalls[-1] == 1
    assert display.chosen in display.budgets
    assert len(display.line_.get_xdata()) == len(display.budgets)
    given = RecallDisplay.from_estimator(index, Q[:20], name="mine")
    assert given.ax_.get_title() == "mine"
    with pytest.raises(ValueError, match="it has recall=None and 8000 points"):
        RecallDisplay.from_estimator(fitted(SketchedMahalanobisNeighbors))
    few = SketchedMahalanobisNeighbors(3, recall=0.9).fit(X[:100])
    with pytest.raises(ValueError, match=r"it has recall=0\.9 and 100 points"):
        RecallDisplay.from_estimator(few)
