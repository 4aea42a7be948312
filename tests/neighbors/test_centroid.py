"""The nearest class mean, against brute force and against scikit-learn."""

import copy
import pickle
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import skops.io
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.covariance import LedoitWolf
from sklearn.covariance import oas as sklearn_oas
from sklearn.datasets import load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestCentroid, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import MahalanobisCentroidClassifier
from skmahal.online import LEGO, POLA, OnlineITML

X, Y = load_wine(return_X_y=True)
# Brought near one scale: shrinkage compares the features.
X = X / X.std(axis=0)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Q, Y, Y_TEST = X[ORDER[:120]], X[ORDER[120:]], Y[ORDER[:120]], Y[ORDER[120:]]
D = X.shape[1]
NAMES = np.array(["barbera", "grignolino", "barolo"])
WEIGHTS = np.random.default_rng(1).integers(4, size=len(X)).astype(float)


def oracle(points, y, weights=None, shrinkage=0.5, priors=None, U=None):
    """Classes, means, covariance and scores of queries, one point at a time."""
    weights = np.ones(len(points)) if weights is None else weights
    classes = sorted(set(y.tolist()))
    means = {c: np.average(points[y == c], 0, weights[y == c]) for c in classes}
    n, d = weights.sum(), points.shape[1]
    S = np.zeros((d, d))
    for x, label, weight in zip(points, y, weights, strict=True):
        S += weight / n * np.outer(x - means[label], x - means[label])
    V = (1 - shrinkage) * S + shrinkage * np.trace(S) / d * np.eye(d)
    A = np.linalg.inv(V) if U is None else U.T @ U
    shares = {c: weights[y == c].sum() / n for c in classes}
    if priors is not None and not isinstance(priors, str):
        shares = dict(zip(classes, priors, strict=True))

    def score(q, c):
        prior = 0.0 if priors is None else np.log(shares[c])
        return prior - 0.5 * (q - means[c]) @ A @ (q - means[c])

    scores = np.array([[score(q, c) for c in classes] for q in Q])
    return SimpleNamespace(
        classes=np.array(classes),
        means=np.array([means[c] for c in classes]),
        covariance=V,
        scores=scores,
        proba=np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
        labels=np.array(classes)[scores.argmax(axis=1)],
    )


def assert_as_oracle(fitted, expected, rtol=1e-9):
    assert_array_equal(fitted.classes_, expected.classes)
    assert_allclose(fitted.centroids_, expected.means, rtol=rtol)
    assert_allclose(fitted.decision_function(Q), expected.scores, rtol=rtol)
    assert_allclose(fitted.predict_proba(Q), expected.proba, atol=rtol)
    assert_array_equal(fitted.predict(Q), expected.labels)


def assert_same(one, other, rtol=1e-9):
    """Equal up to rounding in everything that is public."""
    assert_array_equal(one.classes_, other.classes_)
    assert_allclose(one.class_count_, other.class_count_)
    assert_allclose(one.centroids_, other.centroids_, rtol=rtol)
    A, B = (fitted.components_.T @ fitted.components_ for fitted in (one, other))
    assert_allclose(A, B, rtol=0, atol=rtol * np.abs(B).max())
    assert_allclose(one.predict_proba(Q), other.predict_proba(Q), atol=rtol)
    assert_array_equal(one.predict(Q), other.predict(Q))


PRIORS = {"none": None, "empirical": "empirical", "array": [0.2, 0.5, 0.3]}
any_priors = pytest.mark.parametrize("priors", PRIORS.values(), ids=PRIORS)
any_weights = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["ones", "many"])


@any_weights
@any_priors
@pytest.mark.parametrize("shrinkage", [0, 0.3, 1.0])
def test_the_metric_of_the_covariance(shrinkage, priors, weights):
    params = {"shrinkage": shrinkage, "priors": priors}
    fitted = MahalanobisCentroidClassifier(**params).fit(X, Y, weights)
    expected = oracle(X, Y, weights, **params)
    assert_as_oracle(fitted, expected)
    assert_allclose(fitted.covariance_, expected.covariance, rtol=1e-9)
    A = fitted.components_.T @ fitted.components_
    assert_allclose(A @ expected.covariance, np.eye(D), atol=1e-9)
    assert fitted.shrinkage_ == shrinkage


@any_weights
@any_priors
def test_a_fixed_metric(priors, weights):
    U = np.random.default_rng(0).normal(size=(5, D))
    for metric in (
        U,
        {"U": U},
        {"A": U.T @ U},
        SimpleNamespace(components_=U, fit=None),
    ):
        fitted = MahalanobisCentroidClassifier(None, priors=priors)
        if isinstance(metric, SimpleNamespace):
            fitted.fit(X, Y, weights).update_metric(metric)
        else:
            fitted.set_params(metric_learner=metric).fit(X, Y, weights)
        assert_as_oracle(fitted, oracle(X, Y, weights, priors=priors, U=U))
    fitted = MahalanobisCentroidClassifier(None, priors=priors).fit(X, Y, weights)
    assert_as_oracle(fitted, oracle(X, Y, weights, priors=priors, U=np.eye(D)))
    assert_array_equal(fitted.components_, np.eye(D))


LEARNERS = {
    "NCA": NeighborhoodComponentsAnalysis(2, max_iter=5, random_state=0),
    "LedoitWolf": LedoitWolf(),
    "pipeline": make_pipeline(StandardScaler(), PCA(4)),
    "LDA": LinearDiscriminantAnalysis(),
    "LEGO": LEGO(random_state=0),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learned_metric_is_nearest_centroid_on_transformed_points(name):
    learner = LEARNERS[name]
    alone = clone(learner).fit(X, Y)
    if hasattr(alone, "transform"):
        points, queries = alone.transform(X), alone.transform(Q)
    else:
        root = np.linalg.cholesky(alone.get_precision())
        points, queries = X @ root, Q @ root
    labels = NearestCentroid().fit(points, Y).predict(queries)
    for metric in (learner, FrozenEstimator(alone)):
        fitted = MahalanobisCentroidClassifier(metric).fit(X, NAMES[Y])
        assert_array_equal(fitted.predict(Q), NAMES[labels])
        assert type(fitted.metric_learner_) in (type(learner), FrozenEstimator)
        assert not hasattr(fitted, "covariance_")
        assert fitted.shrinkage_ is None


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_predictions_are_those_of_linear_discriminant_analysis(load, shrinkage):
    points, y = load(return_X_y=True)
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    lda.fit(points[::2], y[::2])
    fitted = MahalanobisCentroidClassifier(shrinkage=shrinkage, priors="empirical")
    for part in np.array_split(np.arange(0, len(y), 2), 5):
        fitted.partial_fit(points[part], y[part])
    assert_array_equal(fitted.predict(points), lda.predict(points))
    assert_allclose(fitted.predict_proba(points), lda.predict_proba(points), atol=1e-7)
    assert_allclose(fitted.covariance_, lda.covariance_, rtol=1e-9)


def test_given_priors_do_not_change_the_covariance_as_they_do_in_scikit_learn():
    priors = [0.8, 0.1, 0.1]
    lda = LinearDiscriminantAnalysis("lsqr", shrinkage=0.1, priors=priors).fit(X, Y)
    fitted = MahalanobisCentroidClassifier(shrinkage=0.1, priors=priors).fit(X, Y)
    assert np.abs(fitted.covariance_ - lda.covariance_).max() > 0.01
    assert_allclose(fitted.covariance_, oracle(X, Y, shrinkage=0.1).covariance)


def test_auto_is_the_shrinkage_of_scikit_learn_on_centred_points():
    fitted = MahalanobisCentroidClassifier().fit(X, Y)
    covariance, shrinkage = sklearn_oas(X - fitted.centroids_[Y], assume_centered=True)
    assert_allclose(fitted.shrinkage_, shrinkage, rtol=1e-9)
    assert_allclose(fitted.covariance_, covariance, rtol=1e-9, atol=1e-12)
    assert_as_oracle(fitted, oracle(X, Y, shrinkage=shrinkage))


def test_units_of_features_do_not_matter_without_shrinkage():
    scales = 10.0 ** np.linspace(-8, 8, D)
    plain = MahalanobisCentroidClassifier(shrinkage=0).fit(X, Y)
    scaled = MahalanobisCentroidClassifier(shrinkage=0).fit(scales * X, Y)
    assert_allclose(scaled.predict_proba(scales * Q), plain.predict_proba(Q), atol=1e-9)


# --- streams --------------------------------------------------------------------------


@any_weights
@pytest.mark.parametrize("metric", ["covariance", None, np.ones((1, D))], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_any_split_gives_the_result_of_one_fit(metric, weights, seed):
    """Classes come when they come: sorted by label, some parts have one class."""
    rng = np.random.default_rng(seed)
    order = np.argsort(Y, kind="stable") if seed == 0 else rng.permutation(len(X))
    cuts = np.sort(rng.choice(np.arange(1, len(X)), 1 + 10 * seed, replace=False))
    stream = MahalanobisCentroidClassifier(metric, priors="empirical")
    whole = clone(stream).fit(X, NAMES[Y], weights)
    for part in np.split(order, cuts):
        some = None if weights is None else weights[part]
        if some is None or some.any() or hasattr(stream, "classes_"):
            stream.partial_fit(X[part], NAMES[Y[part]], sample_weight=some)
    assert_same(stream, whole)


def test_a_stream_of_single_points_far_from_zero_keeps_its_precision():
    """Sums of squares would lose all digits at 1e8 standard deviations."""
    for step in (1, 7):
        stream = MahalanobisCentroidClassifier(shrinkage=0.1)
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            stream.partial_fit(X[part] + 1e8, Y[part])
        exact = oracle((X + 1e8) - 1e8, Y, shrinkage=0.1)
        assert_allclose(stream.centroids_ - 1e8, exact.means, atol=1e-7)
        assert_allclose(stream.covariance_, exact.covariance, atol=1e-7)
        labels = MahalanobisCentroidClassifier(shrinkage=0.1).fit(X, Y).predict(Q)
        assert_array_equal(stream.predict(Q + 1e8), labels)


def test_weights_are_repetitions():
    weighted = MahalanobisCentroidClassifier(priors="empirical").fit(X, Y, WEIGHTS)
    repeated = np.repeat(np.arange(len(X)), WEIGHTS.astype(int))
    assert_same(weighted, clone(weighted).fit(X[repeated], Y[repeated]))
    doubled = clone(weighted).fit(X, Y, np.full(len(X), 2.0))
    assert_allclose(doubled.class_count_, 2 * np.bincount(Y))


def test_points_of_float32_are_summed_in_float64():
    single = X.astype(np.float32)
    fitted = MahalanobisCentroidClassifier().fit(single, Y)
    assert_same(fitted, clone(fitted).fit(single.astype(np.float64), Y), rtol=1e-12)
    assert fitted.components_.dtype == fitted.centroids_.dtype == np.float64


def test_classes_without_points_are_not_predicted():
    fitted = MahalanobisCentroidClassifier(priors="empirical")
    fitted.partial_fit(X[Y < 2], NAMES[Y[Y < 2]], classes=NAMES)
    absent = list(fitted.classes_).index(NAMES[2])
    assert np.isnan(fitted.centroids_[absent]).all()
    assert fitted.class_count_[absent] == 0
    assert (fitted.predict_proba(Q)[:, absent] == 0).all()
    assert (fitted.decision_function(Q)[:, absent] == -np.inf).all()
    assert NAMES[2] not in fitted.predict(Q)
    fitted.partial_fit(X[Y == 2], NAMES[Y[Y == 2]], classes=NAMES[::-1])
    assert_same(fitted, clone(fitted).fit(X, NAMES[Y]))


def test_one_point_and_one_class():
    """The metric is Euclidean until points of a class differ."""
    fitted = MahalanobisCentroidClassifier().partial_fit(X[:1], ["a"])
    assert_array_equal(fitted.predict(Q), ["a"] * len(Q))
    assert_array_equal(fitted.predict_proba(Q), np.ones((len(Q), 1)))
    fitted.partial_fit(X[1:2], ["b"])
    assert_array_equal(fitted.components_, np.eye(D))
    nearer = ((Q - X[1]) ** 2).sum(axis=1) < ((Q - X[0]) ** 2).sum(axis=1)
    assert_array_equal(fitted.predict(Q) == "b", nearer)
    assert_array_equal(fitted.decision_function(Q) > 0, nearer)


def test_features_that_do_not_vary_within_classes_are_not_measured():
    constant = np.column_stack([X, Y, np.ones(len(X))])
    fitted = MahalanobisCentroidClassifier(shrinkage=0).fit(constant, Y)
    queries = np.column_stack([Q, np.zeros((len(Q), 2))])
    alone = MahalanobisCentroidClassifier(shrinkage=0).fit(X, Y)
    assert_allclose(fitted.predict_proba(queries), alone.predict_proba(Q), atol=1e-9)


@pytest.mark.parametrize("kind", [LEGO, POLA, OnlineITML])
def test_online_learners_continue_to_learn(kind):
    alone = kind(random_state=0)
    stream = MahalanobisCentroidClassifier(kind(random_state=0))
    for part in np.array_split(np.arange(len(X)), 6):
        stream.partial_fit(X[part], Y[part], classes=[0, 1, 2])
        alone.partial_fit(X[part], Y[part])
        assert_allclose(stream.components_, alone.components_, rtol=1e-12)
        seen = slice(part[-1] + 1)
        assert_as_oracle(stream, oracle(X[seen], Y[seen], U=alone.components_))


def test_other_learners_are_fitted_once():
    stream = MahalanobisCentroidClassifier(PCA(2)).partial_fit(X[:60], Y[:60])
    U = stream.components_
    stream.partial_fit(X[60:], Y[60:])
    assert_array_equal(stream.components_, U)


# --- a metric that changes ------------------------------------------------------------


@pytest.mark.parametrize("start", ["covariance", None, np.ones((2, D))], ids=str)
def test_update_metric_in_every_form(start):
    rng = np.random.default_rng(0)
    fitted = MahalanobisCentroidClassifier(start, priors="empirical").fit(X, Y)
    U = fitted.components_
    W, V, row = (
        rng.normal(size=(len(U), 2)),
        rng.normal(size=(D, 2)),
        rng.normal(size=D),
    )
    new = rng.normal(size=(4, D))
    steps = [
        ({"low_rank": (W, V)}, U + W @ V.T),
        (
            {"metric": row, "rows": 1},
            np.vstack([row, U + W @ V.T])[[1, 0, *range(3, len(U) + 1)]],
        ),
        ({"metric": new}, new),
        (
            {"metric": [row], "rows": [-1], "additive": True},
            new + np.eye(4)[:, 3:] * row,
        ),
        (
            {"metric": {"V": np.cov(X.T)}},
            np.linalg.cholesky(np.linalg.inv(np.cov(X.T))).T,
        ),
        ({"metric": PCA(2).fit(X)}, PCA(2).fit(X).components_),
        (
            {"metric": make_pipeline(StandardScaler()).fit(X)},
            np.diag(1 / X.std(axis=0)),
        ),
    ]
    for change, expected in steps:
        assert fitted.update_metric(**change) is fitted
        assert_as_oracle(fitted, oracle(X, Y, priors="empirical", U=expected))
    fitted.update_metric(new).partial_fit(X, Y)
    assert_array_equal(fitted.components_, new)
    assert not hasattr(fitted, "covariance_")
    assert fitted.class_count_.sum() == 2 * len(X)
    if isinstance(start, str):
        assert fitted.fit(X, Y).covariance_.shape == (D, D)


def test_an_online_learner_is_followed_again_after_another_metric():
    fitted = MahalanobisCentroidClassifier(LEGO(random_state=0)).fit(X[:60], Y[:60])
    fitted.update_metric(np.ones((1, D)))
    assert fitted.components_.shape == (1, D)
    fitted.partial_fit(X[60:], Y[60:])
    assert_array_equal(fitted.components_, fitted.metric_learner_.components_)


def test_parameters_that_are_set_later_hold_from_the_next_call():
    fitted = MahalanobisCentroidClassifier(shrinkage=0.5).fit(X[:60], Y[:60])
    before = fitted.predict_proba(Q)
    fitted.set_params(shrinkage=0.1, priors="empirical")
    assert_array_equal(fitted.predict_proba(Q), before)
    fitted.partial_fit(X[60:], Y[60:])
    assert_as_oracle(fitted, oracle(X, Y, shrinkage=0.1, priors="empirical"))


# --- errors ---------------------------------------------------------------------------

FITTED = MahalanobisCentroidClassifier(shrinkage=0.5).fit(X, Y)
FIXED = MahalanobisCentroidClassifier(None).partial_fit(X, Y, classes=[0, 1, 2])
PRIOR = MahalanobisCentroidClassifier(priors=[0.2, 0.3, 0.5]).fit(X, Y)
NAMED = MahalanobisCentroidClassifier().fit(X, NAMES[Y])
ONLINE = MahalanobisCentroidClassifier(OnlineITML(random_state=0)).fit(X, Y)
HUGE = np.full((2, D), [[1e300], [-1e300]])

REFUSED = {
    "new class": (FIXED, "partial_fit", (X[:1], [7]), "y contains 7, which is not"),
    "other classes": (
        FIXED,
        "partial_fit",
        (X, Y, [0, 1]),
        r"classes must be those of earlier calls, \[0, 1, 2\], got \[0, 1\]",
    ),
    "classes of two dimensions": (
        MahalanobisCentroidClassifier(),
        "partial_fit",
        (X, Y, [[0, 1]]),
        "classes must be an array",
    ),
    "class without a prior": (
        PRIOR,
        "partial_fit",
        (X[:1], [3]),
        r"priors must be 4 positive numbers .* \[0, 1, 2, 3\], got \[0.2, 0.3, 0.5\]",
    ),
    "numbers for names": (NAMED, "partial_fit", (X, Y), "y must have labels as the"),
    "names for numbers": (FITTED, "partial_fit", (X, NAMES[Y]), "y must have labels"),
    "features": (FITTED, "partial_fit", (X[:, 1:], Y), "12 features"),
    "no labels": (FITTED, "partial_fit", (X, None), "requires y"),
    "real labels": (FITTED, "partial_fit", (X, Y + 0.5), "Unknown label type"),
    "NaN": (FITTED, "partial_fit", (X * np.nan, Y), "X contains NaN"),
    "too large": (FITTED, "partial_fit", (HUGE, [0, 0]), "X contains NaN or infinity"),
    "too large to fit": (FITTED, "fit", (HUGE, [0, 0]), "X contains NaN or infinity"),
    "too far": (FITTED, "predict", (HUGE * 1e8,), "X contains NaN or infinity"),
    "few weights": (
        FITTED,
        "fit",
        (X, Y, [1.0]),
        r"sample_weight must be one number for each of the 120 rows",
    ),
    "negative weights": (
        FITTED,
        "partial_fit",
        (X[:2], Y[:2], None, [1, -2]),
        "sample_weight must not be negative, got -2",
    ),
    "no weight": (FITTED, "fit", (X, Y, 0 * WEIGHTS), "sample_weight must not be zero"),
    "sparse": (FITTED, "fit", (sparse.csr_matrix(X), Y), "dense data is required"),
    "both changes": (
        FITTED,
        "update_metric",
        (np.eye(D), [0]),
        "takes from 1 to 2 positional",
    ),
    "no metric": (FITTED, "update_metric", (), "needs metric or low_rank"),
    "metric of other width": (FITTED, "update_metric", (np.eye(3),), r"\(k, 13\)"),
    "online features": (ONLINE, "partial_fit", (X[:, 1:], Y), "12 features"),
}


def state(fitted):
    learner = getattr(fitted, "metric_learner_", None)
    return vars(fitted).copy(), vars(learner).copy() if learner else None


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_leaves_the_estimator_as_it_was(name):
    fitted, method, arguments, message = REFUSED[name]
    before = state(fitted)
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(fitted, method)(*arguments)
    assert state(fitted) == before


BAD_CHANGES = {
    "rows and low rank": {"rows": [0], "low_rank": (np.eye(D), np.eye(D))},
    "no pair": {"low_rank": np.eye(3)},
    "no rows": {"metric": np.eye(D), "additive": True},
    "row out of range": {"metric": np.ones((1, D)), "rows": [D]},
    "row twice": {"metric": np.ones((2, D)), "rows": [0, 0]},
    "too large": {"low_rank": (np.full(D, 1e200), np.full(D, 1e200))},
}


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_refused_change_of_the_metric_changes_nothing(name):
    before = vars(FITTED).copy()
    with pytest.raises((ValueError, IndexError)):
        FITTED.update_metric(**BAD_CHANGES[name])
    assert vars(FITTED) == before
    assert_as_oracle(FITTED, oracle(X, Y))


BAD_PARAMETERS = {
    "metric_learner": ["nca", 3.0, {"a": 1}],
    "shrinkage": [-0.1, 1.1, "ledoit", None],
    "priors": ["uniform", [0.5, 0.5], [0.5, 0.5, 0.5], [1.5, -1.0, 0.5], [0, 0.5, 0.5]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_PARAMETERS.items() for value in values],
)
def test_bad_parameters_are_named(name, value):
    estimator = MahalanobisCentroidClassifier(**{name: value})
    before = vars(estimator).copy()
    with pytest.raises((ValueError, TypeError), match=name):
        estimator.fit(X, Y)
    assert vars(estimator) == before


class FailsLater(LEGO):
    """An online learner whose metric cannot be read after it has learned more."""

    fails = False

    @property
    def components_(self):
        if self.fails:
            raise KeyboardInterrupt
        return super().components_

    def partial_fit(self, pairs, y):
        super().partial_fit(pairs, y)
        self.fails = True
        return self


def test_an_interrupted_learner_is_left_as_it_was():
    fitted = MahalanobisCentroidClassifier(FailsLater(random_state=0)).fit(X, Y)
    before = state(fitted)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(X, Y)
    assert state(fitted) == before


# --- conventions ----------------------------------------------------------------------

CONFORMING = [
    MahalanobisCentroidClassifier(),
    MahalanobisCentroidClassifier(shrinkage=0.0, priors="empirical"),
    MahalanobisCentroidClassifier(None),
    MahalanobisCentroidClassifier(make_pipeline("passthrough")),
]
LEFT_OUT = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_estimators_partial_fit_n_features,
    estimator_checks.check_param_validation,
]


@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:X .*feature names")
@pytest.mark.parametrize("check", LEFT_OUT, ids=lambda check: check.__name__)
def test_conventions_that_are_not_checked_by_default(check):
    check("MahalanobisCentroidClassifier", MahalanobisCentroidClassifier())


def test_frames_and_names_of_features():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(D)])
    y = pandas.Series(NAMES[Y], dtype="category")
    fitted = MahalanobisCentroidClassifier().partial_fit(frame[:60], y[:60])
    fitted.partial_fit(frame[60:], y[60:])
    assert_array_equal(fitted.feature_names_in_, frame.columns)
    queries = pandas.DataFrame(Q, columns=frame.columns)
    alone = MahalanobisCentroidClassifier().fit(X, NAMES[Y])
    assert_array_equal(fitted.predict(queries), alone.predict(Q))
    with pytest.raises(ValueError, match="feature names"):
        fitted.partial_fit(queries[frame.columns[::-1]], NAMES[Y_TEST])


def test_parameters_are_searched():
    grid = {
        "shrinkage": [0.0, 0.1, "auto"],
        "priors": [None, "empirical"],
        "metric_learner": ["covariance", None, PCA(2)],
    }
    search = GridSearchCV(MahalanobisCentroidClassifier(), grid, cv=3).fit(X, NAMES[Y])
    assert search.best_params_["metric_learner"] == "covariance"
    assert search.score(Q, NAMES[Y_TEST]) > 0.9


def test_predictions_do_not_change_the_attributes():
    fitted = MahalanobisCentroidClassifier().fit(X, Y)
    before = vars(fitted).copy()
    for method in ("predict", "predict_proba", "decision_function"):
        getattr(fitted, method)(Q)
    assert vars(fitted) == before


# --- saving ---------------------------------------------------------------------------


def by_skops(thing, _):
    data = skops.io.dumps(thing)
    return skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))


def by_mapped_file(thing, path):
    joblib.dump(thing, path / "saved")
    return joblib.load(path / "saved", mmap_mode="r")


WAYS = {
    "pickle": lambda thing, _: pickle.loads(pickle.dumps(thing)),
    "mapped": by_mapped_file,
    "skops": by_skops,
    "deepcopy": lambda thing, _: copy.deepcopy(thing),
}
SAVED = {
    "covariance": MahalanobisCentroidClassifier(priors="empirical"),
    "fixed": MahalanobisCentroidClassifier(np.ones((2, D)), priors=[0.2, 0.3, 0.5]),
    "Euclidean": MahalanobisCentroidClassifier(None),
    "online": MahalanobisCentroidClassifier(LEGO(random_state=0)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", SAVED)
def test_results_are_kept_bit_by_bit_and_learning_continues(name, way, tmp_path):
    fitted = clone(SAVED[name]).fit(X[:60], NAMES[Y[:60]])
    fitted.predict(Q)
    loaded = way(fitted, tmp_path)
    for _ in range(2):
        assert_array_equal(loaded.components_, fitted.components_)
        assert_array_equal(loaded.centroids_, fitted.centroids_)
        assert_array_equal(loaded.predict_proba(Q), fitted.predict_proba(Q))
        assert_array_equal(loaded.classes_, fitted.classes_)
        for one in (loaded, fitted):
            one.partial_fit(X[60:], NAMES[Y[60:]])
    assert len(pickle.loads(pickle.dumps(clone(fitted))).get_params()) >= 3


def test_a_shallow_copy_learns_on_its_own():
    fitted = MahalanobisCentroidClassifier().fit(X[:60], Y[:60])
    other = copy.copy(fitted).partial_fit(X[60:], Y[60:])
    assert_same(other, clone(fitted).fit(X, Y))
    assert_same(fitted, clone(fitted).fit(X[:60], Y[:60]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_means", np.zeros((2, D))),
        ("_scatter", np.zeros((D, D + 1))),
        ("class_count_", np.array([1, 2, 3])),
        ("n_features_in_", D + 1),
    ],
)
def test_a_damaged_state_is_refused(name, value):
    saved = MahalanobisCentroidClassifier().fit(X, Y).__getstate__()
    with pytest.raises(ValueError, match="is damaged or was changed"):
        MahalanobisCentroidClassifier().__setstate__({**saved, name: value})


def test_nothing_is_fitted_before_fit():
    estimator = MahalanobisCentroidClassifier()
    names = "classes_ centroids_ class_count_ components_ covariance_ shrinkage_"
    for name in names.split():
        assert not hasattr(estimator, name)
