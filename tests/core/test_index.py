"""Exact queries under any sequence of changes, against brute force.

The index is private, and tested apart from estimators because everything rests on it.
"""

import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy import sparse

from skmahal._core.index import Index
from skmahal._core.kernels import available
from skmahal._core.plan import cost_of_images
from tests.core.data import decaying
from tests.oracle import Oracle, assert_nearest

RTOL = {np.float64: 1e-8, np.float32: 1e-5}
D = 6
seeds = st.integers(0, 2**32 - 1)


class AnyHistory(RuleBasedStateMachine):
    """Every operation in any order; all answers are compared after each."""

    @initialize(
        seed=seeds,
        dtype=st.sampled_from([np.float64, np.float32]),
        k=st.sampled_from([None, 1, 4, 12]),
        n=st.integers(1, 300),
        is_sparse=st.booleans(),
        offset=st.sampled_from([0.0, 100.0]),
    )
    def build(self, seed, dtype, k, n, is_sparse, offset):
        self.dtype, self.offset, self.is_sparse = dtype, offset, is_sparse
        X, U = self.points(seed, n), None
        if k is not None:
            U = np.random.default_rng(seed + 1).normal(size=(k, D))
        self.index = Index(U, self.given(X), records=np.arange(n))
        self.oracle, self.targets = Oracle(U, X), np.arange(n)
        [self.map] = self.index.cache([np.ones((2, self.index.k))])

    def points(self, seed, count):
        normal = np.random.default_rng(seed).normal(size=(count, D))
        return (normal + self.offset).astype(self.dtype)

    def given(self, X):
        return sparse.csr_matrix(X) if self.is_sparse else X

    def some(self, seed, n, most):
        rng = np.random.default_rng(seed)
        return rng.permutation(n)[: rng.integers(1, most + 1)]

    @rule(seed=seeds, rank=st.integers(1, 20), size=st.sampled_from([1e-3, 0.1, 10]))
    def low_rank(self, seed, rank, size):
        rng = np.random.default_rng(seed)
        W, V = rng.normal(size=(self.index.k, rank)), rng.normal(size=(D, rank))
        self.index.add_low_rank(size * W, V)
        self.oracle.update_low_rank(size * W, V)

    @rule(seed=seeds, k=st.sampled_from([None, 1, 5, 9]))
    def metric(self, seed, k):
        rng = np.random.default_rng(seed)
        U = rng.normal(size=(self.index.k if k is None else k, D))
        before = self.index.k
        self.index.set_metric(U)
        self.oracle.set_metric(U)
        if self.index.k != before:
            [self.map] = self.index.cache([np.ones((2, self.index.k))])

    @rule(seed=seeds)
    def replace_points(self, seed):
        i = self.some(seed, self.index.n, self.index.n)
        new = self.points(seed, len(i))
        self.index.assign(i, self.given(new), -i)
        self.oracle.update_x(new, i)
        self.targets[i] = -i

    @rule(seed=seeds, count=st.integers(1, 200))
    def add_points(self, seed, count):
        new = self.points(seed, count)
        self.index.append(self.given(new), np.arange(count))
        self.oracle.append(new)
        self.targets = np.concatenate([self.targets, np.arange(count)])

    @rule(seed=seeds)
    def remove_points(self, seed):
        if self.index.n > 1:
            i = self.some(seed, self.index.n, self.index.n - 1)
            self.index.remove(i)
            self.oracle.remove(i)
            self.targets = np.delete(self.targets, i)

    @rule(seed=seeds)
    def drop_the_last(self, seed):
        n = 1 + seed % self.index.n
        self.index.truncate(n)
        self.oracle.remove(np.arange(n, len(self.oracle.X)))
        self.targets = self.targets[:n]

    @rule()
    def save_and_load(self):
        self.index = Index.restored(pickle.loads(pickle.dumps(self.index.saved())))
        self.map = self.index.caches[0]

    @invariant()
    def answers_are_those_of_brute_force(self):
        if not hasattr(self, "oracle"):
            return
        index, n, rtol = self.index, self.index.n, RTOL[self.dtype]
        Q = np.vstack([self.points(0, 4), self.oracle.X[:1]]).astype(self.dtype)
        truth, given = self.oracle.query_all(Q), self.given(Q)
        atol = 1e-9 * np.abs(self.oracle.U).max()
        assert (n, index.d, index.k) == (len(truth[0]), D, len(self.oracle.U))
        np.testing.assert_array_equal(index.records, self.targets)
        np.testing.assert_allclose(index.U, self.oracle.U, 1e-12, atol)
        for K in {1, min(3, n), n}:
            assert_nearest(*index.kneighbors(given, K), truth, rtol, atol)
            assert_nearest(*index.kneighbors(given[:1], K), truth[:1], rtol, atol)
        loose = 1e-3 if self.dtype == np.float32 else 1e-7
        np.testing.assert_allclose(index.distances(given), truth, loose, atol)
        assert index.distances(given[-1:])[0, 0] == 0
        i, j = np.arange(n), np.arange(n)[::-1]
        pairs = self.oracle.query_pair(i, j)
        np.testing.assert_allclose(index.pair_distances(i, j), pairs, rtol, atol)
        start, stop = n // 3, n - n // 4
        for power in (1, 2):
            sums = self.oracle.sub_sum(Q, start, stop, power)
            found = index.sums(given, start, stop, power)
            np.testing.assert_allclose(found, sums, 1e-6, atol)
        radius = np.median(truth)
        for row, near in zip(
            truth, index.radius_neighbors(given, radius)[1], strict=True
        ):
            surely, maybe = row < radius * (1 - rtol), row <= radius * (1 + rtol)
            assert (
                set(np.flatnonzero(surely)) <= set(near) <= set(np.flatnonzero(maybe))
            )

    @invariant()
    def every_invariant_holds(self):
        if hasattr(self, "oracle"):
            assert self.index.check() < 1e-9
            with self.index.lock.reading():
                self.index.cached_rows(self.map)

    @invariant()
    def draws_are_points(self):
        if hasattr(self, "oracle"):
            rng = np.random.default_rng(0)
            draws = self.index.sample(self.given(self.points(1, 2)), 3, 1, rng)
            assert draws.shape == (2, 3)
            assert 0 <= draws.min() <= draws.max() < self.index.n


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, derandomize=True
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [None, 10, 100])
def test_a_large_index_follows_changes(dtype, k):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 60)).astype(dtype)
    index = Index(None if k is None else rng.normal(size=(k, 60)), X)
    Q = rng.normal(size=(80, 60)).astype(dtype)
    for step in range(6):
        truth = Oracle(index.U, index.X).query_all(Q)
        assert_nearest(*index.kneighbors(Q, 7), truth, RTOL[dtype], 1e-12)
        assert_nearest(*index.kneighbors(Q[:1], 7), truth[:1], RTOL[dtype], 1e-12)
        W, V = rng.normal(size=(index.k, 1)), rng.normal(size=(60, 1))
        index.add_low_rank((0.1, 1, 100)[step % 3] * W, V)
        index.append(rng.normal(size=(500, 60)).astype(dtype))
        index.assign(np.arange(7), rng.normal(size=(7, 60)).astype(dtype))
        index.remove(rng.permutation(index.n)[:100])
    assert index.check() < 1e-9


def test_threads_find_what_one_thread_finds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 40)).astype(np.float32)
    index = Index(rng.normal(size=(40, 40)), X)
    one, two = index.kneighbors(X[:700], 5), index.kneighbors(X[:700], 5, jobs=3)
    np.testing.assert_array_equal(one[1], two[1])
    np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize("k", [None, 3, 20])
def test_queries_in_csr_are_answered_as_dense_ones(k):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 20)) * (rng.random((400, 20)) < 0.2)
    U = None if k is None else rng.normal(size=(k, 20))
    for points in (X, sparse.csr_matrix(X)):
        index = Index(U, points)
        dense, csr = (
            index.kneighbors(X[:9], 4),
            index.kneighbors(sparse.csr_matrix(X[:9]), 4),
        )
        np.testing.assert_allclose(dense[0], csr[0], atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_refused_change_leaves_the_index_as_it_was(dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)).astype(dtype)
    index = Index(np.eye(4), X)
    before = index.kneighbors(X, 3)
    huge = np.full((1, 4), np.finfo(dtype).max / 4, dtype=dtype)
    with pytest.raises(ValueError, match="too large"):
        index.append(huge)
    with pytest.raises(ValueError, match="too large"):
        index.assign(np.array([0]), huge)
    with pytest.raises(ValueError, match="too large"):
        index.set_metric(np.full((4, 4), 1e200))
    with pytest.raises(ValueError, match="queries that are too large"):
        index.kneighbors(huge, 1)
    after = index.kneighbors(X, 3)
    np.testing.assert_array_equal(before[0], after[0])
    index.check()


def test_many_threads_share_a_batch_after_its_pilot():
    X = np.random.default_rng(0).normal(size=(5000, 40))
    X[:, 5:] *= 1e-3
    index = Index(None, X)
    assert index.kneighbors(X[:3], 3)[1][:, 0].tolist() == [0, 1, 2]
    for jobs in (2, 8, 16, 64):
        found = index.kneighbors(X[:64], 3, jobs=jobs)[1]
        np.testing.assert_array_equal(found[:, 0], np.arange(64))


def test_what_was_saved_is_not_changed_by_later_points():
    X = np.random.default_rng(0).normal(size=(3000, 30))
    index = Index(None, X)
    index.prepare()
    values = index.saved()
    before = pickle.dumps(values)
    index.append(X[:5])
    index.assign(np.arange(3), X[5:8])
    index.truncate(2000)
    index.append(X[:7])
    assert pickle.dumps(values) == before


@pytest.mark.parametrize("radius", [0.0, 1e-15, 1e-9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_points_are_within_any_radius_under_few_rows_of_u(radius, dtype):
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(30, 44)), 5, axis=0).astype(dtype)
    index = Index(rng.normal(size=(5, 44)), X)
    for Q in (X[:1], X[:60]):
        for at, near in enumerate(index.radius_neighbors(Q, radius, jobs=2)[1]):
            np.testing.assert_array_equal(near, at // 5 * 5 + np.arange(5))


@pytest.mark.parametrize("r", [8, 128])
def test_bounds_of_one_query_allow_for_the_rounding_of_norms(r):
    """Points that differ in the last digits of their norms, and queries at them."""
    rng = np.random.default_rng(0)
    X = (1 + 1e-6 * rng.normal(size=(4000, 128))).astype(np.float32)
    X[:, r:] = 0
    index = Index(np.diag(np.full(128, 100.0)), X)
    truth = Oracle(index.U, X).query_all(X[:40] + np.float32(1e-6))
    for at in range(40):
        found = index.kneighbors(X[at : at + 1] + np.float32(1e-6), 3)
        assert_nearest(*found, truth[at : at + 1], 1e-5, 1e-9)


def test_an_index_that_was_restored_has_its_own_points():
    X = np.random.default_rng(0).normal(size=(300, D))
    index = Index(None, X)
    other = Index.restored(index.saved())
    other.assign(np.array([3]), np.full((1, D), 9.0))
    other.append(np.full((1, D), 8.0))
    np.testing.assert_array_equal(index.X, X)
    index.check()
    other.check()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 20])
def test_a_large_step_of_the_metric_passes_the_check(k, dtype):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, U = rng.normal(size=(1000, 40)).astype(dtype), rng.normal(size=(k, 40))
        index = Index(U, X)
        index.prepare()
        index.add_low_rank(1e4 * rng.normal(size=(k, 1)), rng.normal(size=(40, 1)))
        assert index.check() < 1e-8


def test_the_order_of_neighbours_does_not_depend_on_other_queries():
    """Few rows of U, and points whose distances are equal in float32."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 100)).astype(np.float32)
        index = Index(rng.normal(size=(12, 100)), X)
        q = rng.normal(size=(1, 100)).astype(np.float32)
        alone, batch = (index.kneighbors(Q, 3000) for Q in (q, np.vstack([q, X[:1]])))
        np.testing.assert_array_equal(alone[1][0], batch[1][0])


@pytest.fixture(scope="module")
def stretched():
    """Points, queries, and a metric that counts all directions the same."""
    X = decaying(6300, 256, rate=0.95)
    values, vectors = np.linalg.eigh(np.cov(X.T))
    return X[:6000], X[6000:], (vectors / np.sqrt(values)).T.copy()


def check_neighbors(index, oracle, Q):
    """Assert that one query and several have the neighbours of brute force."""
    index.check()
    for some in (Q[:1], Q[1:9]):
        near, truth = index.kneighbors(some, 10), oracle.query_all(some)
        assert_nearest(*near, truth, 1e-8, 1e-9)


@pytest.mark.skipif(not available(), reason="needs numba")
def test_codes_of_transformed_rows_follow_points_and_end_with_the_metric(stretched):
    X, Q, U = stretched
    index, oracle = Index(U, X), Oracle(U, X)
    with index.lock.reading():
        index.searcher(count=None)
    assert index.plan.uses_images
    assert index.state.image_codes.n == 6000
    check_neighbors(index, oracle, Q)
    radius = np.sort(oracle.query_all(Q[:1])[0])[30]
    near = np.flatnonzero(oracle.query_all(Q[:1])[0] <= radius * (1 + 1e-9))
    np.testing.assert_array_equal(
        index.radius_neighbors(Q[:1], radius * (1 + 1e-9))[1][0], near
    )
    index.append(1.1 * Q)
    oracle.append(1.1 * Q)
    index.assign(np.arange(40), Q[:40])
    oracle.update_x(Q[:40], np.arange(40))
    check_neighbors(index, oracle, Q)
    assert index.state.image_codes.n == 6300
    index.remove(np.arange(0, 6300, 3))
    oracle.remove(np.arange(0, 6300, 3))
    check_neighbors(index, oracle, Q)
    index.truncate(4000)
    oracle.remove(np.arange(4000, 4200))
    check_neighbors(index, oracle, Q)
    assert index.state.image_codes.n == 4000
    before = index.kneighbors(Q[:1], 10)
    index.set_state(index.state._replace(image_codes=None))
    index.search_anew()
    # Only the time depends on these codes.
    for one, other in zip(before, index.kneighbors(Q[:1], 10), strict=True):
        np.testing.assert_array_equal(one, other)
    rng = np.random.default_rng(0)
    change = 0.1 * rng.normal(size=(256, 1)), rng.normal(size=(256, 1))
    index.add_low_rank(*change)
    oracle.update_low_rank(*change)
    assert index.state.image_codes is None
    check_neighbors(index, oracle, Q)


@pytest.mark.skipif(not available(), reason="needs numba")
def test_codes_of_transformed_rows_are_made_once_they_would_have_paid(stretched):
    X, Q, U = stretched
    index = Index(U, X)
    index.kneighbors(Q[:1], 10)
    assert index.state.image_codes is None
    saved, cost = index.plan.missed(1), cost_of_images(6000, 256, 256)
    assert 3 < cost / saved < 300
    for _ in range(int(cost / saved)):
        index.kneighbors(Q[:1], 10)
    assert index.state.image_codes is not None
    index.add_low_rank(np.full((256, 1), 1e-4), np.ones((256, 1)))
    index.kneighbors(Q[:1], 10)
    assert index.state.image_codes is None
    index.kneighbors(np.tile(Q, (40, 1)), 10)
    assert index.state.image_codes is not None
    loaded = Index.restored(index.saved())
    assert loaded.plan.uses_images
    assert loaded.state.image_codes is None
    for one, other in zip(
        index.kneighbors(Q[:1], 10), loaded.kneighbors(Q[:1], 10), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    # A point that is too long for their unit ends all codes.
    index.append(1e8 * Q[:1])
    assert index.state.coded is index.state.image_codes is None
    np.testing.assert_array_equal(index.kneighbors(Q[:1], 10)[1], other)


def test_queries_that_are_too_large_are_refused_among_others():
    rng = np.random.default_rng(0)
    X, U = rng.normal(size=(400, 300)), 10 * rng.normal(size=(300, 300))
    Q = np.vstack([X[:3], 1e308 * np.sign(rng.normal(size=(1, 300)))])
    with pytest.raises(ValueError, match="X has queries that are too large"):
        Index(U, X).kneighbors(Q, 3)


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_offset_and_outliers_do_not_make_steep_metrics_slow(dtype):
    """An origin off the points is far from all of them under such a metric."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 8)) @ rng.normal(size=(8, 100))
    X += 1e-3 * rng.normal(size=X.shape)
    U = np.linalg.cholesky(np.linalg.inv(np.cov(X.T) + 1e-2 * np.eye(100))).T
    X += 100 * rng.normal(size=100)
    X[[5, 1000]] *= 1e4
    X = X.astype(dtype)
    index, Q = Index(U, X), (X[:40:2] + X[40:80:2]) / 2
    with index.lock.reading():
        search = index.searcher()
    # What squares are the difference of: near zero beside it, they cost O(kd) each.
    length, size = index.queries(search, Q).lengths, np.sqrt(index.state.sizes)
    assert np.median(length) * np.median(size) < 10 * np.median(index.state.norms)
    assert_nearest(*index.kneighbors(Q, 5), Oracle(U, X).query_all(Q), RTOL[dtype], 0)
