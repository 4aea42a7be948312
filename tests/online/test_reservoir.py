"""Labelled points become pairs, which the seed determines.

Pairs are seen on the private class; a learner makes steps of them at once.
"""

import numpy as np
import pytest
from sklearn.base import clone

from skmahal.online._reservoir import Reservoir

from .streams import LEARNERS


def labelled(n, d=3, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(classes, size=n)


def differences(reservoir, X, y):
    """The difference and sign of each pair, and the reservoir after them."""
    points, pairs, later = reservoir.pair_up(X, y)
    return [(tuple(points[i] - points[j]), sign) for i, j, sign in pairs], later


def run(X, y, size=10, n_pairs=2, seed=0, cuts=()):
    """All pairs of a stream, and the reservoir after it."""
    reservoir = Reservoir(size, n_pairs, np.random.default_rng(seed))
    found = []
    for part in np.split(np.arange(len(X)), cuts):
        pairs, reservoir = differences(reservoir, X[part], y[part])
        found.extend(pairs)
    return found, reservoir


def test_signs_say_whether_labels_are_equal():
    X, y = labelled(60)
    where = {tuple(a - b): (s, t) for s, a in enumerate(X) for t, b in enumerate(X)}
    pairs, _ = run(X, y)
    for z, sign in pairs:
        new, old = where[z]
        assert old < new
        assert sign == (1 if y[new] == y[old] else -1)


@pytest.mark.parametrize("n_pairs", [1, 2, 5])
def test_every_point_makes_n_pairs_pairs(n_pairs):
    X, y = labelled(200)
    pairs, _ = run(X, y, size=50, n_pairs=n_pairs)
    signs = [sign for _, sign in pairs]
    # Only the first points of a class lack a partner.
    assert 200 * n_pairs - 10 * n_pairs <= len(pairs) < 200 * n_pairs
    assert abs(signs.count(1) - 200 * ((n_pairs + 1) // 2)) < 10 * n_pairs


def test_a_stream_may_be_cut_anywhere():
    X, y = labelled(80)
    assert run(X, y)[0] == run(X, y, cuts=(1, 2, 17, 60))[0]


def test_the_seed_determines_the_pairs():
    X, y = labelled(80)
    assert run(X, y, seed=1)[0] == run(X, y, seed=1)[0]
    assert run(X, y, seed=1)[0] != run(X, y, seed=2)[0]


def test_old_points_are_forgotten():
    X, y = labelled(400)
    _, reservoir = run(X, y, size=10)
    _, ages = np.nonzero(np.all(np.array(reservoir._points)[:, None] == X, axis=2))
    assert len(reservoir._points) == 10
    # A point is still held after 200 others with probability 0.9 ** 200.
    assert ages.min() > 200


def test_pairing_changes_no_reservoir_and_no_generator():
    X, y = labelled(30)
    _, reservoir = run(X, y)
    first, _ = differences(reservoir, X, y)
    assert first == differences(reservoir, X, y)[0]


def test_points_are_held_as_they_were():
    X, y = labelled(5)
    *_, reservoir = Reservoir(10, 2, np.random.default_rng(0)).pair_up(X, y)
    X[:] = np.nan
    pairs, _ = differences(reservoir, np.zeros((1, 3)), np.array([0]))
    assert len(pairs) == 2
    assert all(np.isfinite(z).all() for z, _ in pairs)


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_from_labels_is_reproducible(name):
    X, y = labelled(120)
    learner = clone(LEARNERS[name]).set_params(random_state=3)
    U = learner.fit(X, y).components_
    np.testing.assert_array_equal(learner.fit(X, y).components_, U)
    cut = clone(learner).partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    np.testing.assert_array_equal(cut.components_, U)
    other = clone(learner).set_params(random_state=4).fit(X, y)
    assert not np.array_equal(other.components_, U)


@pytest.mark.parametrize("name", LEARNERS)
def test_labels_may_be_names(name):
    X, y = labelled(60)
    learner = clone(LEARNERS[name]).set_params(random_state=0)
    U = learner.fit(X, y).components_
    names = np.array(["a", "bb", "ccc"])[y]
    learner.partial_fit(X[:1], names[:1])
    np.testing.assert_array_equal(learner.fit(X, names).components_, U)


def test_pairs_and_labels_may_take_turns():
    X, y = labelled(60)
    pairs, signs = X.reshape(-1, 2, 3), np.where(y[::2] == y[1::2], 1, -1)
    learner = clone(LEARNERS["LEGO"]).fit(X, y)
    steps = learner.n_steps_
    assert learner.partial_fit(pairs, signs).n_steps_ == steps + 30


def test_learners_from_labels_classify_no_pairs():
    X, y = labelled(40)
    learner = clone(LEARNERS["LEGO"]).fit(X, y)
    for method in ("predict", "decision_function", "score"):
        assert not hasattr(learner, method)
    pairs = X.reshape(-1, 2, 3)
    assert learner.pair_distance(pairs).shape == (20,)
    learner.fit(pairs, np.ones(20))
    assert hasattr(learner, "predict")
