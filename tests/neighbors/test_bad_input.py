"""Bad input is refused by name, and the estimator is exactly as it was."""

from functools import partial

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)

from .cases import normal, state_of

N, D, K = 30, 6, 5
X, Q, U = normal(N, D), normal(4, D, seed=1), normal(K, D, seed=2)
W, V = normal(K, 2, seed=3), normal(D, 2, seed=4)
LABELS, NUMBERS = np.arange(N) % 3, normal(N, 2, seed=5)

SKETCHED = {"m": 2, "L": 3, "R": 1, "lead": 1}
PARAMS = {
    "exact": {"metric_learner": U, "random_state": 0},
    "sketched": {
        "metric_learner": U,
        "n_candidates": "certified",
        "random_state": 0,
        **SKETCHED,
    },
}


class FailsToFit(BaseEstimator):
    """A learner that raises, as a bad one does, or as Ctrl-C does."""

    def __init__(self, error=RuntimeError):
        self.error = error

    def fit(self, X, y=None):
        raise self.error("the learner failed")


class WithoutComponents(BaseEstimator):
    def fit(self, X, y=None):
        return self


class WithComponents(BaseEstimator):
    def __init__(self, components):
        self.components = components

    def fit(self, X, y=None):
        self.components_ = self.components
        return self


def results(index):
    """Results of an index, to be compared bit by bit."""
    arrays = [
        *index.kneighbors(Q, 3),
        index.distances(Q),
        index.pair_distances([0, 1], [5, 6]),
        index.sum_distances(Q),
        index.sample(Q, 5, random_state=0),
        index.components_,
    ]
    return [(array.shape, array.tobytes()) for array in arrays]


def fitted(engine, storage="dense", warm=True):
    index = SketchedMahalanobisNeighbors(**PARAMS[engine])
    index.fit(sparse.csr_matrix(X) if storage == "csr" else X)
    assert index.engine_ == engine
    if warm:
        results(index)
        index.update_metric(low_rank=(W / 9, V))  # which some arrays have not seen
    return index


def assert_refused(index, call, error, names):
    """`call(index)` raises `error` that says `names`, and nothing has changed."""
    before = state_of(index)
    with pytest.raises(error, match=names):
        call(index)
    assert state_of(index) == before


def with_value(array, value):
    array = np.array(array, dtype=float)
    array.flat[-1] = value
    return array


def call(method, *args, **kwargs):
    return lambda index: getattr(index, method)(*args, **kwargs)


TAKES_QUERIES = [
    "kneighbors",
    "kneighbors_graph",
    "radius_neighbors",
    "radius_neighbors_graph",
    "distances",
    "sample",
    "sum_distances",
    "score",
]
TAKES_POINTS = {
    **{name: partial(call, name) for name in TAKES_QUERIES},
    "fit": partial(call, "fit"),
    "partial_fit": partial(call, "partial_fit"),
    "update_points": lambda Z: call("update_points", np.arange(Z.shape[0]), Z),
}

BAD_POINTS = {
    "NaN": (with_value(Q, np.nan), "Input X contains NaN"),
    "infinity": (with_value(Q, np.inf), "Input X contains infinity"),
    "no points": (np.empty((0, D)), "Found array with 0 sample"),
    "one dimension": (Q[0], "Expected 2D array"),
    "text": (np.array([["a"] * D]), "could not convert string"),
}
BAD_ARRAYS = {"NaN": np.nan, "infinity": np.inf, "minus infinity": -np.inf}

BAD_CALLS = {
    # Points and their positions.
    "update_points beyond": (
        "^indices: index 30",
        call("update_points", [0, N], Q[:2]),
    ),
    "update_points before": (
        "^indices: index -31",
        call("update_points", [-N - 1], Q[:1]),
    ),
    "update_points repeated": (
        "^indices: index 3",
        call("update_points", [3, 3], Q[:2]),
    ),
    "update_points repeated from the end": (
        "^indices: index 29",
        call("update_points", [N - 1, -1], Q[:2]),
    ),
    "update_points not whole": (
        "^indices must be",
        call("update_points", [1.0], Q[:1]),
    ),
    "update_points by mask": ("^indices must be", call("update_points", [True], Q[:1])),
    "update_points in a square": (
        "^indices must be",
        call("update_points", [[1]], Q[:1]),
    ),
    "update_points too few rows": (
        "X has 1.*indices",
        call("update_points", [1, 2], Q[:1]),
    ),
    "update_points too many rows": (
        "X has 4.*indices",
        call("update_points", [1, 2], Q),
    ),
    "update_points no positions": ("X has 4.*indices", call("update_points", [], Q)),
    "remove_points beyond": ("^indices: index 30", call("remove_points", N)),
    "remove_points before": ("^indices: index -31", call("remove_points", [0, -N - 1])),
    "remove_points not whole": ("^indices must be", call("remove_points", [0.5])),
    "remove_points by mask": (
        "^indices must be integers or 30 booleans",
        call("remove_points", np.ones(N - 1, dtype=bool)),
    ),
    "remove_points of all": (
        "every one of the 30",
        call("remove_points", np.ones(N, dtype=bool)),
    ),
    "remove_points all": ("indices.*every", call("remove_points", range(N))),
    "pair_distances beyond i": ("^i: index 30", call("pair_distances", N, 0)),
    "pair_distances beyond j": ("^j: index 30", call("pair_distances", 0, N)),
    "pair_distances not whole i": (
        "i must be integers",
        call("pair_distances", 0.5, 0),
    ),
    "pair_distances not whole j": (
        "j must be integers",
        call("pair_distances", 0, "a"),
    ),
    # Numbers of things.
    "kneighbors more than there are": ("n_neighbors.*30", call("kneighbors", Q, N + 1)),
    "kneighbors of points": ("n_neighbors.*29", call("kneighbors", None, N)),
    "kneighbors none": ("^n_neighbors must", call("kneighbors", Q, 0)),
    "kneighbors not whole": ("^n_neighbors must", call("kneighbors", Q, 2.0)),
    "kneighbors_graph more": ("n_neighbors.*30", call("kneighbors_graph", Q, N + 1)),
    "kneighbors_graph mode": ("mode.*'both'", call("kneighbors_graph", Q, 2, "both")),
    "radius_neighbors negative": ("radius.*-1", call("radius_neighbors", Q, -1.0)),
    "radius_neighbors NaN": ("radius.*nan", call("radius_neighbors", Q, np.nan)),
    "radius_neighbors text": ("radius.*'a'", call("radius_neighbors", Q, "a")),
    "radius_neighbors many": ("^radius must", call("radius_neighbors", Q, [1.0, 2.0])),
    "radius_neighbors_graph NaN": (
        "radius.*nan",
        call("radius_neighbors_graph", Q, np.nan),
    ),
    "radius_neighbors_graph mode": (
        "mode.*None",
        call("radius_neighbors_graph", Q, mode=None),
    ),
    "sample none": ("n_samples.*0", call("sample", Q, 0)),
    "sample negative": ("n_samples.*-2", call("sample", Q, -2)),
    "sample not whole": ("n_samples.*1.5", call("sample", Q, 1.5)),
    "sample power": ("power.*3", call("sample", Q, power=3)),
    "sample seed": ("seed", call("sample", Q, random_state="a")),
    "sum_distances power": ("power.*0.5", call("sum_distances", Q, power=0.5)),
    "sum_distances start": ("start.*-1", call("sum_distances", Q, -1)),
    "sum_distances beyond start": ("start.*31", call("sum_distances", Q, N + 1)),
    "sum_distances stop": ("stop.*31", call("sum_distances", Q, 0, N + 1)),
    "sum_distances backwards": ("stop.*4", call("sum_distances", Q, 5, 4)),
    "sum_distances not whole": ("start.*0.5", call("sum_distances", Q, 0.5)),
    "audit none": ("n_pairs.*0", call("audit", 0)),
    "audit not whole": ("n_pairs.*2.5", call("audit", 2.5)),
    # A whole metric.
    "metric of other features": (
        r"metric.*\(k, 6\).*\(5, 7\)",
        call("update_metric", np.ones((K, D + 1))),
    ),
    "metric of no rows": ("metric.*6", call("update_metric", np.empty((0, D)))),
    "metric of one dimension": ("metric.*6", call("update_metric", U[0])),
    "metric of three dimensions": ("metric.*6", call("update_metric", U[None])),
    "metric a number": ("metric.*6", call("update_metric", 3.0)),
    "metric sparse": ("metric.*dense", call("update_metric", sparse.csr_matrix(U))),
    "learner not fitted": ("metric.*PCA", call("update_metric", PCA(2))),
    "learner without components": (
        "metric.*WithoutComponents",
        call("update_metric", WithoutComponents().fit(X)),
    ),
    "learner of other features": (
        "metric.components_.*7",
        call("update_metric", WithComponents(np.ones((K, D + 1))).fit(X)),
    ),
    "learner of NaN": (
        "metric.components_.*NaN",
        call("update_metric", WithComponents(with_value(U, np.nan)).fit(X)),
    ),
    # Rows of the metric.
    "rows beyond": ("^rows: index 5", call("update_metric", U[:2], rows=[0, K])),
    "rows before": ("^rows: index -6", call("update_metric", U[:1], rows=[-K - 1])),
    "rows repeated": ("^rows: index 1", call("update_metric", U[:2], rows=[1, 1])),
    "rows not whole": ("^rows must be", call("update_metric", U[:1], rows=[1.0])),
    "rows of fewer values": (
        "metric has 1 rows, expected 2",
        call("update_metric", U[:1], rows=[0, 1]),
    ),
    "rows of other features": (
        "metric has 7 columns, expected 6",
        call("update_metric", np.ones((1, D + 1)), rows=[0]),
    ),
    "rows none": ("^metric must", call("update_metric", np.empty((0, D)), rows=[])),
    "rows additive beyond": (
        "^rows: index 5",
        call("update_metric", U[:1], rows=[K], additive=True),
    ),
    "additive without rows": ("rows", call("update_metric", U, additive=True)),
    # Low rank.
    "W of other rows": ("W has 6 rows", call("update_metric", low_rank=(V, V))),
    "V of other rows": ("V has 5 rows", call("update_metric", low_rank=(W, W))),
    "W and V of other columns": (
        "W has 2 columns and V has 1",
        call("update_metric", low_rank=(W, V[:, :1])),
    ),
    "W empty": ("^W must", call("update_metric", low_rank=(W[:, :0], V[:, :0]))),
    "W of three dimensions": ("^W must", call("update_metric", low_rank=(W[None], V))),
    "low_rank one array": ("^low_rank", call("update_metric", low_rank=W)),
    "low_rank three arrays": ("^low_rank", call("update_metric", low_rank=(W, V, V))),
    "low_rank with metric": ("^low_rank", call("update_metric", U, low_rank=(W, V))),
    "low_rank three": (
        r"^low_rank must be a pair \(W, V\), got a tuple of 3\.",
        call("update_metric", low_rank=(1, 2, 3)),
    ),
    "low_rank a number": (
        r"^low_rank must be a pair \(W, V\), got a int\.",
        call("update_metric", low_rank=3),
    ),
    "low_rank with additive": (
        "^low_rank cannot be combined with metric, rows or additive",
        call("update_metric", low_rank=(W, V), additive=True),
    ),
    "low_rank with rows": (
        "^low_rank",
        call("update_metric", rows=[0], low_rank=(W, V)),
    ),
    "nothing": ("metric or low_rank", call("update_metric")),
    "rows alone": ("metric", call("update_metric", rows=[0])),
}
for what, value in BAD_ARRAYS.items():
    BAD_CALLS |= {
        f"metric of {what}": (
            r"\bmetric contains",
            call("update_metric", with_value(U, value)),
        ),
        f"metric of other rows of {what}": (
            r"\bmetric contains",
            call("update_metric", with_value(np.ones((K + 2, D)), value)),
        ),
        f"rows of {what}": (
            r"\bmetric contains",
            call("update_metric", with_value(U[:2], value), rows=[0, 1]),
        ),
        f"rows additive of {what}": (
            r"\bmetric contains",
            call("update_metric", with_value(U[:2], value), rows=[0, 1], additive=True),
        ),
        f"W of {what}": (
            "W contains",
            call("update_metric", low_rank=(with_value(W, value), V)),
        ),
        f"V of {what}": (
            "V contains",
            call("update_metric", low_rank=(W, with_value(V, value))),
        ),
    }

BAD_PARAMETERS = {
    "n_neighbors": [0, -1, 2.5, None],
    "radius": [-1.0, np.nan, "wide"],
    "m": [0, -3, 1.5, "many"],
    "L": [0, -1, 2.5, "auto"],
    "R": [0, -1, 2.5, "all"],
    "eps": [0, 1, -0.1, 1.1, np.nan, "auto"],
    "delta": [0, 1, -0.1, 1.1, np.nan],
    "lead": [-1, 0.5, "some"],
    "sketch": ["fourier", None],
    "n_candidates": [0, -1, 2.5, "all", None],
    "random_state": ["a", -1],
    "n_jobs": [1.5, "all"],
    "metric_learner": [
        "euclidean",
        7,
        with_value(U, np.nan),
        with_value(U, np.inf),
        np.ones((K, D + 1)),
        np.empty((0, D)),
        np.ones(D),
        WithoutComponents(),
        WithComponents(np.ones((K, D + 1))),
        WithComponents(with_value(U, np.nan)),
        WithComponents(U[0]),
    ],
}

BEFORE_FIT = {
    **{name: call(name, Q) for name in TAKES_QUERIES},
    "kneighbors of points": call("kneighbors"),
    "radius_neighbors of points": call("radius_neighbors"),
    "pair_distances": call("pair_distances", 0, 1),
    "update_points": call("update_points", [0], Q[:1]),
    "remove_points": call("remove_points", [0]),
    "points": call("points"),
    "update_metric": call("update_metric", U),
    "refresh_sketches": call("refresh_sketches"),
    "check": call("check"),
    "audit": call("audit"),
    "guarantee": call("guarantee"),
    "sketches_only": call("sketches_only"),
}

any_engine = pytest.mark.parametrize("engine", PARAMS)
any_error = (ValueError, TypeError, IndexError)


def one_of(table):
    return pytest.mark.parametrize("case", table.values(), ids=table)


def test_the_state_shows_every_change():
    index = fitted("sketched")
    before = state_of(index)
    assert state_of(index) == before
    for change in (
        lambda: index.update_points([3], Q[:1]),
        lambda: index.update_metric(U[:1] + 1e-9, rows=[2]),
        lambda: index.refresh_sketches(),
        lambda: index.set_params(eps=0.9),
        lambda: index.remove_points(0),
    ):
        change()
        after = state_of(index)
        assert after != before
        before = after


@any_engine
@one_of(BAD_POINTS)
@pytest.mark.parametrize("method", TAKES_POINTS)
def test_bad_points_are_refused(engine, case, method):
    Z, names = case
    assert_refused(fitted(engine), TAKES_POINTS[method](Z), ValueError, names)


@any_engine
@pytest.mark.parametrize("method", [name for name in TAKES_POINTS if name != "fit"])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_another_number_of_features_is_refused(engine, method, storage):
    index = fitted(engine, storage)
    for features in (1, D - 1, D + 1):
        Z = np.ones((2, features))
        Z = sparse.csr_matrix(Z) if storage == "csr" else Z
        names = f"X has {features} features.* expecting {D} features"
        assert_refused(index, TAKES_POINTS[method](Z), ValueError, names)


@any_engine
@pytest.mark.parametrize("method", TAKES_POINTS)
@pytest.mark.parametrize("value", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_values_in_sparse_points_are_refused(engine, method, value):
    Z = sparse.csr_matrix(with_value(Q, value))
    index = fitted(engine, "csr")
    assert_refused(index, TAKES_POINTS[method](Z), ValueError, "X contains")


@any_engine
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@one_of(BAD_CALLS)
def test_bad_arguments_are_refused_by_name(engine, warm, case):
    names, bad_call = case
    assert_refused(fitted(engine, warm=warm), bad_call, any_error, names)


@any_engine
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_refused_calls_leave_the_results(engine, storage):
    index = fitted(engine, storage)
    expected = results(fitted(engine, storage))
    for _, bad_call in BAD_CALLS.values():
        with pytest.raises(any_error):
            bad_call(index)
    assert results(index) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_PARAMETERS.items() for value in values],
    ids=lambda value: "..." if isinstance(value, np.ndarray) else repr(value),
)
class TestBadParameters:
    def test_an_index_stays_unfitted(self, name, value):
        for fit in ("fit", "partial_fit"):
            index = SketchedMahalanobisNeighbors(**{name: value})
            assert_refused(index, call(fit, X), any_error, rf"\b{name}\b")
            with pytest.raises(NotFittedError):
                index.kneighbors(Q)

    @any_engine
    def test_an_earlier_fit_stays(self, name, value, engine):
        index = fitted(engine)
        expected = results(fitted(engine))
        kept = index.get_params()[name]
        index.set_params(**{name: value})
        assert_refused(index, call("fit", 2 * X), any_error, rf"\b{name}\b")
        assert results(index.set_params(**{name: kept})) == expected


def test_more_votes_than_sketches_are_refused():
    index = SketchedMahalanobisNeighbors(L=3, R=4)
    assert_refused(index, call("fit", X), ValueError, "R must be .* 1 to 3, got 4")
    assert index.set_params(R=3).fit(X).R_ == 3


def test_a_budget_below_the_neighbours_is_refused():
    index = fitted("sketched").set_params(n_candidates=4)
    assert_refused(index, call("kneighbors", Q, 5), ValueError, "n_candidates.*5.*4")
    assert_refused(index, call("kneighbors", None, 5), ValueError, "n_candidates.*5.*4")
    assert index.kneighbors(None, 4)[0].shape == (N, 4)


@any_engine
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("fit", ["fit", "partial_fit"])
def test_a_learner_that_fails_leaves_the_index(engine, error, fit):
    index = SketchedMahalanobisNeighbors(metric_learner=FailsToFit(error))
    assert_refused(index, call(fit, X), error, "the learner failed")
    assert not hasattr(index, "n_features_in_")
    index = fitted(engine).set_params(metric_learner=FailsToFit(error))
    assert_refused(index, call("fit", 2 * X[:, 1:]), error, "the learner failed")
    assert index.n_features_in_ == D
    assert results(index) == results(fitted(engine))


def test_a_learner_that_needs_targets_is_refused_without():
    learner = NeighborhoodComponentsAnalysis(max_iter=1)
    index = SketchedMahalanobisNeighbors(metric_learner=learner)
    assert_refused(index, call("fit", X), ValueError, "requires y")


@one_of(BEFORE_FIT)
def test_nothing_is_returned_before_fit(case):
    index = SketchedMahalanobisNeighbors()
    assert_refused(index, case, NotFittedError, "not fitted yet")


def test_every_public_method_is_called_before_fit():
    methods = {
        name
        for name in dir(SketchedMahalanobisNeighbors)
        if not name.startswith("_")
        and callable(getattr(SketchedMahalanobisNeighbors, name))
        and name not in dir(BaseEstimator)
        and not (name.startswith("set_") and name.endswith("_request"))
    }
    called = {name.split()[0] for name in BEFORE_FIT}
    # Callbacks are those of scikit-learn 1.9, and are set before `fit`.
    assert methods - {"fit", "partial_fit", "set_callbacks"} == called


@any_engine
def test_neighbours_of_the_only_point_are_refused(engine):
    index = fitted(engine).remove_points(range(1, N))
    assert_refused(index, call("kneighbors", None, 1), ValueError, "n_neighbors")
    assert_refused(index, call("remove_points", [0]), ValueError, "every")
    assert index.kneighbors(Q, 1)[0].shape == (4, 1)


# --- estimators with targets ----------------------------------------------------------

SUPERVISED = {
    "classifier": (SketchedMahalanobisClassifier, LABELS),
    "regressor": (SketchedMahalanobisRegressor, NUMBERS),
}


def supervised(kind, engine="exact"):
    estimator, y = SUPERVISED[kind]
    knn = estimator(**PARAMS[engine])
    if kind == "classifier":
        knn.partial_fit(X, y, classes=[0, 1, 2])
    else:
        knn.fit(X, y)
    knn.predict(Q)
    return knn


Q3 = Q[:3]
BAD_LABELS = {
    "fit, other length": ("inconsistent numbers", call("fit", X, LABELS[:-1])),
    "fit, no labels": ("requires y to be passed", call("fit", X, None)),
    "fit, numbers": ("Unknown label type", call("fit", X, X[:, 0])),
    "fit, no label": ("y has no label", call("fit", X, [None] * N)),
    "fit, infinity": ("y contains infinity", call("fit", X, np.full(N, np.inf))),
    "fit, three dimensions": (
        "array with dim 3",
        call("fit", X, LABELS.reshape(-1, 1, 1)),
    ),
    "other length": ("inconsistent numbers", call("partial_fit", Q3, [0, 1])),
    "no labels": ("requires y", call("partial_fit", Q3, None)),
    "unseen": (
        r"y contains 7, which is not among the classes \[0, 1, 2\]",
        call("partial_fit", Q3, [0, 7, 8]),
    ),
    "another type": ("y contains '1'", call("partial_fit", Q3, list("110"))),
    "a fraction": ("y contains 0.5", call("partial_fit", Q3, [0, 0.5, 1])),
    "below": ("y contains -1", call("partial_fit", Q3, [0, 1, -1])),
    "outputs": ("y has 2 outputs, expected 1", call("partial_fit", Q3, [[0, 1]] * 3)),
    "more classes": (
        r"those of earlier calls, \[0, 1, 2\], got \[0, 1, 2, 3\]",
        call("partial_fit", Q3, [0, 1, 2], classes=[0, 1, 2, 3]),
    ),
    "fewer classes": (
        "those of earlier calls",
        call("partial_fit", Q3, [0, 1, 1], classes=[0, 1]),
    ),
    "ragged classes": (
        "classes must be an array",
        call("partial_fit", Q3, [0, 1, 1], classes=[[0], [1, 2]]),
    ),
    "classes of several outputs": (
        "classes must be an array",
        call("partial_fit", Q3, [0, 1, 1], classes=[[0, 1, 2]]),
    ),
    "features": ("X has 3 features", call("partial_fit", Q3[:, :3], [0] * 3)),
    "update_points, other length": (
        "inconsistent numbers",
        call("update_points", [0, 1, 2], Q3, [0]),
    ),
    "update_points, positions": (
        "X has 3 rows, expected 2, one for each of indices",
        call("update_points", [0, 1], Q3, [0, 1, 2]),
    ),
    "update_points, twice": (
        "indices: index 1",
        call("update_points", [0, 1, 1], Q3, [0, 1, 2]),
    ),
    "update_points, unseen": (
        "y contains 5",
        call("update_points", [0, 1, 2], Q3, [0, 5, 1]),
    ),
    "update_points, outputs": (
        "y has 2 outputs, expected 1",
        call("update_points", [0, 1, 2], Q3, [[0, 1]] * 3),
    ),
    "remove_points, beyond": ("indices: index 30", call("remove_points", N)),
    "remove_points, all": ("every one of the 30", call("remove_points", range(N))),
    "predict, NaN": ("contains NaN", call("predict", np.full((1, D), np.nan))),
}
BAD_NUMBERS = {
    "fit, other length": ("inconsistent numbers", call("fit", X, NUMBERS[:-1])),
    "fit, no targets": ("requires y to be passed", call("fit", X, None)),
    "fit, NaN": ("contains NaN", call("fit", X, np.full(N, np.nan))),
    "fit, text": ("could not convert string", call("fit", X, ["a"] * N)),
    "other length": ("inconsistent numbers", call("partial_fit", Q3, NUMBERS[:2])),
    "no targets": ("requires y", call("partial_fit", Q3, None)),
    "outputs": (
        "y has 1 outputs, expected 2",
        call("partial_fit", Q3, NUMBERS[:3, 0]),
    ),
    "infinity": (
        "contains infinity",
        call("partial_fit", Q3, np.full((3, 2), np.inf)),
    ),
    "update_points, other length": (
        "inconsistent numbers",
        call("update_points", [0, 1, 2], Q3, NUMBERS[:1]),
    ),
    "update_points, outputs": (
        "y has 3 outputs, expected 2",
        call("update_points", [0, 1, 2], Q3, np.ones((3, 3))),
    ),
    "update_points, positions": (
        "one for each of indices",
        call("update_points", [0, 1], Q3, NUMBERS[:3]),
    ),
    "remove_points, all": ("every one of the 30", call("remove_points", range(N))),
}
BAD_TARGETS = [
    pytest.param(kind, *case, id=f"{kind}: {name}")
    for kind, cases in (("classifier", BAD_LABELS), ("regressor", BAD_NUMBERS))
    for name, case in cases.items()
]


@any_engine
@pytest.mark.parametrize(("kind", "names", "bad_call"), BAD_TARGETS)
def test_bad_targets_are_refused_by_name(engine, kind, names, bad_call):
    assert_refused(supervised(kind, engine), bad_call, any_error, names)


NOT_NUMBERS = {
    "NaN": np.nan,
    "None": None,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "NaN in text": "nan",
    "infinity in text": "inf",
    "text": "much",
}


@pytest.mark.parametrize("what", NOT_NUMBERS)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("dtype", [object, str])
def test_targets_that_are_not_numbers_are_refused(what, method, dtype):
    y = NUMBERS.astype(dtype)
    y[3, 1] = NOT_NUMBERS[what]
    assert_refused(supervised("regressor"), call(method, X, y), ValueError, r"\by\b")
    unfitted = SketchedMahalanobisRegressor()
    assert_refused(unfitted, call(method, X, y[:, 1]), ValueError, r"\by\b")


@pytest.mark.parametrize("kind", SUPERVISED)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_with_targets_a_learner_that_fails_shows_its_error(kind, error):
    estimator, y = SUPERVISED[kind]
    knn = estimator(metric_learner=FailsToFit(error))
    for fit in ("fit", "partial_fit"):
        assert_refused(knn, call(fit, X, y), error, "the learner failed")
    with pytest.raises(NotFittedError):
        knn.predict(Q)
    knn = supervised(kind, "sketched").set_params(metric_learner=FailsToFit(error))
    assert_refused(knn, call("fit", X, LABELS % 2), error, "the learner failed")


@pytest.mark.parametrize("kind", SUPERVISED)
def test_sparse_targets_are_refused(kind):
    y = sparse.csr_matrix(np.eye(N))
    for method in ("fit", "partial_fit"):
        bad_call = call(method, X, y)
        assert_refused(supervised(kind), bad_call, TypeError, "y must be dense")


BAD_WEIGHTS = {
    "zero": (np.zeros_like, "All neighbors of some sample is getting zero weights"),
    "shape": (lambda d: d[:, 0], "weights must give an array of the shape"),
    "NaN": (lambda d: np.nan * d, "weights contains NaN or infinity"),
    "infinity": (lambda d: np.inf + d, "weights contains NaN or infinity"),
    "complex": (lambda d: 1j * d, "weights must be real"),
    "text": (lambda d: np.full(d.shape, "a"), "weights must be an array of numbers"),
    "name": ("bad", "weights must be 'uniform', 'distance', None or a function, got"),
    "array": (np.ones(3), "weights must be 'uniform'"),
    "number": (2.0, "weights must be 'uniform', .* got 2.0"),
}


@pytest.mark.parametrize("kind", SUPERVISED)
@one_of(BAD_WEIGHTS)
def test_bad_weights_are_refused(kind, case):
    weights, names = case
    knn = supervised(kind).set_params(weights=weights)
    assert_refused(knn, call("predict", Q), ValueError, names)


def test_weights_that_sum_to_zero_are_refused_as_divisors():
    knn = SketchedMahalanobisRegressor(2, weights=lambda d: d - d.mean(1)[:, None])
    # Distances 1 and 3, whose differences from their mean sum to zero exactly.
    knn.fit([[0.0], [4.0]], [1.0, 2.0])
    names = "weights must not sum to zero"
    assert_refused(knn, call("predict", [[1.0]]), ValueError, names)


@pytest.mark.parametrize("kind", SUPERVISED)
def test_more_neighbours_than_points_are_refused_except_for_predictions(kind):
    knn = supervised(kind).set_params(n_neighbors=N + 1)
    assert_refused(knn, call("kneighbors", Q), ValueError, "n_neighbors")
    found = knn.predict(Q)
    np.testing.assert_array_equal(found, knn.set_params(n_neighbors=N).predict(Q))
    knn.set_params(n_neighbors="all")
    assert_refused(knn, call("predict", Q), ValueError, "n_neighbors.*'all'")


@pytest.mark.parametrize("classes", [[[0, 1]], [0, 1], [[0, 1]] * 3, 3, "ab"])
def test_there_are_classes_for_every_output(classes):
    both = np.stack([LABELS % 2, LABELS % 2], axis=1)
    bad = call("partial_fit", X, both, classes=classes)
    names = "classes must be a list of 2 arrays"
    assert_refused(SketchedMahalanobisClassifier(), bad, ValueError, names)


def test_the_transformer_refuses_more_neighbours_than_points():
    graph = SketchedMahalanobisNeighborsTransformer(n_neighbors=9).fit(normal(9, 3))
    transform = call("transform", normal(9, 3))
    names = "n_neighbors=9 and the extra neighbour .* more than the 9 points"
    assert_refused(graph, transform, ValueError, names)
    names = "n_neighbors must be an integer from 1 to 9, the number of points, got 10"
    graph.set_params(n_neighbors=10, mode="connectivity")
    assert_refused(graph, transform, ValueError, names)
    graph.set_params(n_neighbors=9).transform(normal(9, 3))
    graph.set_params(n_neighbors="all", mode="distance")
    assert_refused(graph, transform, ValueError, "'all'")
    assert graph.set_params(n_neighbors=8).transform(normal(9, 3)).shape == (9, 9)
    with pytest.raises(NotFittedError):
        SketchedMahalanobisNeighborsTransformer().transform(X)
