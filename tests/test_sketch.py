"""MahalanobisSketch: error bounds, inputs, metrics and scikit-learn conventions."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import skops.io
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.stats import binom
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import DataDimensionalityWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

# The size that "auto" must choose is computed nowhere else.
from skmahal._core.bounds import sketch_size
from skmahal.sketch import MahalanobisSketch

SKETCHES = ("gaussian", "rademacher", "countsketch", "srht")

any_sketch = pytest.mark.parametrize("sketch", SKETCHES)
any_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# The checks use data with one feature, and "srht" has at most as many rows.
CONFORMING = [
    MahalanobisSketch(),
    MahalanobisSketch(m=3),
    MahalanobisSketch(m=3, sketch="rademacher"),
    MahalanobisSketch(m=3, sketch="countsketch"),
    MahalanobisSketch(m=1, sketch="srht"),
    MahalanobisSketch(eps=0.9, delta=0.9),
    MahalanobisSketch(sketch="countsketch"),
    MahalanobisSketch(m=2, metric_learner=PCA(1)),
]

NOT_IN_THE_DEFAULT_SET = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_global_output_transform_pandas,
    estimator_checks.check_param_validation,
    estimator_checks.check_set_output_transform,
    estimator_checks.check_set_output_transform_pandas,
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_transformer_get_feature_names_out_pandas,
]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.filterwarnings("ignore:m=3 is more than the")
@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("check", NOT_IN_THE_DEFAULT_SET, ids=lambda c: c.__name__)
@pytest.mark.filterwarnings("ignore:X .* feature names:UserWarning")
@any_sketch
def test_scikit_learn_conventions_beyond_the_default_set(check, sketch):
    check("MahalanobisSketch", MahalanobisSketch(m=1, sketch=sketch, random_state=0))


@pytest.mark.slow
@any_sketch
def test_all_distances_of_a_query_are_within_eps_with_probability_1_delta(sketch):
    n, k, d, eps, delta, trials = 3, 64, 70, 0.8, 0.3, 400
    U, points, query = normal(k, d), normal(n, d, seed=1), normal(1, d, seed=2)
    exact = np.linalg.norm((points - query) @ U.T, axis=1)
    failed = 0
    for seed in range(trials):
        transformer = MahalanobisSketch(
            eps=eps, delta=delta, metric_learner=U, sketch=sketch, random_state=seed
        ).fit(points)
        estimate = np.linalg.norm(
            transformer.transform(points) - transformer.transform(query), axis=1
        )
        failed += bool(np.any(np.abs(estimate / exact - 1) > eps))
    assert transformer.m_ < k
    assert failed <= binom.isf(1e-6, trials, delta)


def test_a_small_error_is_kept_for_many_points():
    n, d, eps, delta, trials = 50, 300, 0.3, 0.1, 200
    points, query = normal(n, d), normal(1, d, seed=1)
    exact = np.linalg.norm(points - query, axis=1)
    failed = 0
    for seed in range(trials):
        transformer = MahalanobisSketch(eps=eps, delta=delta, random_state=seed)
        Z = transformer.fit(points).transform(np.vstack([points, query]))
        estimate = np.linalg.norm(Z[:-1] - Z[-1], axis=1)
        failed += bool(np.any(np.abs(estimate / exact - 1) > eps))
    assert transformer.m_ < d
    assert failed <= binom.isf(1e-6, trials, delta)


def test_auto_is_the_smallest_sufficient_size():
    X = normal(40, 500)
    transformer = MahalanobisSketch(eps=0.3, delta=0.05).fit(X)
    assert transformer.m_ == sketch_size(0.3, 0.05 / 40)
    assert transformer.transform(X).shape == (40, transformer.m_)


@pytest.mark.parametrize("fewer", [0, 1])
def test_auto_sketches_only_where_there_are_fewer_features(fewer):
    m = sketch_size(0.3, 0.01 / 10)
    transformer = MahalanobisSketch(eps=0.3).fit(normal(10, m + fewer))
    assert transformer.m_ == m
    assert np.array_equal(transformer.components_, np.eye(m)) == (fewer == 0)


@any_sketch
def test_auto_is_exact_if_a_sketch_would_not_be_smaller(sketch):
    X, U = normal(30, 8), normal(5, 8, seed=1)
    for eps in (0.1, 1e-30):
        euclidean = MahalanobisSketch(sketch=sketch, eps=eps).fit(X)
        assert euclidean.m_ == 8
        assert_array_equal(euclidean.transform(X), X)
        assert_array_equal(euclidean.components_, np.eye(8))
    learned = MahalanobisSketch(sketch=sketch, metric_learner=U).fit(X)
    assert learned.m_ == 5
    assert_allclose(learned.transform(X), X @ U.T)
    assert_array_equal(learned.components_, U)


def test_the_exact_euclidean_map_is_not_a_dense_matrix():
    X = sparse.random(5, 40_000, density=1e-3, format="csr", random_state=0)
    transformer = MahalanobisSketch(eps=0.01).fit(X)
    assert transformer.m_ == 40_000
    assert_array_equal(transformer.transform(X), X.toarray())


@any_sketch
@pytest.mark.parametrize("U", [None, normal(6, 9, seed=1)], ids=["Euclidean", "U"])
def test_an_integer_m_is_kept(sketch, U):
    X = normal(20, 9)
    transformer = MahalanobisSketch(
        np.int8(4), metric_learner=U, sketch=sketch, random_state=0
    )
    Z = transformer.fit_transform(X)
    assert transformer.m_ == 4
    assert transformer.components_.shape == (4, 9)
    assert_allclose(Z, X @ transformer.components_.T)
    assert list(transformer.get_feature_names_out()[:2]) == [
        "mahalanobissketch0",
        "mahalanobissketch1",
    ]


@any_sketch
@any_dtype
@pytest.mark.parametrize("U", [None, normal(6, 30, seed=1)], ids=["Euclidean", "U"])
@pytest.mark.parametrize(
    "as_sparse", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array]
)
def test_sparse_and_dense_points_have_equal_sketches(sketch, dtype, U, as_sparse):
    X = sparse.random(25, 30, density=0.2, random_state=0).astype(dtype)
    transformer = MahalanobisSketch(4, metric_learner=U, sketch=sketch, random_state=0)
    dense = transformer.fit(X.toarray()).transform(X.toarray())
    other = transformer.fit(as_sparse(X)).transform(as_sparse(X))
    assert isinstance(other, np.ndarray)
    assert other.dtype == dense.dtype == dtype
    assert_allclose(other, dense, atol=1e-5 if dtype == np.float32 else 1e-12)


@any_sketch
@pytest.mark.parametrize("fitted", [np.float32, np.float64])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_points_may_have_another_type_than_in_fit(sketch, fitted, given):
    X = sparse.random(25, 30, density=0.2, random_state=0, format="csr")
    transformer = MahalanobisSketch(4, sketch=sketch, random_state=0)
    transformer.fit(X.astype(fitted))
    dense = transformer.transform(X.toarray().astype(given))
    other = transformer.transform(X.astype(given))
    assert other.dtype == dense.dtype == np.result_type(fitted, given)
    assert_allclose(other, dense, atol=1e-6)


def test_countsketch_of_sparse_points_needs_no_dense_matrix():
    """A dense matrix would have 20 million entries."""
    X = sparse.random(10, 200_000, density=1e-4, format="csr", random_state=0)
    transformer = MahalanobisSketch(100, sketch="countsketch", random_state=0).fit(X)
    assert len(pickle.dumps(transformer)) < 5e6
    norms = np.linalg.norm(transformer.transform(X), axis=1)
    assert_allclose(norms, np.linalg.norm(X.toarray(), axis=1), rtol=0.3)


@any_sketch
@any_dtype
def test_floating_types_are_kept(sketch, dtype):
    X, U = normal(10, 8).astype(dtype), normal(8, 8, seed=1)
    for m in (3, "auto"):
        for learner in (None, U):
            transformer = MahalanobisSketch(m, sketch=sketch, metric_learner=learner)
            assert transformer.fit_transform(X).dtype == dtype
            assert transformer.components_.dtype == dtype


def test_integers_become_float64():
    X = np.arange(12).reshape(4, 3)
    assert MahalanobisSketch(2).fit_transform(X).dtype == np.float64


@any_sketch
def test_random_state_decides_the_sketch(sketch):
    X = normal(10, 40)
    first, second, other = (
        MahalanobisSketch(8, sketch=sketch, random_state=seed).fit_transform(X)
        for seed in (0, 0, 1)
    )
    assert_array_equal(first, second)
    assert np.any(first != other)


def by_joblib(thing, tmp_path, **options):
    joblib.dump(thing, tmp_path / "file")
    return joblib.load(tmp_path / "file", **options)


def by_skops(thing, _):
    data = skops.io.dumps(thing)
    return skops.io.loads(data, trusted=[MahalanobisSketch])


COPIES = {
    "clone": lambda thing, _: clone(thing).fit(normal(10, 40)),
    "copy": lambda thing, _: copy.copy(thing),
    "deepcopy": lambda thing, _: copy.deepcopy(thing),
    "pickle": lambda thing, _: pickle.loads(pickle.dumps(thing)),
    "joblib": by_joblib,
    "mapped": lambda thing, path: by_joblib(thing, path, mmap_mode="r"),
    "skops": by_skops,
}


@any_sketch
@pytest.mark.parametrize("U", [None, normal(20, 40)], ids=["Euclidean", "U"])
@pytest.mark.parametrize("way", COPIES)
def test_copies_and_saved_sketches_transform_alike(sketch, U, way, tmp_path):
    X = normal(10, 40)
    transformer = MahalanobisSketch(8, metric_learner=U, sketch=sketch, random_state=0)
    other = COPIES[way](transformer.fit(X), tmp_path)
    assert_array_equal(other.transform(X), transformer.transform(X))
    assert len(other.get_feature_names_out()) == other.m_ == 8


def changed(values):
    values = np.array(values)
    values.flat[0] += 1
    return values


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("_components", changed),
        ("_components", lambda values: values[:-1]),
        ("m_", lambda m: m + 1),
        ("n_features_in_", lambda d: d + 1),
        ("metric_learner", changed),
        ("_digest", lambda digest: None),
    ],
)
def test_a_changed_state_is_refused(name, change):
    sketch = MahalanobisSketch(3, metric_learner=normal(6, 8)).fit(normal(9, 8))
    state = sketch.__getstate__()
    state[name] = change(state[name])
    with pytest.raises(ValueError, match="saved MahalanobisSketch is damaged or was"):
        MahalanobisSketch().__setstate__(state)


@pytest.mark.parametrize("layout", [1, 99, None])
def test_another_layout_is_refused_by_the_name_of_its_release(layout):
    state = {**MahalanobisSketch().__getstate__(), "_layout": layout}
    state["_release"] = "9.8.7"
    with pytest.raises(ValueError, match=r"saved by skmahal 9\.8\.7, in a layout"):
        MahalanobisSketch().__setstate__(state)


def test_a_mapped_sketch_is_not_read_on_loading(tmp_path):
    """Its arrays stay in the file; wrong shapes are refused all the same."""
    sketch = MahalanobisSketch(3, metric_learner=normal(6, 8)).fit(normal(9, 8))
    joblib.dump(sketch.__getstate__(), tmp_path / "state")
    state = joblib.load(tmp_path / "state", mmap_mode="c")
    state["_components"][0, 0] += 1
    other = MahalanobisSketch()
    other.__setstate__(state)
    assert np.shares_memory(other.__getstate__()["_components"], state["_components"])
    state["_components"] = state["_components"][:2]
    with pytest.raises(ValueError, match=r"is damaged or was changed .* m_ is not 2"):
        MahalanobisSketch().__setstate__(state)


def test_the_array_given_is_not_shared():
    X, U = normal(10, 4), normal(3, 4, seed=1)
    transformer = MahalanobisSketch(metric_learner=U).fit(X)
    before = transformer.transform(X)
    U[:] = 0
    assert_array_equal(transformer.transform(X), before)


def test_a_learner_is_cloned_and_fitted_with_the_targets():
    X, y = make_classification(60, 6, random_state=0)
    learner = NeighborhoodComponentsAnalysis(2, max_iter=5, random_state=0)
    transformer = MahalanobisSketch(metric_learner=learner).fit(X, y)
    assert not hasattr(learner, "components_")
    assert transformer.metric_learner_.components_.shape == (2, 6)
    assert_array_equal(transformer.components_, transformer.metric_learner_.components_)
    assert_allclose(transformer.transform(X), learner.fit(X, y).transform(X))


def test_a_frozen_learner_is_not_fitted_again():
    learner = PCA(3, random_state=0).fit(normal(50, 6))
    transformer = MahalanobisSketch(metric_learner=FrozenEstimator(learner))
    transformer.fit(normal(40, 6, seed=1))
    assert_array_equal(transformer.components_, learner.components_)


def test_a_fitted_sketch_is_a_metric_learner():
    X = normal(20, 30)
    first = MahalanobisSketch(8, random_state=0).fit(X)
    second = MahalanobisSketch(metric_learner=FrozenEstimator(first)).fit(X)
    assert_allclose(second.transform(X), first.transform(X))


def test_fit_replaces_the_metric_of_an_earlier_fit():
    X = normal(20, 4)
    transformer = MahalanobisSketch(metric_learner=PCA(2)).fit(X)
    transformer.set_params(metric_learner=None).fit(X)
    assert transformer.metric_learner_ is None
    assert_array_equal(transformer.transform(X), X)


def test_grid_search_over_the_number_of_features():
    X, y = make_classification(120, 40, n_informative=10, class_sep=2.0, random_state=0)
    pipeline = make_pipeline(MahalanobisSketch(random_state=0), KNeighborsClassifier())
    search = GridSearchCV(pipeline, {"mahalanobissketch__m": [1, 4, 32, "auto"]}, cv=3)
    search.fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < scores[2]
    assert search.score(X, y) > 0.8


def test_data_frames_keep_their_names_in_and_out():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(normal(10, 3), columns=["a", "b", "c"], index=range(5, 15))
    transformer = MahalanobisSketch(2, random_state=0).set_output(transform="pandas")
    Z = transformer.fit_transform(frame)
    assert list(transformer.feature_names_in_) == ["a", "b", "c"]
    assert list(Z.columns) == ["mahalanobissketch0", "mahalanobissketch1"]
    assert_array_equal(Z.index, frame.index)
    with pytest.raises(ValueError, match="feature names"):
        transformer.transform(frame.rename(columns={"a": "z"}))


class NoComponents(BaseEstimator):
    """An estimator that learns no metric."""

    def fit(self, X, y=None):
        return self


class Learned(BaseEstimator):
    """An estimator whose `components_` are given."""

    def __init__(self, components):
        self.components = components

    def fit(self, X, y=None):
        self.components_ = self.components
        return self


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"m": 0}, "'m' parameter"),
        ({"m": 2.5}, "'m' parameter"),
        ({"m": "many"}, "'m' parameter"),
        ({"eps": 0}, "'eps' parameter"),
        ({"eps": -0.1}, "'eps' parameter"),
        ({"delta": 0}, "'delta' parameter"),
        ({"delta": 1}, "'delta' parameter"),
        ({"sketch": "fourier"}, "'sketch' parameter"),
        ({"metric_learner": "lmnn"}, "'metric_learner' parameter"),
        ({"m": 9, "sketch": "srht"}, "m must be at most 4"),
        (
            {"metric_learner": np.ones((2, 3))},
            r"metric_learner must.*\(k, 4\).*\(2, 3\)",
        ),
        ({"metric_learner": np.ones(4)}, r"metric_learner must.*\(k, 4\).*\(4,\)"),
        ({"metric_learner": np.ones((0, 4))}, r"metric_learner must.*\(0, 4\)"),
        ({"metric_learner": np.full((2, 4), np.nan)}, "metric_learner contains NaN"),
        ({"metric_learner": [[np.inf, 1, 1, 1]]}, "metric_learner contains infinity"),
        ({"metric_learner": {"a": 1}}, "metric_learner must have exactly one .*keys"),
        ({"metric_learner": NoComponents()}, "metric_learner .*NoComponents has none"),
        (
            {"metric_learner": Learned(np.ones((2, 3)))},
            r"metric_learner\.components_ must.*\(k, 4\).*\(2, 3\)",
        ),
        (
            {"metric_learner": Learned(np.full((2, 4), -np.inf))},
            r"metric_learner\.components_ contains infinity",
        ),
        (
            {"metric_learner": FrozenEstimator(PCA(2).fit(normal(9, 5)))},
            r"metric_learner\.components_ must.*\(k, 4\).*\(2, 5\)",
        ),
    ],
)
def test_bad_parameters_are_refused_by_name(params, message):
    with pytest.raises(ValueError, match=message):
        MahalanobisSketch(**params).fit(normal(10, 4))


def test_more_new_features_than_features_are_a_warning():
    X = normal(10, 4)
    transformer = MahalanobisSketch(5, random_state=0)
    with pytest.warns(DataDimensionalityWarning, match="m=5 is more than the 4 feat"):
        assert transformer.fit_transform(X).shape == (10, 5)
    for m in (4, "auto"):
        transformer.set_params(m=m).fit(X)


@pytest.mark.parametrize("U", [sparse.eye(4, format="csr"), Learned(None), Learned(3)])
def test_metrics_that_are_not_dense_arrays_are_refused_by_name(U):
    with pytest.raises(TypeError, match=r"metric_learner.* must be"):
        MahalanobisSketch(metric_learner=U).fit(normal(10, 4))


def test_a_metric_too_large_for_the_floating_type_is_refused():
    with pytest.raises(ValueError, match=r"metric_learner .*too large for float32"):
        MahalanobisSketch(metric_learner=np.full((2, 4), 1e300)).fit(
            normal(10, 4).astype(np.float32)
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_that_are_not_finite_are_refused(bad):
    X = normal(10, 4)
    transformer = MahalanobisSketch(2).fit(X)
    X[3, 1] = bad
    with pytest.raises(ValueError, match="X contains"):
        MahalanobisSketch(2).fit(X)
    with pytest.raises(ValueError, match="X contains"):
        transformer.transform(X)


def test_points_with_other_features_are_refused():
    transformer = MahalanobisSketch(2).fit(normal(10, 4))
    with pytest.raises(ValueError, match="3 features, but MahalanobisSketch"):
        transformer.transform(normal(10, 3))


def test_an_unfitted_sketch_says_so():
    transformer = MahalanobisSketch()
    assert not hasattr(transformer, "components_")
    with pytest.raises(NotFittedError):
        transformer.transform(normal(10, 3))


def test_a_refit_that_fails_leaves_the_earlier_fit():
    X = np.random.default_rng(0).normal(size=(20, 5))
    sketch = MahalanobisSketch(m=3, metric_learner=np.eye(5), random_state=0).fit(X)
    before = sketch.transform(X)
    with pytest.raises(ValueError, match="metric_learner"):
        sketch.fit(X[:, :4])
    assert sketch.n_features_in_ == 5
    np.testing.assert_array_equal(sketch.transform(X), before)
