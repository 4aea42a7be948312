"""A recall that was asked for is had, now and after the metric has moved."""

import numpy as np
import pytest
from scipy.stats import binom

from skmahal import MetricMaintenance
from skmahal._core.index import Index
from skmahal._core.kernels import available
from skmahal._core.recall import Reads, held_positions, mean_bounds
from tests.core.data import clusters, decaying

K = 10
needs_numba = pytest.mark.skipif(not available(), reason="needs numba")

# A correct recall fails a test with this probability.
RARE = 1e-6


def split(X, count=600):
    """Points, and queries from the same distribution; float32."""
    X = X.astype(np.float32)
    return X[:-count], X[-count:]


def recall_of(index, Q, K=K):
    """Recall of every query, from exact neighbours."""
    _, exact = index.kneighbors(Q, K)
    _, found = index.kneighbors(Q, K, approximate=True)
    pairs = zip(exact, found, strict=True)
    return np.array([len(np.intersect1d(*pair)) for pair in pairs]) / K


def test_bounds_of_a_mean_cover_it():
    rng = np.random.default_rng(0)
    for share, spread in ((0.95, 0.3), (0.99, 0.1), (0.9, 0.0)):
        missed = 0
        for _ in range(400):
            # Neighbours of a query are found or missed together.
            odds = np.clip(share + spread * (rng.random(200) - 0.5), 0, 1)
            odds = odds - odds.mean() + share if spread == 0 else odds
            mean = np.clip(share + spread * (np.linspace(0, 1, 999) - 0.5), 0, 1).mean()
            recalls = rng.binomial(K, odds) / K
            missed += mean_bounds(recalls)[0] > (mean if spread else share)
        assert missed <= binom.isf(RARE, 400, 0.06)


def test_bounds_of_extreme_means():
    assert mean_bounds(np.ones(100))[1] == 1.0
    assert 0.96 < mean_bounds(np.ones(100))[0] < 0.98
    assert mean_bounds(np.zeros(100))[0] == 0.0
    assert mean_bounds(np.array([1.0]))[0] < 0.1
    lower, upper = mean_bounds(np.full(100, 0.5))
    assert lower < 0.5 < upper


def test_the_fewest_points_are_read_that_have_the_recall():
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(1, 20, size=(400, 200)), axis=1)
    ends[:, -1] = 2000
    ranks = rng.geometric(0.1, size=(400, K)) - 1
    before = np.take_along_axis(np.c_[np.zeros(400, int), ends], ranks, axis=1)
    reads = Reads(before, ends, always=7)
    for recall in (0.5, 0.9, 0.99):
        budget = reads.budget_for(recall)
        assert mean_bounds(reads.recall(budget))[0] >= recall
        assert mean_bounds(reads.recall(budget - 1))[0] < recall
    assert reads.budget_for(1 - 1e-9) == 2007


def test_the_last_cell_is_read_to_its_end():
    reads = Reads(np.zeros((2, 1)), np.array([[3, 5, 9], [1, 8, 9]]), always=2)
    read = [reads.points(budget) for budget in (1, 3, 4, 9, 20)]
    assert read == [4.0, 7.5, 8.5, 11.0, 11.0]


def test_held_points():
    assert len(held_positions(10**5, 10)) == 400
    assert len(held_positions(10**5, 1)) == 1000
    assert len(held_positions(10**5, 1000)) == 128
    assert len(held_positions(100, 10)) == 25
    many, few = held_positions(10**4, 1), held_positions(10**4, 10)
    np.testing.assert_array_equal(many[: len(few)], few)


DATA = {
    "clusters": clusters(12_600, 32, 100, 0.5),
    "decaying": decaying(12_600, 24, 0.8),
    "normal": np.random.default_rng(0).normal(size=(12_600, 8)),
}


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("asked", [0.9, 0.99])
@pytest.mark.parametrize("name", DATA)
def test_recall_is_as_asked_while_the_metric_moves(name, asked):
    (X, Q), rng = split(DATA[name]), np.random.default_rng(0)
    d = X.shape[1]
    index = Index(np.eye(d), X, n_neighbors=K, recall=asked)
    index.prepare(2)
    shares = []
    for step in range(6):
        recalls = recall_of(index, Q)
        # Of 0.95, the confidence of one measurement, six make 0.74.
        assert mean_bounds(recalls, RARE)[1] >= asked - 0.002, step
        # That is exact at first after a change. What is measured then has it, too.
        assert mean_bounds(index.recall_of(Q, K), RARE)[1] >= asked - 0.002, step
        shares.append(index.probing(K).share)
        assert index.probing(K).version == step
        v = rng.normal(size=(d, 1))
        v /= np.linalg.norm(v)
        index.add_low_rank(4 * index.U @ v, v)
    assert shares[0] < 0.5


@pytest.mark.slow
@needs_numba
def test_after_a_change_queries_are_exact_until_measuring_pays():
    X, Q = split(DATA["clusters"])
    index = Index(np.eye(32), X, n_neighbors=K, recall=0.8)
    index.prepare()
    assert recall_of(index, Q).mean() < 1
    v = np.eye(32)[:, :1]
    index.add_low_rank(3 * v, v)
    versions, recalls = [], []
    for _ in range(60):
        recalls.append(recall_of(index, Q[:100]).mean())
        versions.append(index.state.probings[K].version)
    assert versions[0] == 0
    assert versions[-1] == 1
    assert recalls[0] == 1 > recalls[-1]
    # One query after each change never pays for a measurement.
    for _ in range(5):
        index.add_low_rank(3 * v, v)
        assert recall_of(index, Q[:1])[0] == 1
    assert index.state.probings[K].version == 1


@needs_numba
def test_other_numbers_of_neighbours_have_the_recall_too():
    X, Q = split(DATA["clusters"])
    index = Index(None, X, n_neighbors=5, recall=0.95)
    for count in (1, 5, 6, 40):
        recalls = recall_of(index, Q, count)
        assert mean_bounds(recalls, RARE)[1] >= 0.95
    assert sorted(index.state.probings) == [5, 10, 40]
    # Nearly all points: exact.
    assert (recall_of(index, Q[:2], 4000) == 1).all()
    assert sorted(index.state.probings) == [5, 10, 40]


@needs_numba
def test_cells_are_made_anew_once_old_ones_have_wasted_as_much():
    X, Q = split(clusters(20_600, 64, 400, 0.3))
    index = Index(np.eye(64), X, n_neighbors=K, recall=0.9)
    index.prepare(2)
    first, rng = index.state.cells, np.random.default_rng(0)
    for _ in range(6):
        v = np.linalg.qr(rng.normal(size=(64, 8)))[0]
        index.add_low_rank(8 * index.U @ v, v)
    index.prepare()
    stale = index.probing(K)
    assert index.state.cells.starts is first.starts
    assert stale.share > 1.5 * stale.first_share
    for _ in range(2000):
        index.kneighbors(Q, K, approximate=True)
        if index.state.cells.starts is not first.starts:
            break
    fresh = index.probing(K)
    assert fresh.share < stale.share
    assert fresh.first_share == fresh.share
    index.check()


@needs_numba
def test_recent_queries_count_as_well_as_points():
    X, _ = split(clusters(12_600, 32, 100, 0.3))
    index = Index(None, X, n_neighbors=K, recall=0.95)
    index.prepare()
    assert index.probing(K).recent == 0
    # Queries between clusters have neighbours in many cells.
    rng = np.random.default_rng(0)
    Q = (X[rng.integers(len(X), size=800)] + X[rng.integers(len(X), size=800)]) / 2
    before = recall_of(index, Q[:400]).mean()
    assert before < 0.9
    assert mean_bounds(recall_of(index, Q[400:]), RARE)[1] >= 0.95
    assert index.probing(K).recent > 0


@needs_numba
def test_small_drifts_are_measured_once_they_are_cheap():
    X, _ = split(DATA["clusters"])
    index = Index(np.eye(32), X, n_neighbors=K, recall=0.9)
    index.prepare()
    v = np.eye(32)[:, :1]
    index.add_low_rank(0.2 * v, v)
    assert index.probing(K).version == 0
    assert 0.01 < index.state.drift < 0.05
    index.probes.work = index.probes.work._replace(spent=1e15)
    assert index.probing(K).version == 1
    index.add_low_rank(2 * v, v)
    assert index.probing(K).version == 2


@needs_numba
def test_an_exact_search_where_cells_save_nothing():
    X, Q = split(np.random.default_rng(0).normal(size=(4600, 256)), 600)
    index = Index(None, X, n_neighbors=K, recall=0.95)
    assert index.measured(K) is None
    assert (recall_of(index, Q) == 1).all()


def test_few_points_are_searched_exactly():
    X = clusters(600, 16, 10, 0.5)
    maintenance = MetricMaintenance(None, X, recall=0.5, n_neighbors=K)
    _, exact = maintenance.index.kneighbors(X[:20], K)
    np.testing.assert_array_equal(maintenance.kneighbors(X[:20], K)[1], exact)
    found = maintenance.guarantee()
    assert found.recall is None
    assert found.fixed.kneighbors == 0
    assert "kneighbors: exact" in str(found)


@needs_numba
def test_an_audit_sees_a_recall_that_is_too_low():
    X, _ = split(DATA["clusters"])
    maintenance = MetricMaintenance(None, X, recall=0.99, n_neighbors=K)
    audit = maintenance.audit(random_state=0)
    assert audit.passed
    assert audit.recall.target == 0.99
    assert audit.recall.least <= audit.recall.mean <= 1
    index = maintenance.index
    wrong = index.probing(K)._replace(budget=1)
    index.set_state(index.state._replace(probings={K: wrong}))
    audit = maintenance.audit(random_state=0)
    assert not audit.recall.passed
    assert not audit.passed


@needs_numba
def test_drift_between_neighbours_is_seen_where_lengths_hide_it():
    X = decaying(12_600, 32, 0.8) * 4
    X[:, 0] = 80 * (np.arange(len(X)) % 2)
    X, Q = split(X)
    index = Index(np.eye(32), X, n_neighbors=K, recall=0.9)
    index.prepare()
    for at in range(1, 6):
        v = np.eye(32)[:, at : at + 1]
        index.add_low_rank(-0.95 * v, v)
        recalls = recall_of(index, Q[:100])
        assert mean_bounds(recalls, RARE)[1] >= 0.9
    assert index.probing(K).version == 5
    assert mean_bounds(index.recall_of(Q, K), RARE)[1] >= 0.9


@needs_numba
def test_a_query_that_is_refused_is_not_measured_on():
    X, Q = split(DATA["clusters"])
    index = Index(np.eye(32), X, n_neighbors=K, recall=0.8)
    with pytest.raises(ValueError, match="too large"):
        index.kneighbors(np.full((1, 32), 3e38, np.float32), K, approximate=True)
    assert index.recent() is None
    index.kneighbors(np.full((1, 32), 1e17, np.float32), K, approximate=True)
    v = np.eye(32)[:, :1]
    index.add_low_rank(1e15 * v, v)
    assert index.recent() is not None
    index.add_low_rank(1e18 * v, v)
    index.saved()
    assert len(index.kneighbors(Q, K, approximate=True)[0]) == len(Q)


@needs_numba
def test_a_constant_feature_of_large_weight():
    X = clusters(4000, 24, 30, 0.5)
    X[:, 3] = 7
    U = np.eye(24)
    U[3, 3] = 1e40
    index = Index(U, X, n_neighbors=K, recall=0.8)
    assert mean_bounds(recall_of(index, X[:300]), RARE)[1] >= 0.8
