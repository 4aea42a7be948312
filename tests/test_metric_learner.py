"""Every kind of `metric_learner` gives its metric, in `fit` and in `update_metric`."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.covariance import EmpiricalCovariance, LedoitWolf, MinCovDet
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NeighborhoodComponentsAnalysis,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import skmahal
from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
    components_from,
)
from skmahal.online import OnlineITML

skmahal.enable_metric_learn()

import metric_learn  # noqa: E402

X, Y = (array[::2] for array in load_iris(return_X_y=True))
Q, Y_TEST = (array[1::4] for array in load_iris(return_X_y=True))

ESTIMATORS = [
    SketchedMahalanobisClassifier,
    SketchedMahalanobisRegressor,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
]
CERTIFIED = {"m": 4, "L": 3, "R": 1, "lead": 0, "delta": 1e-10, "random_state": 0}
CERTIFIED["n_candidates"] = "certified"
SETTINGS = {"exact": {}, "certified": CERTIFIED}

any_estimator = pytest.mark.parametrize("kind", ESTIMATORS)
any_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)

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
TRANSFORMERS = {
    "NCA": NeighborhoodComponentsAnalysis(2, max_iter=5, random_state=0),
    "PCA": PCA(2),
    "whitening PCA": PCA(2, whiten=True),
    "whitening IncrementalPCA": IncrementalPCA(3, whiten=True),
}
COVARIANCES = {
    "EmpiricalCovariance": EmpiricalCovariance(),
    "LedoitWolf": LedoitWolf(),
    "MinCovDet": MinCovDet(random_state=0),
}

# Warnings of scikit-learn 1.6 and 1.7 about a keyword that metric-learn passes, and of
# SciPy about the few features that LFDA gets here.
quiet = [
    pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:k >= N for N \\* N square:RuntimeWarning"),
]


def of_metric_learn(test):
    for mark in quiet:
        test = mark(test)
    return pytest.mark.parametrize("name", METRIC_LEARN)(test)


def assert_neighbours(index, transform, n_neighbors=5):
    """Distances are those of brute force on transformed points."""
    exact = np.sort(cdist(transform(Q), transform(X)), axis=1)[:, :n_neighbors]
    distances = index.kneighbors(Q, n_neighbors)[0]
    assert_allclose(distances, exact, atol=1e-9 * exact.max())


def assert_neighbours_under(index, U):
    assert_neighbours(index, lambda points: points @ np.transpose(U))


# --- kinds of learners ----------------------------------------------------------------


@of_metric_learn
def test_supervised_learners_of_metric_learn(name):
    learner = METRIC_LEARN[name]
    alone = clone(learner).fit(X, Y)
    knn = SketchedMahalanobisClassifier(metric_learner=learner).fit(X, Y)
    U, A = knn.components_, alone.get_mahalanobis_matrix()
    assert not hasattr(learner, "components_")
    assert_array_equal(U, knn.metric_learner_.components_)
    # The eigensolver of LFDA starts at random.
    assert_allclose(U.T @ U, A, rtol=0, atol=1e-9 * np.abs(A).max())
    exact = KNeighborsClassifier(algorithm="brute").fit(X @ U.T, Y)
    assert_array_equal(knn.predict(Q), exact.predict(Q @ U.T))
    names = np.array(["setosa", "versicolor", "virginica"])
    named = clone(knn).fit(X, names[Y]).predict(Q)
    assert np.mean(named == names[knn.predict(Q)]) > 0.95
    for settings in SETTINGS.values():
        index = SketchedMahalanobisNeighbors(**settings).fit(X)
        index.kneighbors(Q)
        assert_neighbours_under(index.update_metric(alone), alone.components_)


@any_estimator
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_neighbours_are_those_of_transformed_points(kind, name):
    """Whitening included, which `components_` of PCA leaves out."""
    learner = TRANSFORMERS[name]
    alone = clone(learner).fit(X, Y)
    frozen = FrozenEstimator(alone)
    for index in (
        kind(metric_learner=learner).fit(X, Y),
        kind(metric_learner=frozen).fit(X, Y),
        kind().fit(X, Y).update_metric(alone),
        kind().fit(X, Y).update_metric(frozen),
    ):
        assert_neighbours(index, alone.transform)


def test_whitening_of_a_constant_feature_is_that_of_transform():
    points = np.column_stack([X, np.ones(len(X))])
    pca = PCA(whiten=True, svd_solver="covariance_eigh").fit(points)
    index = SketchedMahalanobisNeighbors(1, metric_learner=FrozenEstimator(pca))
    scales = np.maximum(np.sqrt(pca.explained_variance_), np.finfo(float).eps)
    U = index.fit(points).components_
    assert_allclose(U, pca.components_ / scales[:, np.newaxis], rtol=1e-12)


@any_estimator
@pytest.mark.parametrize("name", COVARIANCES)
def test_covariance_estimators_give_the_mahalanobis_distance(kind, name):
    learner = COVARIANCES[name]
    V = clone(learner).fit(X).covariance_
    exact = np.sort(cdist(Q, X, "mahalanobis", VI=np.linalg.inv(V)), axis=1)[:, :5]
    index = kind(metric_learner=learner).fit(X, Y)
    assert_allclose(index.kneighbors(Q, 5)[0], exact, rtol=1e-9)
    moved = kind().fit(X, Y).update_metric(clone(learner).fit(X))
    assert_allclose(moved.kneighbors(Q, 5)[0], exact, rtol=1e-9)


# --- transformers without `components_` -----------------------------------------------


AFFINE = {
    "LDA": LinearDiscriminantAnalysis(),
    "shrunk LDA": LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1),
    "scaler": RobustScaler(),
    "scaler and NCA": make_pipeline(
        StandardScaler(), NeighborhoodComponentsAnalysis(2, max_iter=5, random_state=0)
    ),
    "scaler and PCA": make_pipeline(StandardScaler(), PCA(2, whiten=True)),
    "passthrough": make_pipeline("passthrough", StandardScaler(), "passthrough"),
    "fewer features": make_pipeline(SelectKBest(k=3), MinMaxScaler()),
    "more features": ColumnTransformer(
        [("all", "passthrough", [0, 1, 2, 3]), ("more", StandardScaler(), [0, 2])]
    ),
    "sparse": make_pipeline(FunctionTransformer(sparse.csr_matrix)),
    "online": make_pipeline(StandardScaler(), OnlineITML(random_state=0)),
}


@any_estimator
@pytest.mark.parametrize("name", AFFINE)
def test_neighbours_are_those_of_any_affine_transform(kind, name):
    learner = AFFINE[name]
    alone = clone(learner).fit(X, Y)

    def transform(points):
        Z = alone.transform(points)
        return Z.toarray() if sparse.issparse(Z) else Z

    for index in (
        kind(metric_learner=learner).fit(X, Y),
        kind(metric_learner=FrozenEstimator(alone)).fit(X, Y),
        kind().fit(X, Y).update_metric(alone),
    ):
        assert_neighbours(index, transform)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e8])
@pytest.mark.parametrize("last", [None, PCA(3), PCA(9, whiten=True)], ids=repr)
def test_large_means_and_scales_cost_no_precision(last, offset):
    """Columns of U are right to 1e-9 of their largest entry, at scales 1e-8 to 1e8."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.linspace(-8, 8, 9)
    points = scales * (rng.normal(size=(300, 9)) + offset * rng.normal(size=9))
    scaled = make_pipeline(StandardScaler(), last).fit(points)
    rows = np.eye(9)
    if last is not None:
        rows = last.components_
        if last.whiten:
            rows = rows / np.sqrt(last.explained_variance_)[:, np.newaxis]
    exact = rows / scaled[0].scale_
    index = SketchedMahalanobisNeighbors().fit(points).update_metric(scaled)
    errors = np.abs(index.components_ - exact).max(axis=0)
    assert (errors <= 1e-9 * np.abs(exact).max(axis=0)).all()
    if last is None:
        assert_array_equal(index.components_ == 0, exact == 0)


def test_float32_results_give_the_metric_in_float32_precision():
    matrix = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    map32 = FunctionTransformer(lambda points: points.astype(np.float32) @ matrix - 9)
    U = SketchedMahalanobisNeighbors(metric_learner=map32).fit(X).components_
    assert U.dtype == np.float64
    assert_allclose(U, matrix.T, rtol=1e-5)


def test_transformers_fitted_with_names_get_names():
    """Also where columns are chosen by name; warnings are errors in the test run."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    columns = ColumnTransformer([("scaled", StandardScaler(), ["b", "d"])])
    for learner in (columns, make_pipeline(StandardScaler(), PCA(2))):
        alone = learner.set_output(transform="pandas").fit(frame)
        index = SketchedMahalanobisNeighbors().fit(frame).update_metric(alone)
        exact = cdist(alone.transform(frame)[:9], alone.transform(frame))
        distances = index.kneighbors(frame[:9], 5)[0]
        assert_allclose(distances, np.sort(exact, axis=1)[:, :5], atol=1e-9)


NOT_AFFINE = {
    "squares": PolynomialFeatures(2),
    "kernel map": RBFSampler(random_state=0),
    "distances": KMeans(3, random_state=0),
    "clipped": MinMaxScaler(clip=True),
    "clipped far from zero": FunctionTransformer(lambda Z: Z.clip(1e6, 2e6)),
    "absolute": FunctionTransformer(np.abs),
    "logarithm": FunctionTransformer(np.log1p),
    "exponential": FunctionTransformer(np.exp),
    "wave": FunctionTransformer(lambda Z: Z + np.sin(Z)),
    "in a pipeline": make_pipeline(StandardScaler(), PolynomialFeatures(2), PCA(2)),
}


@pytest.mark.parametrize("name", NOT_AFFINE)
@any_estimator
def test_a_transform_that_is_not_affine_is_refused(kind, name):
    learner = clone(NOT_AFFINE[name])
    refused = ValueError, rf"transform must be affine.* {type(learner).__name__} is not"
    assert_refused(kind(metric_learner=learner), "fit", (X, Y), *refused)
    learner.fit(X, Y)
    assert_refused(kind().fit(X, Y), "update_metric", (learner,), *refused)


BAD_TRANSFORMS = {
    "not fitted": (
        make_pipeline(StandardScaler(), PCA()),
        "metric must be fitted, and this Pipeline is not",
    ),
    "not implemented": (
        LinearDiscriminantAnalysis(solver="lsqr").fit(X, Y),
        "metric.transform of this LinearDiscriminantAnalysis gives no metric: transf",
    ),
    "other features": (
        StandardScaler().fit(X[:, :3]),
        "metric.transform of this StandardScaler gives no metric: X has 4 features",
    ),
    "one dimension": (
        FunctionTransformer(lambda Z: Z[:, 0]),
        r"metric.transform must give an array of shape \(1, k\) .* got shape \(1,\)",
    ),
    "no features": (
        FunctionTransformer(lambda Z: Z[:, :0]),
        r"metric.transform must be a dense array of shape \(k, 4\)",
    ),
    "strings": (
        FunctionTransformer(lambda Z: np.full(Z.shape, "a")),
        "metric.transform of this FunctionTransformer gives no metric: could not conv",
    ),
}


@pytest.mark.parametrize("name", BAD_TRANSFORMS)
def test_a_transform_without_a_metric_is_refused(name):
    learner, message = BAD_TRANSFORMS[name]
    index = SketchedMahalanobisNeighbors().fit(X)
    assert_refused(index, "update_metric", (learner,), ValueError, message)


# --- other learners -------------------------------------------------------------------


class OfMatrix(BaseEstimator):
    """A learner that returns its Mahalanobis matrix and has no `components_`."""

    def __init__(self, matrix=None):
        self.matrix = matrix

    def fit(self, X, y=None):
        self.fitted_ = True

    def get_mahalanobis_matrix(self):
        return self.matrix


class NoEstimator:
    """A learner of another library, without scikit-learn's conventions."""

    def __init__(self, matrix):
        self.matrix = matrix

    def get_mahalanobis_matrix(self):
        return self.matrix


def test_a_mahalanobis_matrix_is_factored_at_its_rank():
    U = np.random.default_rng(0).normal(size=(2, 4))
    A = U.T @ U
    knn = SketchedMahalanobisClassifier(metric_learner=OfMatrix(A)).fit(X, Y)
    assert knn.components_.shape == (2, 4)
    assert_neighbours_under(knn, U)
    index = SketchedMahalanobisNeighbors().fit(X)
    assert_neighbours_under(index.update_metric(NoEstimator(A)), U)


def test_components_are_preferred_to_a_matrix():
    learner = OfMatrix(np.eye(4))
    learner.fit(X)
    learner.components_ = np.ones((1, 4))
    index = SketchedMahalanobisNeighbors(metric_learner=FrozenEstimator(learner)).fit(X)
    assert_array_equal(index.components_, np.ones((1, 4)))


class SeesTargets(BaseEstimator):
    def fit(self, X, y):
        self.components_ = np.eye(X.shape[1])
        self.seen_ = y


def test_labels_reach_the_learner_as_numbers():
    names = np.array(["a", "b", "c"])[Y]
    knn = SketchedMahalanobisClassifier(metric_learner=SeesTargets())
    for labels in (Y, names, names.astype(object)):
        assert_array_equal(knn.fit(X, labels).metric_learner_.seen_, Y)
    knn.fit(X, np.stack([names, names[::-1]], axis=1))
    assert_array_equal(knn.metric_learner_.seen_, np.stack([Y, Y[::-1]], axis=1))
    column = SketchedMahalanobisRegressor(metric_learner=SeesTargets())
    assert column.fit(X, Y[:, np.newaxis]).metric_learner_.seen_.shape == Y.shape
    both = np.stack([Y, Y], axis=1)
    assert_array_equal(column.fit(X, both).metric_learner_.seen_, both)


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_a_learner_for_regression_with_the_regressor():
    y = X[:, 0] * 2.0
    learner = metric_learn.MLKR(max_iter=5)
    knn = SketchedMahalanobisRegressor(metric_learner=learner).fit(X[:, 1:], y)
    U = knn.components_
    exact = KNeighborsRegressor(algorithm="brute").fit(X[:, 1:] @ U.T, y)
    assert_allclose(knn.predict(Q[:, 1:]), exact.predict(Q[:, 1:] @ U.T))


READS = []


class CountsReads(BaseEstimator):
    """A learner that forms its U whenever it is read."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    @property
    def components_(self):
        if not hasattr(self, "fitted_"):
            raise AttributeError("components_")
        READS.append("components_")
        return np.arange(8.0).reshape(2, 4)


class CountsReadsOnline(OnlineITML):
    """An online learner that counts how often its U is read."""

    @property
    def components_(self):
        READS.append("components_")
        return super().components_


@any_estimator
def test_components_are_read_once(kind):
    READS.clear()
    index = kind(metric_learner=CountsReads()).fit(X, Y)
    assert len(READS) == 1
    for metric in (CountsReads().fit(X), FrozenEstimator(CountsReads().fit(X))):
        READS.clear()
        index.update_metric(metric)
        assert len(READS) == 1


def test_components_of_an_online_learner_are_read_once():
    knn = SketchedMahalanobisClassifier(
        metric_learner=CountsReadsOnline(random_state=0)
    )
    READS.clear()
    knn.fit(X, Y)
    assert len(READS) == 1
    learner = knn.metric_learner_.partial_fit(X[::9], Y[::9])
    READS.clear()
    assert_array_equal(knn.update_metric(learner).components_, learner.components_)
    assert len(READS) == 2  # One of them is the line above.


@any_estimator
def test_the_metric_is_held_in_float64(kind):
    U = np.random.default_rng(0).normal(size=(3, 4))
    index = kind(metric_learner=U).fit(X.astype(np.float32), Y)
    assert index.components_.dtype == np.float64
    assert_array_equal(index.components_, U)
    index.update_metric(SimpleNamespace(components_=(2 * U).astype(np.float32)))
    assert index.components_.dtype == np.float64
    assert_array_equal(index.components_, (2 * U).astype(np.float32))


# --- arrays ---------------------------------------------------------------------------

V = np.cov(X.T)
SYMMETRIC = {"A": V, "V": V, "VI": np.linalg.inv(V), "float32": V.astype(np.float32)}


@any_estimator
def test_an_array_is_u(kind):
    U = np.random.default_rng(0).normal(size=(3, 4))
    for metric in (U, U.tolist(), np.asfortranarray(U), {"U": U}):
        index = kind(metric_learner=metric).fit(X, Y)
        assert_array_equal(index.components_, U)
        assert_neighbours_under(index, U)


@any_estimator
@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_symmetric_array_is_used_as_u_with_a_warning(kind, name):
    matrix = SYMMETRIC[name]
    message = r"components_from\(A=.*components_from\(VI=.*components_from\(V="
    with pytest.warns(UserWarning, match=f"metric_learner is a symmetric.*{message}"):
        index = kind(metric_learner=matrix).fit(X, Y)
    assert_array_equal(index.components_, matrix)
    index = kind().fit(X, Y)
    with pytest.warns(UserWarning, match=f"metric is a symmetric.*{message}"):
        index.update_metric(matrix)
    assert_array_equal(index.components_, matrix)


QUIET = {
    "U in a dictionary": {"U": V},
    "weights of features": np.diag([1.0, 0.5, 2.0, 0.0]),
    "identity": np.eye(4),
    "one feature": np.ones((1, 4)),
    "triangular": np.linalg.cholesky(V),
    "from A": components_from(A=V),
    "from VI": components_from(VI=V),
    "from V": components_from(V=V),
}


@any_estimator
@pytest.mark.parametrize("name", QUIET)
def test_no_warning_for_what_is_surely_u(kind, name):
    """Warnings are errors in the test run."""
    U = QUIET[name]
    expected = U["U"] if isinstance(U, dict) else U
    moved = kind().fit(X, Y).update_metric(U)
    for index in (kind(metric_learner=U).fit(X, Y), moved):
        assert_neighbours_under(index, expected)


def test_a_learner_with_symmetric_components_does_not_warn():
    index = SketchedMahalanobisNeighbors().fit(X)
    index.update_metric(SimpleNamespace(components_=V))
    assert_array_equal(index.components_, V)
    index.update_metric(2 * V, rows=range(4))
    assert_array_equal(index.components_, 2 * V)


@any_estimator
@pytest.mark.parametrize("name", ["A", "VI", "V"])
def test_a_dictionary_says_which_matrix_it_has(kind, name):
    VI = np.linalg.inv(V) if name == "V" else V
    exact = np.sort(cdist(Q, X, "mahalanobis", VI=VI), axis=1)[:, :5]
    index = kind(metric_learner={name: V}).fit(X, Y)
    assert_allclose(index.kneighbors(Q, 5)[0], exact, rtol=1e-9)
    index = clone(kind()).fit(X, Y).update_metric({name: V})
    assert_allclose(index.kneighbors(Q, 5)[0], exact, rtol=1e-9)


# --- search ---------------------------------------------------------------------------


def test_parameters_of_the_learner_are_searched_with_those_of_the_index():
    nca = NeighborhoodComponentsAnalysis(max_iter=3, random_state=0)
    grid = {"metric_learner__n_components": [1, 3], "m": [1, 2], "L": [1, 4]}
    knn = SketchedMahalanobisClassifier(metric_learner=nca, random_state=0, lead=0)
    search = GridSearchCV(knn, grid, cv=3).fit(X, Y)
    best = search.best_estimator_
    assert len(best.components_) == search.best_params_["metric_learner__n_components"]
    assert (best.m_, best.L_) == (search.best_params_["m"], search.best_params_["L"])
    results = search.cv_results_
    for params, score in zip(
        results["params"], results["mean_test_score"], strict=True
    ):
        alone = cross_val_score(clone(knn).set_params(**params), X, Y, cv=3)
        assert score == alone.mean()


def test_metrics_are_searched_in_a_pipeline():
    nca = NeighborhoodComponentsAnalysis(max_iter=3, random_state=0)
    pipeline = make_pipeline(StandardScaler(), SketchedMahalanobisClassifier())
    step = "sketchedmahalanobisclassifier"
    grid = {
        f"{step}__metric_learner": [None, nca, LedoitWolf(), {"V": np.cov(X.T)}],
        f"{step}__weights": ["uniform", "distance"],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, Y)
    assert search.score(Q, Y_TEST) > 0.9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_learners_of_metric_learn_are_searched_by_other_processes():
    """As values, and by their parameters."""
    knn = SketchedMahalanobisClassifier(metric_learner=metric_learn.LFDA())
    learners = [metric_learn.ITML_Supervised(**few), metric_learn.LMNN(max_iter=3)]
    for grid in (
        {"metric_learner__n_components": [2, 3]},
        {"metric_learner": learners},
    ):
        search = GridSearchCV(knn, grid, cv=2, n_jobs=2, error_score="raise").fit(X, Y)
        assert search.score(Q, Y_TEST) > 0.9
    searched = clone(search).set_params(estimator=SketchedMahalanobisClassifier())
    assert searched.fit(X, Y).score(Q, Y_TEST) > 0.9
    assert clone(pickle.loads(pickle.dumps(searched))).fit(X, Y).best_score_ > 0.9


# --- a metric that changes ------------------------------------------------------------


def rows_changed(U, rows):
    new = U.copy()
    new[rows] += np.random.default_rng(7).normal(size=(len(rows), U.shape[1]))
    return new


WIDE = np.random.default_rng(1).normal(size=(200, 24))
WIDE_QUERIES = np.random.default_rng(2).normal(size=(20, 24))
START = np.random.default_rng(3).normal(size=(16, 24))
METRICS = {
    "equal": START,
    "one row": rows_changed(START, [5]),
    "three rows": rows_changed(START, [0, 9, 15]),
    "nearly all rows": rows_changed(START, range(1, 16)),
    "all rows": rows_changed(START, range(16)),
    "low rank": START + np.outer(np.arange(16), np.arange(24)) / 99,
    "fewer rows": START[:9],
    "a single row": START[:1],
    "more rows": np.vstack([START, START[:5] + 1]),
    "square": rows_changed(np.eye(24), range(24)),
}


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
    if index.engine_ == "exact":
        pairs = np.arange(50), np.arange(50, 100)
        exact = np.linalg.norm((points[pairs[0]] - points[pairs[1]]) @ U.T, axis=1)
        assert_allclose(index.pair_distances(*pairs), exact, rtol=1e-10)


@pytest.mark.parametrize("queried", [True, False], ids=["queried", "new"])
@any_settings
@pytest.mark.parametrize("change", METRICS)
def test_update_metric_gives_the_results_of_a_fresh_fit(change, settings, queried):
    U = METRICS[change]
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    if queried:
        index.kneighbors(WIDE_QUERIES)
        index.sum_distances(WIDE_QUERIES)
    assert index.update_metric(SimpleNamespace(components_=U)) is index
    assert_equals_fresh(index, WIDE, U, settings)


@pytest.mark.parametrize("seed", range(4))
@any_settings
def test_any_sequence_of_updates_gives_the_results_of_a_fresh_fit(settings, seed):
    rng = np.random.default_rng(seed)
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    points, U = WIDE.copy(), START
    for _ in range(12):
        step = rng.choice(["learner", "array", "rows", "rank", "points", "more"])
        if step in ("learner", "array"):
            U = METRICS[rng.choice(list(METRICS))]
            learner = SimpleNamespace(components_=U)
            index.update_metric(learner if step == "learner" else U)
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


def test_parameters_set_after_fit_have_no_effect_on_a_changed_metric():
    settings = {**CERTIFIED, "m": 4}
    index = SketchedMahalanobisNeighbors(metric_learner=START, **settings).fit(WIDE)
    index.set_params(m=2, L=7, R=3, sketch="srht", random_state=1)
    engines = []
    for U in (START[:2], START, np.vstack([START, START[:5]])):
        index.update_metric(U)
        engines.append(index.engine_)
        assert (index.m_, index.L_, index.R_) == (4, 3, 1)
    assert engines == ["exact", "sketched", "sketched"]


def test_labels_are_kept_when_the_number_of_rows_changes():
    knn = SketchedMahalanobisClassifier(metric_learner=PCA(1)).fit(X, Y)
    knn.partial_fit(Q, Y_TEST).remove_points([0, 1])
    U = PCA(3).fit(X).components_
    knn.update_metric(FrozenEstimator(PCA(3).fit(X)))
    points, labels = np.vstack([X, Q])[2:], np.concatenate([Y, Y_TEST])[2:]
    exact = KNeighborsClassifier(algorithm="brute").fit(points @ U.T, labels)
    assert_allclose(knn.predict_proba(Q), exact.predict_proba(Q @ U.T))


# --- errors ---------------------------------------------------------------------------


def assert_refused(index, method, arguments, error, message):
    """The call raises, and attributes and results stay as they were."""
    attributes = vars(index).copy()
    fitted = hasattr(index, "metric_learner_")
    before = index.kneighbors(Q) if fitted else ()
    with pytest.raises(error, match=message):
        getattr(index, method)(*arguments)
    assert vars(index) == attributes
    for value, same in zip(before, index.kneighbors(Q) if fitted else (), strict=True):
        assert_array_equal(value, same)


class WithoutMetric(BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True


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
        WithoutMetric(),
        "components_, get_mahalanobis_matrix, get_precision, transform once fitted, "
        "and WithoutMetric has none",
    ),
}


@pytest.mark.parametrize("name", BAD_LEARNERS)
@any_estimator
def test_a_learner_without_a_metric_is_refused(kind, name):
    learner, message = BAD_LEARNERS[name]
    refused = ValueError, message
    assert_refused(kind(metric_learner=learner), "fit", (X, Y), *refused)
    index, fitted = kind().fit(X, Y), clone(learner)
    fitted.fit(X, Y)
    assert_refused(index, "update_metric", (fitted,), *refused)
    index.set_params(metric_learner=learner)
    assert_refused(index, "fit", (X[:20], Y[:20]), *refused)


@pytest.mark.parametrize(
    "learner",
    [LedoitWolf(), PCA(2), metric_learn.LMNN(), NeighborhoodComponentsAnalysis()],
    ids=lambda learner: type(learner).__name__,
)
def test_update_metric_refuses_a_learner_that_is_not_fitted(learner):
    index = SketchedMahalanobisNeighbors().fit(X)
    message = "must be fitted|once fitted"
    assert_refused(index, "update_metric", (learner,), ValueError, message)


class FailsToFit(BaseEstimator):
    def __init__(self, error):
        self.error = error

    def fit(self, X, y=None):
        raise self.error("the learner failed")


@any_estimator
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_learner_that_fails_leaves_the_estimator_as_it_was(kind, error):
    learner = FailsToFit(error)
    refused = error, "the learner failed"
    assert_refused(kind(metric_learner=learner), "fit", (X, Y), *refused)
    index = kind().fit(X[:30], Y[:30]).set_params(metric_learner=learner)
    assert_refused(index, "fit", (X, Y), *refused)


class OfOldKeyword(BaseEstimator):
    def fit(self, X, y=None):
        raise TypeError("unexpected keyword argument 'force_all_finite'")


def test_the_error_of_metric_learn_on_new_scikit_learn_has_a_hint():
    knn = SketchedMahalanobisClassifier(metric_learner=OfOldKeyword())
    message = r"call skmahal.enable_metric_learn\(\)"
    assert_refused(knn, "fit", (X, Y), TypeError, message)


def test_a_class_is_not_a_learner():
    knn = SketchedMahalanobisClassifier(metric_learner=PCA)
    assert_refused(knn, "fit", (X, Y), TypeError, "metric_learner cannot be cloned")
    knn = SketchedMahalanobisClassifier().fit(X, Y)
    message = "metric must be an instance, got the class PCA"
    assert_refused(knn, "update_metric", (PCA,), TypeError, message)


def test_the_error_of_a_learner_that_refuses_sparse_points_is_shown():
    knn = SketchedMahalanobisClassifier(metric_learner=NeighborhoodComponentsAnalysis())
    points = sparse.csr_matrix(X)
    assert_refused(knn, "fit", (points, Y), TypeError, "dense data is required")


BAD_METRICS = {
    "string": ("nca", "metric_learner"),
    "number": (3.0, "metric_learner"),
    "no fit": (NoEstimator(np.eye(4)), "metric_learner"),
    "unknown key": ({"a": 1}, r"one of the keys U, A, VI, V .* got \['a'\]"),
    "two keys": ({"A": V, "V": V}, r"exactly one of the keys .* got \['A', 'V'\]"),
    "other shape": ({"V": V[:3]}, r"metric_learner\['V'\] must give .* \(3, 4\)"),
    "ragged": ({"A": [[1.0], [1.0, 2.0]]}, r"metric_learner\['A'\] must be an array"),
    "not a matrix": ({"U": 3}, r"metric_learner\['U'\] must be a dense array"),
    "complex": (np.eye(4) * 1j, "metric_learner must be real"),
}


@any_estimator
@pytest.mark.parametrize("name", BAD_METRICS)
def test_anything_else_is_refused_by_name(kind, name):
    bad, message = BAD_METRICS[name]
    refused = (ValueError, TypeError), message
    assert_refused(kind(metric_learner=bad), "fit", (X, Y), *refused)
    if not isinstance(bad, NoEstimator):
        message = message.replace("metric_learner", "metric")
        refused = (ValueError, TypeError), message
        assert_refused(kind().fit(X, Y), "update_metric", (bad,), *refused)
