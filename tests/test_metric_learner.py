"""Every kind of `metric_learner` gives its metric, and moves an index to it."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, clone
from sklearn.covariance import EmpiricalCovariance, LedoitWolf, MinCovDet
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NeighborhoodComponentsAnalysis,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skmahal
from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)
from skmahal._core.state import State
from tests.neighbors.test_bad_input import FailsToFit, assert_refused, call

skmahal.enable_metric_learn()

import metric_learn  # noqa: E402

X, Y = (array[::2] for array in load_iris(return_X_y=True))
Q, Y_TRUE = (array[1::4] for array in load_iris(return_X_y=True))

ESTIMATORS = [
    SketchedMahalanobisClassifier,
    SketchedMahalanobisRegressor,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
]
SKETCHED = {"m": 1, "L": 3, "R": 1, "lead": 0, "delta": 1e-10, "random_state": 0}

few = {"n_constraints": 20, "max_iter": 5, "random_state": 0}
METRIC_LEARN = {
    "LMNN": metric_learn.LMNN(max_iter=5),
    "NCA": metric_learn.NCA(max_iter=5),
    "ITML_Supervised": metric_learn.ITML_Supervised(**few),
    "LSML_Supervised": metric_learn.LSML_Supervised(**few),
    "MMC_Supervised": metric_learn.MMC_Supervised(**few),
    "LFDA": metric_learn.LFDA(n_components=2),
    "MLKR": metric_learn.MLKR(max_iter=5),
    "SCML_Supervised": metric_learn.SCML_Supervised(
        n_basis=20, max_iter=50, output_iter=50, random_state=0
    ),
    "RCA_Supervised": metric_learn.RCA_Supervised(n_chunks=10, random_state=0),
}
SCIKIT_LEARN = {
    "NCA": NeighborhoodComponentsAnalysis(2, max_iter=5, random_state=0),
    "PCA": PCA(2),
}
COVARIANCES = {
    "EmpiricalCovariance": EmpiricalCovariance(),
    "LedoitWolf": LedoitWolf(),
    "MinCovDet": MinCovDet(random_state=0),
}

# What scikit-learn 1.6 and 1.7 say of the keyword that metric-learn uses, and what
# SciPy says to LFDA where the data has few features.
quiet = [
    pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:k >= N for N \\* N square:RuntimeWarning"),
]


def of_metric_learn(test):
    for mark in quiet:
        test = mark(test)
    return pytest.mark.parametrize("name", METRIC_LEARN)(test)


def assert_neighbours_under(index, U, n_neighbors=5):
    """Distances of `index` are those of brute force under U."""
    truth = np.sort(cdist(Q @ U.T, X @ U.T), axis=1)[:, :n_neighbors]
    distances = index.kneighbors(Q, n_neighbors)[0]
    assert_allclose(distances, truth, atol=1e-9 * truth.max())


# --- kinds of learners ----------------------------------------------------------------


@of_metric_learn
def test_supervised_learners_of_metric_learn_are_fitted_inside(name):
    learner = METRIC_LEARN[name]
    alone = clone(learner).fit(X, Y)
    knn = SketchedMahalanobisClassifier(metric_learner=learner).fit(X, Y)
    U, A = knn.components_, alone.get_mahalanobis_matrix()
    assert_array_equal(U, knn.metric_learner_.components_)
    # LFDA starts its eigensolver at random.
    assert_allclose(U.T @ U, A, rtol=0, atol=1e-9 * np.abs(A).max())
    assert not hasattr(learner, "components_")
    exact = KNeighborsClassifier(algorithm="brute").fit(X @ U.T, Y)
    assert_array_equal(knn.predict(Q), exact.predict(Q @ U.T))
    pair = np.stack([Q[:1], X[:1]], axis=1)
    distance = np.linalg.norm((Q[:1] - X[:1]) @ U.T)
    assert_allclose(knn.metric_learner_.pair_distance(pair), distance)


@of_metric_learn
def test_labels_may_be_strings(name):
    names = np.array(["setosa", "versicolor", "virginica"])
    knn = SketchedMahalanobisClassifier(metric_learner=METRIC_LEARN[name])
    expected = knn.fit(X, Y).predict(Q)
    found = knn.fit(X, names[Y]).predict(Q)
    # LFDA starts its eigensolver at random.
    assert np.mean(found == names[expected]) > 0.95


@of_metric_learn
def test_fitted_learners_of_metric_learn_move_an_index(name):
    alone = clone(METRIC_LEARN[name]).fit(X, Y)
    for settings in ({}, SKETCHED):
        index = SketchedMahalanobisNeighbors(**settings).fit(X)
        index.kneighbors(Q)
        assert_neighbours_under(index.update_metric(alone), alone.components_)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("name", SCIKIT_LEARN)
def test_transformers_of_scikit_learn_are_fitted_inside(kind, name):
    learner = SCIKIT_LEARN[name]
    index = kind(metric_learner=learner).fit(X, Y)
    U = clone(learner).fit(X, Y).components_
    assert_array_equal(index.components_, U)
    assert_neighbours_under(index, U)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_array_is_the_metric(kind):
    U = np.random.default_rng(0).normal(size=(3, 4))
    for given in (U, U.tolist(), np.asfortranarray(U)):
        index = kind(metric_learner=given).fit(X, Y)
        assert_array_equal(index.components_, U)
        assert_neighbours_under(index, U)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("name", COVARIANCES)
def test_a_covariance_estimator_gives_the_mahalanobis_distance(kind, name):
    learner = COVARIANCES[name]
    V = clone(learner).fit(X).covariance_
    truth = np.sort(cdist(Q, X, "mahalanobis", VI=np.linalg.inv(V)), axis=1)[:, :5]
    index = kind(metric_learner=learner).fit(X, Y)
    assert_allclose(index.kneighbors(Q, 5)[0], truth, rtol=1e-9)
    moved = kind().fit(X, Y).update_metric(clone(learner).fit(X))
    assert_allclose(moved.kneighbors(Q, 5)[0], truth, rtol=1e-9)


class OfMatrix(BaseEstimator):
    """A learner that gives its Mahalanobis matrix, and no components."""

    def __init__(self, matrix=None):
        self.matrix = matrix

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def get_mahalanobis_matrix(self):
        return self.matrix


class JustAMatrix:
    """What is no estimator, and gives its matrix all the same."""

    def __init__(self, matrix):
        self.matrix = matrix

    def get_mahalanobis_matrix(self):
        return self.matrix


class NoEstimator(JustAMatrix):
    """A learner of another library, which scikit-learn knows nothing of."""

    def fit(self, X, y=None):
        raise AssertionError("a learner given to update_metric is fitted already")


def semi_definite():
    root = np.random.default_rng(0).normal(size=(2, 4))
    return root, root.T @ root


def test_a_mahalanobis_matrix_is_factored_at_its_rank():
    U, A = semi_definite()
    knn = SketchedMahalanobisClassifier(metric_learner=OfMatrix(A)).fit(X, Y)
    assert knn.components_.shape == (2, 4)
    assert_neighbours_under(knn, U)
    index = SketchedMahalanobisNeighbors().fit(X)
    assert_neighbours_under(index.update_metric(JustAMatrix(A)), U)
    index = SketchedMahalanobisNeighbors().fit(X)
    assert_neighbours_under(index.update_metric(NoEstimator(A)), U)


def test_components_come_before_a_matrix():
    learner = OfMatrix(np.eye(4)).fit(X)
    learner.components_ = np.ones((1, 4))
    index = SketchedMahalanobisNeighbors(metric_learner=FrozenEstimator(learner)).fit(X)
    assert_array_equal(index.components_, np.ones((1, 4)))


@pytest.mark.parametrize(
    "learner",
    [*SCIKIT_LEARN.values(), *COVARIANCES.values(), OfMatrix(np.eye(4))],
    ids=lambda learner: type(learner).__name__,
)
def test_a_frozen_learner_is_not_fitted_again(learner):
    learner = clone(learner).fit(X[::2], Y[::2])
    index = SketchedMahalanobisNeighbors().fit(X).update_metric(learner)
    frozen = SketchedMahalanobisNeighbors(metric_learner=FrozenEstimator(learner))
    assert_array_equal(frozen.fit(X, Y).components_, index.components_)


def test_labels_reach_the_learner_as_numbers():
    class SeesTargets(BaseEstimator):
        def fit(self, X, y):
            self.components_ = np.eye(X.shape[1])
            self.seen_ = y
            return self

    names = np.array(["a", "b", "c"])[Y]
    for labels in (Y, names, names.astype(object)):
        knn = SketchedMahalanobisClassifier(metric_learner=SeesTargets()).fit(X, labels)
        assert_array_equal(knn.metric_learner_.seen_, Y)
    two = np.stack([names, names[::-1]], axis=1)
    knn.fit(X, two)
    assert_array_equal(knn.metric_learner_.seen_, np.stack([Y, Y[::-1]], axis=1))
    column = SketchedMahalanobisRegressor(metric_learner=SeesTargets())
    assert column.fit(X, Y[:, np.newaxis]).metric_learner_.seen_.shape == Y.shape
    both = np.stack([Y, Y], axis=1)
    assert_array_equal(column.fit(X, both).metric_learner_.seen_, both)


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_a_learner_for_regression_serves_the_regressor():
    y = X[:, 0] * 2.0
    learner = metric_learn.MLKR(max_iter=5)
    knn = SketchedMahalanobisRegressor(metric_learner=learner).fit(X[:, 1:], y)
    U = knn.components_
    exact = KNeighborsRegressor(algorithm="brute").fit(X[:, 1:] @ U.T, y)
    assert_allclose(knn.predict(Q[:, 1:]), exact.predict(Q[:, 1:] @ U.T))


# --- search ---------------------------------------------------------------------------


def test_parameters_of_the_learner_are_searched_with_those_of_the_index():
    nca = NeighborhoodComponentsAnalysis(max_iter=3, random_state=0)
    grid = {"metric_learner__n_components": [1, 3], "m": [1, 2], "L": [1, 4]}
    knn = SketchedMahalanobisClassifier(metric_learner=nca, random_state=0, lead=0)
    search = GridSearchCV(knn, grid, cv=3).fit(X, Y)
    assert len(search.cv_results_["params"]) == 8
    best = search.best_estimator_
    assert len(best.components_) == search.best_params_["metric_learner__n_components"]
    assert (best.m_, best.L_) == (search.best_params_["m"], search.best_params_["L"])
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        alone = cross_val_score(clone(knn).set_params(**params), X, Y, cv=3)
        assert score == alone.mean()


def test_a_pipeline_is_searched_through_every_level():
    nca = NeighborhoodComponentsAnalysis(max_iter=3, random_state=0)
    knn = SketchedMahalanobisClassifier(metric_learner=nca, random_state=0)
    pipeline = make_pipeline(StandardScaler(), knn)
    step = "sketchedmahalanobisclassifier"
    grid = {
        f"{step}__metric_learner": [None, nca, LedoitWolf()],
        f"{step}__weights": ["uniform", "distance"],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, Y)
    assert search.score(Q, Y_TRUE) > 0.9


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_learners_of_metric_learn_are_searched_by_other_processes():
    knn = SketchedMahalanobisClassifier(metric_learner=metric_learn.LFDA())
    grid = {"metric_learner__n_components": [2, 3]}
    search = GridSearchCV(knn, grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
    assert search.score(Q, Y_TRUE) > 0.9


# --- a metric that moves --------------------------------------------------------------


def rows_changed(U, rows):
    new = U.copy()
    new[rows] += np.random.default_rng(7).normal(size=(len(rows), U.shape[1]))
    return new


WIDE = np.random.default_rng(1).normal(size=(200, 24))
WIDE_QUERIES = np.random.default_rng(2).normal(size=(20, 24))
START = np.random.default_rng(3).normal(size=(16, 24))
METRICS = {
    "the same": START,
    "a row": rows_changed(START, [5]),
    "a few rows": rows_changed(START, [0, 9, 15]),
    "nearly all rows": rows_changed(START, range(1, 16)),
    "all rows": rows_changed(START, range(16)),
    "low rank": START + np.outer(np.arange(16), np.arange(24)) / 99,
    "fewer rows": START[:9],
    "one row": START[:1],
    "more rows": np.vstack([START, START[:5] + 1]),
    "a square": rows_changed(np.eye(24), range(24)),
}


class Learnt(BaseEstimator):
    """A learner that was fitted elsewhere."""

    def __init__(self, components):
        self.components_ = components

    def fit(self, X, y=None):
        raise AssertionError("a learner given to update_metric is fitted already")


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize(
    "settings", [{}, {**SKETCHED, "m": 4}], ids=["exact", "sketched"]
)
@pytest.mark.parametrize("change", METRICS)
def test_a_fitted_learner_gives_the_answers_of_a_fresh_fit(change, settings, warm):
    U = METRICS[change]
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    if warm:
        index.kneighbors(WIDE_QUERIES)
        index.sum_distances(WIDE_QUERIES)
    assert index.update_metric(Learnt(U)) is index
    assert_equals_fresh(index, WIDE, U, settings)


def assert_equals_fresh(index, points, U, settings):
    fresh = SketchedMahalanobisNeighbors(metric_learner=U, **settings).fit(points)
    assert_allclose(index.components_, U, rtol=0, atol=1e-12)
    assert index.engine_ == fresh.engine_
    assert index.n_samples_fit_ == len(points)
    distances, indices = index.kneighbors(WIDE_QUERIES)
    expected, same = fresh.kneighbors(WIDE_QUERIES)
    assert_array_equal(indices, same)
    assert_allclose(distances, expected, rtol=1e-11)
    sums = fresh.sum_distances(WIDE_QUERIES, 3, 99)
    assert_allclose(index.sum_distances(WIDE_QUERIES, 3, 99), sums, rtol=1e-10)
    pairs = np.arange(50), np.arange(50, 100)
    exact = np.linalg.norm((points[pairs[0]] - points[pairs[1]]) @ U.T, axis=1)
    if index.engine_ == "exact":
        assert_allclose(index.pair_distances(*pairs), exact, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings", [{}, {**SKETCHED, "m": 4}], ids=["exact", "sketched"]
)
def test_any_sequence_of_updates_ends_at_a_fresh_fit(settings, seed):
    rng = np.random.default_rng(seed)
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    points, U = WIDE.copy(), START
    for _ in range(12):
        step = rng.choice(["learner", "array", "rows", "rank", "points", "more"])
        if step in ("learner", "array"):
            U = METRICS[rng.choice(list(METRICS))]
            index.update_metric(Learnt(U) if step == "learner" else U)
        elif step == "rows":
            row = int(rng.integers(len(U)))
            U = rows_changed(U, [row])
            index.update_metric(U[[row]], rows=[row])
        elif step == "rank":
            W, V = rng.normal(size=(len(U), 2)), rng.normal(size=(24, 2)) / 9
            U = U + W @ V.T
            index.update_metric(low_rank=(W, V))
        elif step == "points":
            where = rng.permutation(len(points))[:5]
            points[where] = rng.normal(size=(5, 24))
            index.update_points(where, points[where])
        else:
            new = rng.normal(size=(7, 24))
            points = np.vstack([points, new])[3:]
            index.partial_fit(new).remove_points(range(3))
        if rng.integers(2):
            index.kneighbors(WIDE_QUERIES)
        assert_equals_fresh(index, points, U, settings)


# What of the index is changed for each of METRICS: the rank of an update, or all.
ROUTES = {
    "the same": [],
    "a row": [1],
    "a few rows": [3],
    "low rank": [1],
    "nearly all rows": ["replaced"],
    "all rows": ["replaced"],
    "fewer rows": ["replaced"],
    "more rows": ["replaced"],
}


@pytest.mark.parametrize(
    "settings", [{}, {**SKETCHED, "m": 4}], ids=["exact", "sketched"]
)
@pytest.mark.parametrize("change", ROUTES)
def test_a_fitted_learner_takes_the_cheapest_route(change, settings, monkeypatch):
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    add_low_rank, under, taken = State.add_low_rank, State.under, []

    def added(state, change, *args, **kwargs):
        taken.append(change.rank)
        add_low_rank(state, change, *args, **kwargs)

    def replaced(state, metric):
        taken.append("replaced")
        return under(state, metric)

    monkeypatch.setattr(State, "add_low_rank", added)
    monkeypatch.setattr(State, "under", replaced)
    index.update_metric(Learnt(METRICS[change]))
    assert taken == ROUTES[change]


MOVING = {
    "other rows": [np.vstack([START, START[:5]])],
    "through the exact engine": [START[:2], START],
    "first through a low rank": [START + 1, START[:2], START[:9]],
}


@pytest.mark.parametrize("refreshed", [True, False], ids=["refreshed", "as fitted"])
@pytest.mark.parametrize("way", MOVING)
def test_sketches_that_were_given_up_do_not_come_back(way, refreshed):
    labels = np.arange(len(WIDE)) % 3
    knn = SketchedMahalanobisClassifier(metric_learner=START, **{**SKETCHED, "m": 4})
    engine = knn.fit(WIDE, labels)._engine
    seeds, key, points = engine._seeds.copy(), engine._key, engine._state.points
    if refreshed:
        engine = knn.refresh_sketches()._engine
        assert (engine._seeds != seeds).all()
    for U in MOVING[way]:
        knn.update_metric(U)
    assert knn.engine_ == "sketched"
    assert knn._engine._state.points is points
    if refreshed or len(MOVING[way]) > 1:
        assert (knn._engine._seeds != seeds).all()
    if len(MOVING[way]) > 1:
        assert knn._engine._key != key
    else:
        assert_array_equal(knn._engine._seeds, engine._seeds)
    exact = KNeighborsClassifier(algorithm="brute").fit(WIDE @ U.T, labels)
    assert_array_equal(knn.predict(WIDE_QUERIES), exact.predict(WIDE_QUERIES @ U.T))


def test_parameters_set_after_fit_do_not_count_when_the_rows_change():
    settings = {**SKETCHED, "m": 4}
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    index.set_params(m=2, L=7, sketch="srht", random_state=1)
    # To the exact engine, to a sketched one that is made anew, and to more rows.
    for U in (START[:2], START, np.vstack([START, START[:5]])):
        index.update_metric(U)
        assert (index.m_, index.L_, index.R_) == (4, 3, 1)
        if index.engine_ == "sketched":
            assert (index._engine.m, index._engine.L) == (4, 3)
            assert index._engine.sketch == "gaussian"
    assert index.engine_ == "sketched"


def test_labels_stay_when_the_number_of_rows_changes():
    knn = SketchedMahalanobisClassifier(metric_learner=PCA(1)).fit(X, Y)
    knn.partial_fit(Q, Y_TRUE).remove_points([0, 1])
    U = PCA(3).fit(X).components_
    knn.update_metric(FrozenEstimator(PCA(3).fit(X)))
    now = np.vstack([X, Q])[2:], np.concatenate([Y, Y_TRUE])[2:]
    exact = KNeighborsClassifier(algorithm="brute").fit(now[0] @ U.T, now[1])
    assert_allclose(knn.predict_proba(Q), exact.predict_proba(Q @ U.T))


# --- errors ---------------------------------------------------------------------------


class WithoutAMetric(BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self


BAD_LEARNERS = {
    "indefinite": (
        OfMatrix(np.diag([1.0, 2.0, -0.5, 1.0])),
        r"A must be positive semi-definite, and has the eigenvalue -0\.5",
    ),
    "not symmetric": (OfMatrix(np.triu(np.ones((4, 4)))), "A must be symmetric"),
    "zero": (OfMatrix(np.zeros((4, 4))), "A is zero"),
    "NaN": (OfMatrix(np.full((4, 4), np.nan)), "A contains NaN"),
    "other features": (
        OfMatrix(np.eye(3)),
        r"get_mahalanobis_matrix must give .* \(4, 4\).* got shape \(3, 3\)",
    ),
    "no metric": (
        WithoutAMetric(),
        "components_, get_mahalanobis_matrix, get_precision once fitted, and "
        "WithoutAMetric has none",
    ),
}


@pytest.mark.parametrize("name", BAD_LEARNERS)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_learner_without_a_metric_is_refused_and_changes_nothing(kind, name):
    learner, message = BAD_LEARNERS[name]
    unfitted = kind(metric_learner=learner)
    assert_refused(unfitted, call("fit", X, Y), ValueError, message)
    index = kind().fit(X, Y)
    fitted = clone(learner).fit(X, Y)
    assert_refused(index, call("update_metric", fitted), ValueError, message)
    index.set_params(metric_learner=learner)
    assert_refused(index, call("fit", X[:20], Y[:20]), ValueError, message)


@pytest.mark.parametrize(
    "learner",
    [LedoitWolf(), PCA(2), metric_learn.LMNN()],
    ids=lambda learner: type(learner).__name__,
)
def test_a_learner_that_is_not_fitted_cannot_move_an_index(learner):
    index = SketchedMahalanobisNeighbors().fit(X)
    message = "must be fitted|once fitted"
    assert_refused(index, call("update_metric", learner), ValueError, message)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_learner_that_fails_leaves_the_estimator_as_it_was(kind, error):
    learner = FailsToFit(error)
    fit = call("fit", X, Y)
    assert_refused(kind(metric_learner=learner), fit, error, "the learner failed")
    index = kind().fit(X[:30], Y[:30]).set_params(metric_learner=learner)
    assert_refused(index, fit, error, "the learner failed")


class Stateless(BaseEstimator):
    """A learner that returns nothing from `fit` and keeps nothing."""

    def fit(self, X, y=None):
        pass

    def get_mahalanobis_matrix(self):
        return np.eye(4)


def test_what_fit_returns_and_keeps_does_not_matter():
    index = SketchedMahalanobisNeighbors(metric_learner=Stateless()).fit(X)
    assert_allclose(index.components_.T @ index.components_, np.eye(4), atol=1e-12)


def test_the_keyword_that_metric_learn_fails_by_comes_with_a_hint():
    class OfOld(BaseEstimator):
        def fit(self, X, y=None):
            raise TypeError("unexpected keyword argument 'force_all_finite'")

    knn = SketchedMahalanobisClassifier(metric_learner=OfOld())
    assert_refused(
        knn, call("fit", X, Y), TypeError, r"skmahal.enable_metric_learn\(\)"
    )


def test_a_class_is_no_learner():
    knn = SketchedMahalanobisClassifier(metric_learner=PCA)
    assert_refused(knn, call("fit", X, Y), TypeError, "metric_learner cannot be cloned")
    knn = SketchedMahalanobisClassifier().fit(X, Y)
    message = "metric must be an instance, got the class PCA"
    assert_refused(knn, call("update_metric", PCA), TypeError, message)


def test_the_error_of_a_learner_that_takes_no_sparse_points_is_shown():
    knn = SketchedMahalanobisClassifier(metric_learner=NeighborhoodComponentsAnalysis())
    fit = call("fit", sparse.csr_matrix(X), Y)
    assert_refused(knn, fit, TypeError, "dense data is required")


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    "bad",
    ["nca", 3.0, {"a": 1}, JustAMatrix(np.eye(4))],
    ids=lambda bad: type(bad).__name__,
)
def test_what_is_no_learner_is_refused_by_name(kind, bad):
    estimator = kind(metric_learner=bad)
    with pytest.raises((ValueError, TypeError), match="metric_learner"):
        estimator.fit(X, Y)


class SetsWord(BaseEstimator):
    """A learner that puts a word of its own in place of an equal one, as some do."""

    def __init__(self, word="deprecated"):
        self.word = "deprecated" if word == "deprecated" else word

    def fit(self, X, y=None):
        self.components_ = np.eye(X.shape[1])
        return self


def test_a_learner_that_replaces_words_is_fitted_after_pickling():
    knn = SketchedMahalanobisClassifier(1, metric_learner=SetsWord())
    again = pickle.loads(pickle.dumps(knn))
    with pytest.raises(RuntimeError, match="Cannot clone"):
        clone(again.metric_learner)
    X, y = np.eye(3), [0, 1, 2]
    assert list(again.fit(X, y).predict(X)) == y
