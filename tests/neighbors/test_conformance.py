"""The estimators follow scikit-learn's conventions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
    SketchedMahalanobisRegressor,
    neighbors,
)

# One row per sketch is less than the two or more features of the data of most checks.
SMALLEST = {"m": 1, "L": 1, "R": 1, "lead": 0}
KINDS = [
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisRegressor,
]
CONFORMING = [
    kind(**params)
    for kind in KINDS
    for params in ({}, {"n_candidates": "certified", **SMALLEST})
]
# Each other way of learning, searching, voting and forgetting, in one of them.
CONFORMING += [
    SketchedMahalanobisNeighbors(metric_learner=PCA(), n_jobs=2),
    SketchedMahalanobisNeighbors(m=1, L=3, lead="auto"),
    SketchedMahalanobisNeighbors(
        m=1, L=7, R=2, lead=0, sketch="rademacher", max_points=1000
    ),
    SketchedMahalanobisNeighbors(n_candidates=5, **SMALLEST),
    SketchedMahalanobisNeighborsTransformer(mode="connectivity", metric_learner=PCA()),
    SketchedMahalanobisRadiusTransformer(),
    SketchedMahalanobisRadiusTransformer(mode="connectivity", max_points=1000),
    SketchedMahalanobisClassifier(
        weights="distance", class_weight="balanced", metric_learner=PCA()
    ),
    SketchedMahalanobisRegressor(weights="distance", metric_learner=PCA(), n_jobs=2),
]
INDICES = [one for one in CONFORMING if isinstance(one, SketchedMahalanobisNeighbors)]
INDICES += [
    SketchedMahalanobisNeighbors(m=1, L=1, lead=0, sketch=sketch)
    for sketch in ("countsketch", "srht")
]

# Checks that `parametrize_with_checks` leaves out.
LEFT_OUT = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_estimators_partial_fit_n_features,
    estimator_checks.check_param_validation,
]
OF_CLASSIFIERS = [
    estimator_checks.check_classifiers_multilabel_output_format_predict,
    estimator_checks.check_classifiers_multilabel_output_format_predict_proba,
]
OF_TRANSFORMERS = [
    estimator_checks.check_get_feature_names_out_error,
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_transformer_get_feature_names_out_pandas,
    estimator_checks.check_set_output_transform,
    # A sparse result cannot be a data frame, which these accept.
    estimator_checks.check_set_output_transform_pandas,
    estimator_checks.check_global_output_transform_pandas,
]
MORE_CHECKS = [
    (kind, check)
    for kind, checks in [
        *((kind, LEFT_OUT) for kind in KINDS),
        (SketchedMahalanobisClassifier, OF_CLASSIFIERS),
        (SketchedMahalanobisNeighborsTransformer, OF_TRANSFORMERS),
    ]
    for check in checks
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
any_query = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
any_index = pytest.mark.parametrize("estimator", INDICES, ids=repr)


def not_expected(estimator):
    """Checks that fail for a reason: a weight multiplies the vote of one neighbour.

    Two points at the same place are two neighbours.
    """
    if not hasattr(estimator, "weights"):
        return {}
    name = "check_sample_weight_equivalence_on_{}_data"
    return dict.fromkeys(map(name.format, ("dense", "sparse")), "weights are of votes")


@parametrize_with_checks(CONFORMING, expected_failed_checks=not_expected)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:X .*feature names")
@pytest.mark.parametrize(("kind", "check"), MORE_CHECKS, ids=lambda part: part.__name__)
def test_conventions_that_are_not_checked_by_default(kind, check):
    check(kind.__name__, kind())
    check(kind.__name__, kind(n_candidates="certified", **SMALLEST))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SketchedMahalanobisClassifier(), KNeighborsClassifier()),
        (SketchedMahalanobisRegressor(), KNeighborsRegressor()),
    ],
)
def test_the_tags_are_those_of_scikit_learn(ours, theirs):
    one, two = get_tags(ours), get_tags(theirs)
    # scikit-learn 1.6 does not say that its neighbours take sparse data.
    two.input_tags.sparse = True
    for name in ("estimator_type", "requires_fit", "non_deterministic"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("classifier_tags", "regressor_tags", "target_tags", "input_tags"):
        assert getattr(one, name) == getattr(two, name)


@any_index
@any_query
def test_results_do_not_depend_on_batch_or_order(estimator, query):
    X = np.random.default_rng(0).uniform(size=(20, 3))
    index = clone(estimator).set_params(random_state=0).fit(X)
    Q = np.random.default_rng(1).uniform(size=(11, 3))
    results, turned = query(index, Q), np.arange(11)[::-1]
    one_by_one = np.vstack([query(index, Q[[i]]) for i in range(11)])
    assert_allclose(one_by_one, results, rtol=1e-7)
    assert_allclose(query(index, Q[turned]), results[turned], rtol=1e-7)


@any_index
@any_query
def test_queries_do_not_change_the_attributes(estimator, query):
    X = np.random.default_rng(0).uniform(size=(20, 3))
    index = clone(estimator).fit(X)
    before = dict(vars(index))
    query(index, X)
    assert vars(index) == before


def test_a_frozen_learner_is_kept_by_clone():
    X = np.random.default_rng(0).normal(size=(20, 3))
    learner = FrozenEstimator(PCA(2).fit(X))
    index = clone(SketchedMahalanobisNeighbors(metric_learner=learner)).fit(X + 5)
    assert_array_equal(index.components_, learner.components_)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_the_exact_search(kind):
    assert kind().n_candidates == "exact"


@pytest.mark.parametrize(
    "name",
    [
        "components_",
        "m_",
        "L_",
        "R_",
        "lead_",
        "engine_",
        "metric_learner_",
        "n_samples_fit_",
        "n_features_in_",
        "feature_names_in_",
        "classes_",
        "outputs_2d_",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_there_are_no_fitted_attributes_before_fit(kind, name):
    assert not hasattr(kind(), name)


@pytest.mark.parametrize("name", neighbors.__all__)
def test_costs_are_not_hidden_among_the_parameters(name):
    kind = getattr(neighbors, name)
    ours = [base for base in kind.__mro__ if base.__module__.startswith("skmahal")]
    for method in [value for base in ours for value in vars(base).values()]:
        if callable(method):
            text = (method.__doc__ or "").split("Parameters\n")[1:]
            described = "".join(text).split("Notes\n")[0]
            assert " O(" not in described, method.__qualname__
