"""The promises about chance, at the promised eps and delta.

Seeds are fixed, and a count of independent failures, each of probability at most p, is
held against the binomial quantile that it passes once in 10⁶ times. Where it is cheap,
a broken index is shown to fail the same test.
"""

import numpy as np
import pytest
from scipy import stats

from skmahal import MetricMaintenance
from skmahal._core import bounds
from tests.oracle import Oracle

RARE = 1e-6
SEEDS = 300


def most_failures(trials, p):
    """Failures of probability p that are exceeded less than once in 10⁶ times."""
    return stats.binom.isf(RARE, trials, p)


def estimates_outside(eps, delta, seed, **options):
    """Whether one query of a new index has an estimate off by more than eps."""
    rng = np.random.default_rng(seed)
    X, U, q = rng.normal(size=(40, 30)), rng.normal(size=(50, 30)), rng.normal(size=30)
    index = MetricMaintenance(U, X, eps=eps, delta=delta, seed=seed, **options)
    index.update_low_rank(rng.normal(size=50), rng.normal(size=30))
    exact = np.linalg.norm((X - q) @ index.U.T, axis=1)
    return bool((np.abs(index.query_all(q) / exact - 1) > eps).any())


@pytest.mark.parametrize("lead", [0, 5])
@pytest.mark.parametrize("sketch", ["gaussian", "rademacher"])
def test_all_distances_of_a_query_are_within_eps_with_probability_1_minus_delta(
    sketch, lead
):
    eps, delta = 0.3, 0.1
    failed = [
        estimates_outside(eps, delta, seed, lead=lead, sketch=sketch)
        for seed in range(SEEDS)
    ]
    assert sum(failed) <= most_failures(SEEDS, delta)


@pytest.mark.parametrize("sketch", ["countsketch", "srht"])
def test_sketches_with_a_variance_bound_keep_the_promise_too(sketch):
    eps, delta, m = 0.6, 0.5, 32
    R = bounds.votes_for_all(40, 784, m, 25, eps, delta, sketch)
    assert R < 25, "the promise must be one that 25 sketches can make"
    failed = [
        estimates_outside(eps, delta, seed, m=m, L=25, sketch=sketch)
        for seed in range(100)
    ]
    assert sum(failed) <= most_failures(100, delta)


def test_a_sketch_of_a_third_the_rows_would_be_noticed():
    eps, delta = 0.3, 0.1
    m = bounds.sketch_rows(40, 10, eps, delta, "gaussian") // 3
    failed = [estimates_outside(eps, delta, seed, m=m, R=9) for seed in range(SEEDS)]
    assert sum(failed) > most_failures(SEEDS, delta)


def test_pair_distances_are_within_eps_with_probability_1_minus_delta():
    eps, delta, failed = 0.3, 0.1, 0
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(30, 60))
        index = MetricMaintenance(None, X, eps=eps, delta=delta, seed=seed)
        exact = np.linalg.norm(X[3] - X[17])
        failed += abs(index.query_pair(3, 17) / exact - 1) > eps
    assert failed <= most_failures(SEEDS, delta)


def neighbours_missed(K, delta, seed, monkeypatch, spoil=1.0):
    """Whether a certified search of a new index misses a neighbour of one query.

    The certificate is patched to show that wrong bounds would be noticed, and the exact
    search is, so that it cannot hide them; no public name does either.
    """
    rng = np.random.default_rng(seed)
    centres = 6 * rng.normal(size=(20, 100))
    X = np.repeat(centres, 20, axis=0) + rng.normal(size=(400, 100))
    index = MetricMaintenance(None, X, m=12, L=3, delta=delta, seed=seed)
    certificate = bounds.certificate

    def spoilt(*sizes):
        R, eps = certificate(*sizes)
        return R, (1 + eps) / spoil - 1

    def used(*_):
        pytest.fail("the exact search was used in place of the bounds")

    q = X[0] + rng.normal(size=100)
    exact = np.linalg.norm(X - q, axis=1)
    with monkeypatch.context() as patch:
        patch.setattr(bounds, "certificate", spoilt)
        patch.setattr(index.index, "kneighbors", used)
        _, [found] = index.kneighbors(q, K, "certified")
    return set(found) != set(np.argsort(exact)[:K])


@pytest.mark.slow
@pytest.mark.parametrize(("K", "delta"), [(1, 0.3), (5, 0.3), (5, 0.05)])
def test_certified_neighbours_are_missed_no_more_often_than_promised(
    K, delta, monkeypatch
):
    missed = [neighbours_missed(K, delta, seed, monkeypatch) for seed in range(SEEDS)]
    assert sum(missed) <= most_failures(SEEDS, delta)


@pytest.mark.slow
def test_bounds_that_are_too_high_would_be_noticed(monkeypatch):
    missed = [neighbours_missed(5, 0.05, s, monkeypatch, spoil=3) for s in range(SEEDS)]
    assert sum(missed) > most_failures(SEEDS, 0.05)


@pytest.mark.parametrize("R", [1, 3])
def test_certified_neighbours_under_drifting_metrics_keep_the_promise(R):
    """Leading directions that are out of date stay valid."""
    delta, missed = 0.2, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 60)) * 0.8 ** np.arange(60)
        index = MetricMaintenance(
            None, X, m=8, L=5, R=R, lead=4, delta=delta, seed=seed
        )
        index.query_all(X[0])
        index.update_low_rank(3 * rng.normal(size=(60, 5)), rng.normal(size=(60, 5)))
        exact = np.linalg.norm((X - X[3] - 0.1) @ index.U.T, axis=1)
        _, [found] = index.kneighbors(X[3] + 0.1, 5, "certified")
        missed += set(found) != set(np.argsort(exact)[:5])
    assert missed <= most_failures(100, delta)


def chi_squared(draws, weights):
    """Pearson's statistic of draws against probabilities ∝ weights, and its limit."""
    expected = len(draws) * weights / weights.sum()
    assert expected.min() > 5, "the χ² approximation needs five expected in every cell"
    observed = np.bincount(draws, minlength=len(weights))
    statistic = ((observed - expected) ** 2 / expected).sum()
    return statistic, stats.chi2.isf(RARE, len(weights) - 1)


@pytest.fixture
def updated_index():
    """An index on heavy-tailed data after a mix of updates, and its oracle."""
    rng = np.random.default_rng(5)
    X, U = rng.standard_t(2, size=(300, 8)), rng.normal(size=(12, 8))
    index, oracle = MetricMaintenance(U, X, m=4, L=3, seed=0), Oracle(U, X)
    index.sample_exact(X[0])
    steps = [
        ("update_low_rank", rng.normal(size=(12, 2)), rng.normal(size=(8, 2))),
        ("remove", rng.permutation(300)[:150]),
        ("append", rng.standard_t(2, size=(40, 8))),
        ("update_u", rng.normal(size=(2, 8)), [3, 7]),
        ("update_x", rng.standard_t(2, size=(5, 8)), [0, 9, 100, 150, 189]),
    ]
    for name, *arguments in steps:
        getattr(index, name)(*arguments)
        getattr(oracle, name)(*arguments)
    return index, oracle


@pytest.mark.parametrize("power", [1, 2])
def test_draws_are_proportional_to_distance_after_updates(updated_index, power):
    index, oracle = updated_index
    q = np.random.default_rng(1).normal(size=(2, 8)) * 20
    for row, draws in enumerate(index.sample_exact(q, 60_000, power, 0)):
        weights = oracle.query_all(q)[row] ** power
        statistic, limit = chi_squared(draws, weights)
        assert statistic <= limit
        wrong, limit = chi_squared(draws, oracle.query_all(q)[row] ** (3 - power))
        assert wrong > limit, "the other power must be told apart"


def test_the_promise_is_kept_as_the_index_grows():
    eps, delta, failed = 0.2, 0.05, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X, q = rng.normal(size=(500, 60)), rng.normal(size=60)
        index = MetricMaintenance(None, X[:5], eps=eps, delta=delta, seed=seed)
        index.query_all(q)
        index.append(X[5:])
        exact = np.linalg.norm(X - q, axis=1)
        failed += (np.abs(index.query_all(q) / exact - 1) > eps).any()
    assert failed <= most_failures(100, delta)


def test_pairs_are_served_by_sampled_sketches_that_change_with_the_version():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 30))
    index = MetricMaintenance(None, X, m=4, L=40, R=3, seed=0)
    i, j = np.arange(25), np.arange(25, 50)
    first = index.query_pair(i, j)
    assert len(np.unique(first.round(12))) == 25
    np.testing.assert_array_equal(first, index.query_pair(j, i))
    index.update_x(X[0], 0)
    assert (index.query_pair(i, j) != first).mean() > 0.5


def test_the_key_is_secret():
    """Two seeds give different sketches; without a seed so do two indexes."""
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(50, 6)), rng.normal(size=(64, 6))
    seeds = (0, 1, None, None)
    made = [MetricMaintenance(None, X, m=2, L=8, R=1, seed=seed) for seed in seeds]
    found = [index.query_all(Q) for index in made]
    for a in range(4):
        for b in range(a):
            assert (found[a] != found[b]).mean() > 0.99
    again = MetricMaintenance(None, X, m=2, L=8, R=1, seed=0)
    np.testing.assert_array_equal(again.query_all(Q), found[0])
