"""Steps are published so that whoever holds an earlier U can follow."""

import copy
import pickle

import numpy as np
import pytest

from skmahal._core.metric import LowRank
from skmahal.online import POLA
from skmahal.online._log import MovingFactor, log_room

from .streams import LEARNERS, pair_stream

K, D, ROOM = 4, 6, 10


def change(seed):
    rng = np.random.default_rng(seed)
    return LowRank(rng.normal(size=(K, 1)), rng.normal(size=(D, 1)))


def start():
    return MovingFactor(np.random.default_rng(99).normal(size=(K, D)), ROOM)


def path(n):
    """A factor at every version from 0 to n."""
    factors = [start()]
    for seed in range(n):
        factors.append(factors[-1].moved(change(seed)))
    return factors


def test_a_factor_is_its_start_and_all_changes():
    U = start().components()
    for version, factor in enumerate(path(35)):
        np.testing.assert_allclose(factor.components(), U, rtol=1e-12, atol=1e-12)
        assert factor.version == version
        W, V = change(version)
        U = U + W @ V.T


def test_products_are_those_of_the_components():
    z, w, X = np.arange(D) / 7, np.arange(K) / 5, np.ones((3, D)) * np.arange(D)
    for factor in path(25):
        U = factor.components()
        np.testing.assert_allclose(factor @ z, U @ z, rtol=1e-12)
        np.testing.assert_allclose(w @ factor, w @ U, rtol=1e-12)
        np.testing.assert_allclose(factor.transform(X), X @ U.T, rtol=1e-12)


def test_the_log_leads_from_any_version_it_knows_to_the_last():
    factors = path(37)
    last = factors[-1]
    for factor in factors:
        since = last.since(factor.token)
        if since is None:
            assert last.version - factor.version > ROOM // 2
            continue
        W, V = since
        assert W.shape == (K, last.version - factor.version)
        assert V.shape == (D, last.version - factor.version)
        moved = factor.components() + W @ V.T
        np.testing.assert_allclose(moved, last.components(), rtol=1e-11, atol=1e-11)


def test_the_log_never_holds_more_than_its_room():
    for last in path(60):
        known = [last.since((last.stream, v)) for v in range(last.version + 1)]
        lengths = [since.rank for since in known if since is not None]
        assert max(lengths) <= ROOM
        assert max(lengths) >= min(last.version, ROOM // 2)


def test_a_factor_stays_as_it_was_when_others_grow_from_it():
    base = path(4)[-1]
    before = base.components()
    one = base.moved(change(50))
    one_before = one.components()
    other = base.moved(change(60))
    for seed in range(70, 90):
        other = other.moved(change(seed))
    np.testing.assert_array_equal(base.components(), before)
    np.testing.assert_array_equal(one.components(), one_before)


@pytest.mark.parametrize("version", [-1, 4, 10**9])
def test_versions_that_never_were_are_not_known(version):
    last = path(3)[-1]
    assert last.since((last.stream, version)) is None


def test_a_whole_new_matrix_cuts_the_log():
    factor = path(3)[-1]
    replaced = factor.replaced(np.ones((K + 2, D)))
    assert replaced.since(factor.token) is None
    assert replaced.version == factor.version + 1
    assert replaced.since(replaced.token).W.shape == (K + 2, 0)


def test_a_pickle_holds_the_steps_and_no_empty_room():
    more = LowRank(np.ones((3, 1)), np.ones((3, 1)))
    few = MovingFactor(np.eye(3), 100_000).moved(more)
    data = pickle.dumps(few)
    assert len(data) < 2_000
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.components(), few.components())
    np.testing.assert_array_equal(
        again.moved(more).components(), few.moved(more).components()
    )


def test_the_room_is_small_beside_the_metric():
    assert [log_room(d) for d in (1, 64, 200, 1024, 4096)] == [16, 16, 50, 64, 128]


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
                assert name == "POLA"  # which makes room for rows now and then
                continue
            U = before + since.W @ since.V.T
            np.testing.assert_allclose(learner.components_, U, rtol=1e-9, atol=1e-12)
    assert learner.updates_since(states[0][0]) is None
    assert learner.version_ > 60


def test_the_version_counts_changes_of_the_metric():
    learner = LEARNERS["LEGO"]
    far_apart = np.array([[[0.0, 0.0], [9.0, 0.0]]])
    learner = copy.deepcopy(learner).fit(far_apart, [-1])
    assert (learner.version_, learner.n_steps_) == (0, 1)
    assert learner.partial_fit(far_apart, [1]).version_ == 1


@pytest.mark.parametrize("again", ["fit", "pickle", "deepcopy", "copy"])
def test_another_stream_is_never_taken_for_this_one(again):
    pairs, y = pair_stream(20, 3)
    learner = copy.deepcopy(LEARNERS["LEGO"]).fit(pairs, y)
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
        np.testing.assert_array_equal(other.components_, learner.components_)
        other.partial_fit(pairs, -y)
        assert learner.updates_since(token).rank == 0


def test_the_log_is_cut_where_the_rows_of_pola_change():
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
