"""An index follows an online learner, and stays with it if anything fails."""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator

from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisNeighbors
from tests.faults import Steps

from .cases import CERTIFIED, EXACT, D, clustered, labels, oracle_of

X, Y = clustered(), labels()
TRIED = 30


class Change(NamedTuple):
    """``U += W Vᵀ``, as the learners of the package report it."""

    W: np.ndarray
    V: np.ndarray

    @property
    def rank(self):
        return self.W.shape[1]


class Online(BaseEstimator):
    """A learner whose U gets one rank-one step per batch."""

    def fit(self, X, y=None):
        self.steps_, self.read_, self.error_ = [], 0, None
        return self

    @property
    def components_(self):
        self.read_ += 1
        return np.eye(D) + sum((W @ V.T for W, V in self.steps_), np.zeros((D, D)))

    def partial_fit(self, X, y=None):
        w = np.zeros((D, 1))
        w[len(self.steps_) % D] = 0.1
        self.steps_ = [*self.steps_, (w, X.mean(axis=0)[:, np.newaxis])]
        if self.error_ is not None:
            raise self.error_
        return self

    def state_token(self):
        return len(self.steps_)

    def updates_since(self, token):
        steps = self.steps_[token:]
        if not steps:
            return Change(np.zeros((D, 0)), np.zeros((D, 0)))
        return Change(*(np.hstack(part) for part in zip(*steps, strict=True)))


def fitted(params=EXACT):
    knn = SketchedMahalanobisClassifier(1, metric_learner=Online(), **params)
    knn.fit(X[:200], Y[:200] % 3).predict(X[:3])
    return knn


def assert_in_step(knn):
    """The index has the metric of its learner, and neighbours under it."""
    U = knn.metric_learner_.components_
    assert_allclose(knn.components_, U, rtol=1e-12, atol=1e-12)
    exact = oracle_of(knn).query_all(X[::40])
    assert_allclose(knn.kneighbors(X[::40], 3)[0], np.sort(exact)[:, :3], atol=1e-9)


@pytest.mark.parametrize("params", [EXACT, CERTIFIED], ids=["exact", "certified"])
def test_the_index_follows_what_the_learner_learns(params):
    knn = fitted(params)
    for start in (200, 210, 230):
        before = knn.components_
        knn.partial_fit(X[start : start + 10], Y[start : start + 10] % 3)
        assert (knn.components_ != before).any()
        assert_in_step(knn)
    knn.check()


def test_the_metric_of_a_learner_is_read_once():
    knn = fitted()
    learner = knn.metric_learner_
    for change in (
        lambda: knn.update_metric(learner.partial_fit(X[:5])),
        lambda: knn.partial_fit(X[:5], Y[:5] % 3),
        lambda: knn.update_metric(learner),
        lambda: knn.update_metric(Online().fit(X).partial_fit(X[:9])),
    ):
        learner.read_ = 0
        change()
        assert learner.read_ <= 1


def test_after_another_change_the_whole_metric_is_taken():
    knn = fitted()
    learner = knn.metric_learner_.partial_fit(X[:5])
    knn.update_metric(learner)
    knn.update_metric(np.full((1, D), 7.0), rows=[3])
    knn.update_metric(learner.partial_fit(X[5:9]))
    assert_in_step(knn)


def test_a_refused_change_does_not_stop_the_index_from_following():
    knn = fitted()
    with pytest.raises(ValueError, match="W"):
        knn.update_metric(low_rank=(np.ones((3, 1)), np.ones((D, 1))))
    knn.update_metric(knn.metric_learner_.partial_fit(X[:5]))
    assert_in_step(knn)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no")])
def test_a_learner_that_fails_leaves_index_and_learner(error):
    knn = fitted()
    learner, U, n = knn.metric_learner_, knn.components_, knn.n_samples_fit_
    learner.error_ = error
    with pytest.raises(type(error), match="no"):
        knn.partial_fit(X[200:], Y[200:] % 3)
    assert learner.steps_ == []
    assert_array_equal(knn.components_, U)
    assert knn.n_samples_fit_ == n
    learner.error_ = None
    knn.partial_fit(X[200:], Y[200:] % 3)
    assert_in_step(knn)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_failure_leaves_all_of_a_change_or_nothing(error):
    def change(knn):
        return knn.partial_fit(X[200:], Y[200:] % 3)

    with Steps() as steps:
        change(fitted())
    for at in range(0, steps.count, max(1, steps.count // TRIED)):
        knn = fitted()
        with suppress(error), Steps(at, error):
            change(knn)
        learned = len(knn.metric_learner_.steps_)
        assert knn.n_samples_fit_ == (len(X) if learned else 200)
        assert_in_step(knn)
        # Whatever failed, the next steps are followed.
        knn.update_metric(knn.metric_learner_.partial_fit(X[:5]))
        assert_in_step(knn)


def test_an_index_without_targets_follows_as_well():
    index = SketchedMahalanobisNeighbors(metric_learner=Online()).fit(X[:200])
    index.partial_fit(X[200:220])
    assert len(index.metric_learner_.steps_) == 0
    index.partial_fit(X[220:], Y[220:])
    assert len(index.metric_learner_.steps_) == 1
    assert_in_step(index)
