"""The learners follow scikit-learn's conventions, every one, for labelled points."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from skmahal.online import LEGO, POLA, OnlineITML

from .streams import LEARNERS, pair_stream

CONFORMING = [
    LEGO(),
    LEGO(0.1, similar_target=0.5, dissimilar_target=2, reservoir_size=3, n_pairs=5),
    OnlineITML(),
    POLA(),
    POLA(init="zeros", tol=1e-3),
]

NOT_IN_THE_DEFAULT_SET = [
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_estimators_partial_fit_n_features,
    estimator_checks.check_param_validation,
    estimator_checks.check_set_output_transform,
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_transformer_get_feature_names_out_pandas,
    estimator_checks.check_transformer_preserve_dtypes,
]


@parametrize_with_checks(CONFORMING)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", CONFORMING, ids=repr)
@pytest.mark.parametrize("check", NOT_IN_THE_DEFAULT_SET, ids=lambda c: c.__name__)
def test_scikit_learn_conventions_that_are_not_checked_by_default(estimator, check):
    check(type(estimator).__name__, clone(estimator))


@pytest.mark.parametrize("name", LEARNERS)
def test_fitting_leaves_the_parameters_alone(name):
    pairs, y = pair_stream(30, 3)
    init = np.eye(3)
    learner = clone(LEARNERS[name]).set_params(init=init)
    before = copy.deepcopy(learner.get_params())
    learner.fit(pairs, y).partial_fit(pairs, y)
    assert learner.get_params()["init"] is init
    np.testing.assert_array_equal(init, before.pop("init"))
    assert {key: learner.get_params()[key] for key in before} == before


@pytest.mark.parametrize("name", LEARNERS)
def test_a_pickled_learner_goes_on_as_the_original(name):
    pairs, y = pair_stream(90, 4)
    X, labels = pairs[:, 0], y
    learner = clone(LEARNERS[name]).set_params(random_state=0)
    learner.fit(pairs[:60], y[:60]).partial_fit(X, labels)
    again = pickle.loads(pickle.dumps(learner))
    for one in (learner, again):
        one.partial_fit(pairs[60:], y[60:]).partial_fit(X[:20], labels[:20])
    np.testing.assert_array_equal(again.components_, learner.components_)
    assert again.version_ == learner.version_
    assert again.threshold_ == learner.threshold_


@pytest.mark.parametrize("name", LEARNERS)
def test_queries_leave_the_attributes_alone(name):
    pairs, y = pair_stream(60, 4)
    learner = clone(LEARNERS[name]).fit(pairs, y)
    before = pickle.dumps(vars(learner))
    learner.components_, learner.threshold_, learner.version_  # noqa: B018
    learner.get_metric(), learner.get_mahalanobis_matrix()
    learner.transform(pairs[:, 0]), learner.predict(pairs), learner.score(pairs, y)
    learner.updates_since(learner.state_token())
    assert pickle.dumps(vars(learner)) == before


@pytest.mark.parametrize("name", LEARNERS)
def test_nothing_is_fitted_before_fit(name):
    learner = clone(LEARNERS[name])
    for attribute in ("components_", "version_", "threshold_", "eta_", "targets_"):
        assert not hasattr(learner, attribute)


def test_names_of_features_are_kept_for_points_and_dropped_for_pairs():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"])
    learner = LEGO(random_state=0).set_output(transform="pandas")
    Z = learner.fit_transform(frame, rng.integers(2, size=30))
    assert list(learner.feature_names_in_) == ["a", "b"]
    assert list(Z.columns) == ["lego0", "lego1"]
    pairs, y = pair_stream(10, 4)
    learner.fit(pairs, y)
    assert learner.n_features_in_ == 4
    assert not hasattr(learner, "feature_names_in_")


def test_parameters_are_searched_in_a_pipeline():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=80)
    X = rng.normal(size=(80, 3)) + y[:, np.newaxis]
    steps = make_pipeline(OnlineITML(random_state=0), KNeighborsClassifier(3))
    search = GridSearchCV(steps, {"onlineitml__gamma": [0.01, 1.0]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5
