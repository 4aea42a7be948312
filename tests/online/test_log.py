"""Steps are published, so that an index with an earlier U can follow.

The log itself is tested on its private class, because a learner with few features has
no small log.
"""

import copy
import pickle

import numpy as np
import pytest

from skmahal.online import POLA, _factor
from skmahal.online._factor import MovingFactor

from .streams import LEARNERS, pair_stream

K, D, CAPACITY = 4, 6, 10


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request, monkeypatch):
    """Steps are added to small matrices at once, and to large ones together."""
    if request.param == "large":
        monkeypatch.setattr(_factor, "_SMALL", 0)


def step(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=K), rng.normal(size=D)


def after(factor, *seeds):
    factor = copy.copy(factor)
    for seed in seeds:
        factor.append(*step(seed))
    return factor


def path(n):
    """A factor at every version from 0 to n."""
    U = np.random.default_rng(99).normal(size=(K, D))
    factors = [MovingFactor(U, CAPACITY)]
    for seed in range(n):
        factors.append(after(factors[-1], seed))
    return factors


def test_a_factor_is_its_start_and_all_steps():
    U = path(0)[0].components()
    for version, factor in enumerate(path(35)):
        np.testing.assert_allclose(factor.components(), U, rtol=1e-12, atol=1e-12)
        assert factor.version == version
        U = U + np.outer(*step(version))


def test_products_are_those_of_the_components():
    z, w, X = np.arange(D) / 7, np.arange(K) / 5, np.ones((3, D)) * np.arange(D)
    for factor in path(25):
        U = factor.components()
        np.testing.assert_allclose(factor @ z, U @ z, rtol=1e-12)
        np.testing.assert_allclose(factor.pull_back(w), w @ U, rtol=1e-12)
        np.testing.assert_allclose(factor @ X.T, U @ X.T, rtol=1e-12)


def test_the_log_leads_from_any_version_it_knows_to_the_last():
    factors = path(37)
    last = factors[-1]
    for factor in factors:
        since = last.since((factor.stream, factor.version))
        if since is None:
            assert last.version - factor.version > CAPACITY // 2
            continue
        W, V = since
        assert W.shape == (K, last.version - factor.version)
        assert V.shape == (D, last.version - factor.version)
        moved = factor.components() + W @ V.T
        np.testing.assert_allclose(moved, last.components(), rtol=1e-11, atol=1e-11)


def test_the_log_never_exceeds_its_capacity():
    for last in path(60):
        known = [last.since((last.stream, v)) for v in range(last.version + 1)]
        lengths = [since.rank for since in known if since is not None]
        assert max(lengths) <= CAPACITY
        assert max(lengths) >= min(last.version, CAPACITY // 2)


def test_copies_do_not_affect_each_other():
    base = path(4)[-1]
    before = base.components()
    one = after(base, 50)
    one_before = one.components()
    other = after(base, 60, *range(70, 90))
    np.testing.assert_array_equal(base.components(), before)
    np.testing.assert_array_equal(one.components(), one_before)
    np.testing.assert_array_equal(
        after(base, 60, *range(70, 90)).components(), other.components()
    )


@pytest.mark.parametrize("version", [-1, 4, 10**9])
def test_versions_that_never_were_are_not_known(version):
    last = path(3)[-1]
    assert last.since((last.stream, version)) is None


def test_only_steps_are_saved_and_no_empty_capacity():
    few = MovingFactor(np.eye(3), 100_000)
    few.append(np.ones(3), np.ones(3))
    data = pickle.dumps(few.saved())
    assert len(data) < 2_000
    again = MovingFactor.restored(pickle.loads(data))
    for factor in (few, again):
        factor.append(np.ones(3), np.arange(3.0))
    np.testing.assert_array_equal(again.components(), few.components())


def test_the_log_is_small_beside_the_metric():
    for d, capacity in {1: 16, 64: 16, 200: 50, 1024: 64, 4096: 128}.items():
        assert MovingFactor(np.zeros((1, d))).saved()["capacity"] == capacity


@pytest.mark.parametrize("name", LEARNERS)
def test_updates_of_a_learner_lead_from_any_earlier_state(name):
    learner = copy.deepcopy(LEARNERS[name])
    pairs, y = pair_stream(150, 5)
    learner.partial_fit(pairs[:3], y[:3])
    states = []
    for t in range(3, 150):
        states.append((learner.state_token(), learner.components_))
        learner.partial_fit(pairs[t : t + 1], y[t : t + 1])
        for token, before in states[-6:]:
            since = learner.updates_since(token)
            if since is None:
                assert name == "POLA"  # Now and then it makes a new U with zero rows.
                continue
            U = before + since.W @ since.V.T
            np.testing.assert_allclose(learner.components_, U, rtol=1e-9, atol=1e-12)
    assert learner.updates_since(states[0][0]) is None
    assert learner.version_ > 60


def test_the_version_counts_changes_of_the_metric():
    far_apart = np.array([[[0.0, 0.0], [9.0, 0.0]]])
    learner = copy.deepcopy(LEARNERS["LEGO"]).fit(far_apart, [-1])
    assert (learner.version_, learner.n_steps_) == (0, 1)
    assert learner.partial_fit(far_apart, [1]).version_ == 1


@pytest.mark.parametrize("again", ["fit", "pickle", "deepcopy", "copy"])
@pytest.mark.parametrize("name", LEARNERS)
def test_another_stream_is_never_taken_for_this_one(name, again):
    pairs, y = pair_stream(20, 3)
    learner = copy.deepcopy(LEARNERS[name]).fit(pairs, y)
    token = learner.state_token()
    other = {
        "fit": lambda: learner.fit(pairs, y),
        "pickle": lambda: pickle.loads(pickle.dumps(learner)),
        "deepcopy": lambda: copy.deepcopy(learner),
        "copy": lambda: copy.copy(learner),
    }[again]()
    assert other.version_ == token[1]
    assert other.updates_since(token) is None
    assert other.updates_since(None) is None
    if again != "fit":
        before = learner.components_
        np.testing.assert_array_equal(other.components_, before)
        other.partial_fit(pairs, -y)
        assert learner.updates_since(token).rank == 0
        np.testing.assert_array_equal(learner.components_, before)


def test_the_log_is_emptied_when_the_rows_of_pola_change():
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(200, 2, 4)) / 3
    learner = POLA(init="zeros").fit(pairs[:1], [-1])
    rows = []
    for t in range(1, 200):
        token, before = learner.state_token(), learner.components_
        learner.partial_fit(pairs[t : t + 1], [-1])
        rows.append(len(learner.components_))
        since = learner.updates_since(token)
        if since is not None:
            moved = before + since.W @ since.V.T
            np.testing.assert_allclose(learner.components_, moved, atol=1e-13)
        else:
            A = learner.get_mahalanobis_matrix()
            assert np.linalg.norm(A - before.T @ before) < np.linalg.norm(A)
    assert set(rows) == {8, 12}
