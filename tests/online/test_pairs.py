"""Pairs as users of metric-learn and scikit-learn bring and evaluate them."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_score,
)

from skmahal.online import LEGO, POLA, OnlineITML

from .streams import LEARNERS, pair_stream

# Fewer points than pairs, so that indices repeat.
POINTS = pair_stream(20, 3)[0].reshape(-1, 3)
INDICES = np.random.default_rng(0).integers(40, size=(90, 2))
PAIRS = POINTS[INDICES]
Y = np.where(np.abs(PAIRS[:, 0, :2] - PAIRS[:, 1, :2]).sum(axis=1) < 0.9, 1, -1)
NAMES = np.char.add("point", INDICES.astype(str))
LABELS = np.arange(90) % 3
EVERY = pytest.mark.parametrize("name", LEARNERS)


def by_name(names):
    return POINTS[[int(name.removeprefix("point")) for name in names]]


FORMS = {
    "array": (POINTS, INDICES),
    "list": (POINTS.tolist(), INDICES.tolist()),
    "frame": (pd.DataFrame(POINTS, columns=list("abc")), pd.DataFrame(INDICES)),
    "function": (by_name, NAMES),
}


@EVERY
@pytest.mark.parametrize(("preprocessor", "pairs"), FORMS.values(), ids=FORMS)
def test_indices_give_what_their_points_give(name, preprocessor, pairs):
    expected = clone(LEARNERS[name]).set_params(random_state=0).fit(PAIRS, Y)
    learner = clone(expected).set_params(preprocessor=preprocessor).fit(pairs, Y)
    assert learner.preprocessor is preprocessor
    first = np.asarray(pairs)[:, 0]
    for one, some, points in [(expected, PAIRS, PAIRS[:, 0]), (learner, pairs, first)]:
        one.partial_fit(points, LABELS).partial_fit(some, -Y)
        one.calibrate_threshold(some, Y, "f_beta")
    np.testing.assert_array_equal(learner.components_, expected.components_)
    assert learner.threshold_ == expected.threshold_
    again = pickle.loads(pickle.dumps(learner))
    for method in ("pair_distance", "pair_score", "decision_function", "predict"):
        result = getattr(expected, method)(PAIRS)
        for one, some in [(learner, pairs), (learner, PAIRS), (again, pairs)]:
            np.testing.assert_array_equal(getattr(one, method)(some), result)
    assert learner.score(pairs, Y) == expected.score(PAIRS, Y)
    Z = expected.transform(PAIRS[:, 0])
    np.testing.assert_array_equal(learner.transform(first), Z)
    np.testing.assert_array_equal(learner.transform(PAIRS[:, 0]), Z)


@EVERY
def test_labelled_points_are_found_by_index(name):
    expected = clone(LEARNERS[name]).set_params(random_state=0)
    expected.fit(PAIRS[:, 0], LABELS)
    learner = clone(expected).set_params(preprocessor=POINTS)
    learner.fit(INDICES[:, 0], LABELS)
    np.testing.assert_array_equal(learner.components_, expected.components_)
    assert not hasattr(learner, "predict")


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("kind", [CalibratedClassifierCV, TunedThresholdClassifierCV])
def test_pairs_are_calibrated_by_scikit_learn(name, kind):
    learner = clone(LEARNERS[name])
    by_points = kind(learner).fit(PAIRS, Y)
    by_index = kind(clone(learner).set_params(preprocessor=POINTS)).fit(INDICES, Y)
    np.testing.assert_array_equal(by_points.classes_, [-1, 1])
    predicted = by_points.predict(PAIRS)
    np.testing.assert_array_equal(by_index.predict(INDICES), predicted)
    assert (predicted == Y).mean() > 0.6


@EVERY
def test_probabilities_fall_with_the_distance(name):
    learner = clone(LEARNERS[name]).fit(PAIRS, Y)
    calibrated = CalibratedClassifierCV(FrozenEstimator(learner)).fit(PAIRS, Y)
    similar = calibrated.predict_proba(PAIRS)[:, 1]
    order = np.argsort(learner.pair_distance(PAIRS))
    assert (np.diff(similar[order]) <= 0).all()


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("scoring", [None, "roc_auc", "accuracy", "average_precision"])
def test_pairs_are_cross_validated(name, scoring):
    learner, cv = clone(LEARNERS[name]), StratifiedKFold(3)
    by_index = clone(learner).set_params(preprocessor=POINTS)
    scores = cross_val_score(learner, PAIRS, Y, scoring=scoring, cv=cv)
    again = cross_val_score(by_index, INDICES, Y, scoring=scoring, cv=cv)
    np.testing.assert_array_equal(again, scores)
    assert scores.mean() > 0.5
    search = GridSearchCV(by_index, {"init": [np.eye(3)]}, scoring=scoring, cv=cv)
    assert search.fit(INDICES, Y).best_score_ == scores.mean()


@EVERY
def test_learners_classify_pairs_and_no_points(name):
    learner = clone(LEARNERS[name])
    assert not hasattr(learner, "classes_")
    assert is_classifier(learner.fit(PAIRS, Y))
    np.testing.assert_array_equal(learner.classes_, [-1, 1])
    assert not is_classifier(learner.fit(PAIRS[:, 0], LABELS))
    assert not hasattr(learner, "classes_")


@pytest.mark.parametrize("kind", [LEGO, POLA, OnlineITML])
def test_pairs_of_indices_without_a_preprocessor_are_warned_of(kind):
    pairs, y = np.array([[0, 1], [2, 3], [1, 3]]), [1, -1, 1]
    with pytest.warns(UserWarning, match="Pairs of indices need a preprocessor"):
        kind().fit(pairs, y)
    kind().fit(pairs.astype(float), y)
    kind().fit(pairs, [0, 1, 2])
