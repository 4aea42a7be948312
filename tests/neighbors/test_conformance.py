"""SketchedMahalanobisNeighbors follows scikit-learn's conventions, every one."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import SketchedMahalanobisNeighbors, neighbors

from .cases import NOT_IN_THE_DEFAULT_SET, SMALLEST_SKETCH

CONFORMING = [
    SketchedMahalanobisNeighbors(),
    SketchedMahalanobisNeighbors(**SMALLEST_SKETCH),
    SketchedMahalanobisNeighbors(m=1, L=3, lead="auto"),
    SketchedMahalanobisNeighbors(m=1, L=7, R=2, lead=0, sketch="rademacher"),
    SketchedMahalanobisNeighbors(m=1, L=1, lead=0, sketch="countsketch"),
    SketchedMahalanobisNeighbors(m=1, L=1, lead=0, sketch="srht"),
    SketchedMahalanobisNeighbors(n_candidates=5, **SMALLEST_SKETCH),
    SketchedMahalanobisNeighbors(metric_learner=PCA(1)),
    SketchedMahalanobisNeighbors(random_state=0, n_jobs=2, **SMALLEST_SKETCH),
]

QUERIES = {
    "kneighbors": lambda index, X: np.hstack(index.kneighbors(X, 3)),
    "kneighbors_graph": lambda index, X: index.kneighbors_graph(X).toarray(),
    "radius_neighbors": lambda index, X: index.radius_neighbors_graph(
        X, 1.5, mode="distance"
    ).toarray(),
    "distances": lambda index, X: index.distances(X),
    "sum_distances": lambda index, X: index.sum_distances(X, 3, 17)[:, np.newaxis],
}


@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("check", NOT_IN_THE_DEFAULT_SET, ids=lambda c: c.__name__)
def test_scikit_learn_conventions_that_are_not_checked_by_default(estimator, check):
    check("SketchedMahalanobisNeighbors", clone(estimator))


def test_the_checks_meet_both_engines():
    X = np.random.default_rng(0).uniform(size=(20, 3))
    engines = [clone(estimator).fit(X).engine_ for estimator in CONFORMING]
    assert engines == ["exact", *["sketched"] * 6, "exact", "sketched"]


@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_answers_do_not_depend_on_batch_or_order(estimator, query):
    X = np.random.default_rng(0).uniform(size=(20, 3))
    index = clone(estimator).set_params(random_state=0).fit(X)
    Q = np.random.default_rng(1).uniform(size=(11, 3))
    answers, turned = query(index, Q), np.arange(11)[::-1]
    one_by_one = np.vstack([query(index, Q[[i]]) for i in range(11)])
    np.testing.assert_allclose(one_by_one, answers, rtol=1e-7)
    np.testing.assert_allclose(query(index, Q[turned]), answers[turned], rtol=1e-7)


@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_queries_leave_the_attributes_alone(estimator, query):
    X = np.random.default_rng(0).uniform(size=(20, 3))
    index = clone(estimator).fit(X)
    before = dict(vars(index))
    query(index, X)
    assert vars(index) == before


def test_a_frozen_learner_is_kept_by_clone():
    X = np.random.default_rng(0).normal(size=(20, 3))
    learner = FrozenEstimator(PCA(2).fit(X))
    index = clone(SketchedMahalanobisNeighbors(metric_learner=learner)).fit(X + 5)
    np.testing.assert_array_equal(index.components_, learner.components_)


@pytest.mark.parametrize("name", neighbors.__all__)
def test_costs_are_not_hidden_among_the_parameters(name):
    kind = getattr(neighbors, name)
    for method in filter(callable, vars_of(kind)):
        text = (method.__doc__ or "").split("Parameters\n")[1:]
        described = "".join(text).split("Notes\n")[0]
        assert " O(" not in described, method.__qualname__


def vars_of(kind):
    """What a class has, and those of its own package that it inherits from."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("skmahal")]
    return [value for base in ours for value in vars(base).values()]
