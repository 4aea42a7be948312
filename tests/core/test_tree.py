"""Sums over ranges of points, and samples in proportion to distance, by the index."""

import numpy as np
import pytest
from scipy.stats import chi2

from skmahal._core import tree as trees
from skmahal._core.index import Index
from tests.oracle import Oracle

RNG = np.random.default_rng(0)


def heavy_tailed(n, d):
    return RNG.normal(size=(n, d)) * RNG.lognormal(sigma=1.0, size=(n, 1))


def assert_law(draws, weights):
    """Draws are independent with these weights: a χ² test that errs once in 10⁶."""
    expected = len(draws) * weights / weights.sum()
    order = np.argsort(expected)
    cells = np.minimum(np.cumsum(expected[order]) // 20, expected.sum() // 20 - 1)
    cell = np.empty(len(weights), dtype=int)
    cell[order] = np.unique(cells, return_inverse=True)[1]
    counted = np.bincount(cell, np.bincount(draws, minlength=len(weights)))
    mean = np.bincount(cell, expected)
    statistic = np.sum((counted - mean) ** 2 / mean)
    assert statistic < chi2.isf(1e-6, len(mean) - 1)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("k", [None, 2, 8])
def test_draws_follow_the_law_through_changes(k, power):
    X = heavy_tailed(700, 8)
    index = Index(None if k is None else RNG.normal(size=(k, 8)), X)
    q = RNG.normal(size=(1, 8))
    for step in range(3):
        draws = index.sample(q, 20_000, power, np.random.default_rng(step))[0]
        assert_law(draws, Oracle(index.U, index.X).query_all(q)[0] ** power)
        index.add_low_rank(RNG.normal(size=(index.k, 1)), RNG.normal(size=(8, 1)))
        index.assign(np.array([3, 600]), heavy_tailed(2, 8))
        index.append(heavy_tailed(100, 8))


def test_draws_are_uniform_where_all_distances_are_zero():
    index = Index(None, np.full((300, 4), 2.0))
    draws = index.sample(np.full((1, 4), 2.0), 30_000, 1, np.random.default_rng(0))[0]
    assert_law(draws, np.ones(300))


def test_a_point_at_distance_zero_is_never_drawn():
    X = RNG.normal(size=(300, 4))
    draws = Index(None, X).sample(X[:1], 5000, 1, np.random.default_rng(0))
    assert 0 not in draws


def test_draws_near_an_origin_that_is_far_follow_the_law():
    X = np.vstack([RNG.normal(size=(400, 3)), RNG.normal(size=(2, 3)) + 1e13])
    index = Index(None, X)
    index.remove(np.array([400, 401]))
    draws = index.sample(X[:1], 20_000, 2, np.random.default_rng(0))[0]
    assert_law(draws, Oracle(None, X[:400]).query_all(X[:1])[0] ** 2)


@pytest.mark.slow
def test_the_cost_of_a_draw_grows_as_the_logarithm_of_the_points(monkeypatch):
    """Rows that are read for a draw: one bucket, or a few where walks start over."""
    read = []
    land = trees.DistanceTree._land

    def counted(self, queries, at, leaves, *rest):
        read.append(np.unique(leaves[leaves > 0]).size)
        return land(self, queries, at, leaves, *rest)

    monkeypatch.setattr(trees.DistanceTree, "_land", counted)
    for n in (2000, 64_000):
        read.clear()
        index = Index(None, RNG.normal(size=(n, 4)))
        index.sample(RNG.normal(size=(200, 4)), 1, 1, np.random.default_rng(0))
        assert sum(read) <= 300
        assert len(read) <= 500


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_over_ranges_are_exact(dtype):
    X = RNG.normal(size=(1000, 5)).astype(dtype)
    index, Q = Index(RNG.normal(size=(5, 5)), X), X[:4] + dtype(0.5)
    for start, stop in [(0, 1000), (0, 128), (5, 6), (100, 900), (130, 140), (7, 7)]:
        exact = Oracle(index.U, X).sub_sum(Q, start, stop)
        np.testing.assert_allclose(index.sums(Q, start, stop, 2), exact, rtol=1e-9)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e9, 1e12])
def test_sums_over_near_points_do_not_cancel(offset):
    X = RNG.normal(size=(512, 4))
    X[256:] += offset
    index = Index(np.diag([1.0, 2.0, 1e8, 1.0]), X)
    for near in (slice(0, 256), slice(256, 512)):
        exact = Oracle(index.U, X).sub_sum(X[near][:3], near.start, near.stop)
        found = index.sums(X[near][:3], near.start, near.stop, 2)
        np.testing.assert_allclose(found, exact, rtol=1e-8)
