"""Thresholds are calibrated as metric-learn calibrates them."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import fbeta_score

import skmahal
from skmahal.online import LEGO

from .streams import LEARNERS, TARGETS, pair_stream

STRATEGIES = {
    "accuracy": {},
    "f_beta": {"beta": 0.5},
    "max_tpr": {"min_rate": 0.8},
    "max_tnr": {"min_rate": 0.7},
}


def quality(strategy, y, near):
    """What a strategy is after, where pairs are called similar if they are `near`."""
    tpr, tnr = near[y > 0].mean(), (~near[y < 0]).mean()
    if strategy == "accuracy":
        return (near == (y > 0)).mean()
    if strategy == "f_beta":
        return fbeta_score(y > 0, near, beta=0.5, zero_division=0)
    if strategy == "max_tpr":
        return tpr if tnr >= 0.8 else -1
    return tnr if tpr >= 0.7 else -1


EACH = pytest.mark.parametrize("strategy", STRATEGIES)


def scored(n, seed, ties=False):
    rng = np.random.default_rng(seed)
    y = np.r_[1, -1, rng.choice([1, -1], size=n - 2)]
    distances = np.abs(rng.normal(size=n)) + (y < 0) * 0.5
    return np.ceil(4 * distances) if ties else distances, y


def threshold(distances, y, strategy, **params):
    """The calibrated threshold, of a metric that is the absolute difference."""
    pairs = np.stack([np.zeros_like(distances), distances], axis=1)[:, :, np.newaxis]
    learner = LEGO(1e-300, **TARGETS).fit(np.ones((1, 2, 1)), [1])
    return learner.calibrate_threshold(pairs, y, strategy, **params).threshold_


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("ties", [False, True])
def test_no_other_threshold_is_better(strategy, ties):
    for seed in range(10):
        distances, y = scored(30, seed, ties)
        best = max(quality(strategy, y, distances <= t) for t in (-1.0, *distances))
        found = threshold(distances, y, strategy, **STRATEGIES[strategy])
        assert quality(strategy, y, distances <= found) == best


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
@pytest.mark.filterwarnings("ignore:Function stable_cumsum:FutureWarning")
@EACH
@pytest.mark.parametrize("seed", range(3))
def test_thresholds_are_those_of_metric_learn(strategy, seed):
    skmahal.enable_metric_learn()
    metric_learn = pytest.importorskip("metric_learn")
    pairs, y = pair_stream(60, 3, seed=seed)
    y = np.where(np.random.default_rng(seed).random(60) < 0.2, -y, y)
    theirs = metric_learn.ITML(max_iter=1).fit(pairs, y)
    ours = clone(LEARNERS["LEGO"]).set_params(eta=1e-300, init=theirs.components_)
    ours.fit(pairs, y).calibrate_threshold(pairs, y, strategy, **STRATEGIES[strategy])
    theirs.calibrate_threshold(pairs, y, strategy, **STRATEGIES[strategy])
    assert ours.threshold_ == pytest.approx(theirs.threshold_, rel=1e-12)


@pytest.mark.parametrize("strategy", ["max_tpr", "max_tnr"])
@pytest.mark.parametrize("min_rate", [0.0, 1.0])
def test_rates_at_the_ends_are_met(strategy, min_rate):
    distances, y = scored(40, seed=0)
    found = threshold(distances, y, strategy, min_rate=min_rate)
    near = distances <= found
    kept = ~near[y < 0] if strategy == "max_tpr" else near[y > 0]
    assert kept.mean() >= min_rate
    assert np.isfinite(found)


def test_nothing_is_accepted_where_that_is_best():
    assert threshold(np.array([1.0, 2]), np.array([-1, -1]), "accuracy") < 1


def test_calibration_lasts_until_the_next_fit():
    pairs, y = pair_stream(60, 3)
    learner = clone(LEARNERS["LEGO"]).fit(pairs, y)
    learner.calibrate_threshold(pairs, y, "max_tpr", min_rate=1.0)
    found = learner.threshold_
    assert learner.partial_fit(pairs, y).threshold_ == found
    assert learner.fit(pairs, y).threshold_ == sum(TARGETS.values()) / 2


@EACH
def test_fit_calibrates_on_its_pairs(strategy):
    pairs, y = pair_stream(60, 3)
    params = {"strategy": strategy, **STRATEGIES[strategy]}
    learner = clone(LEARNERS["LEGO"]).fit(pairs, y, calibration_params=params)
    expected = clone(learner).fit(pairs, y).calibrate_threshold(pairs, y, **params)
    assert learner.threshold_ == expected.threshold_
