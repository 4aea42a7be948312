"""Cells: no point is lost by any sequence of changes, and their bounds are certain.

Private names, to search all cells, or a number of them, at will.
"""

import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy import sparse

from skmahal._core import cached, plan, search
from skmahal._core import cells as partition
from skmahal._core.codes import encode
from skmahal._core.index import Index
from skmahal._core.kernels import available
from tests.core.data import clusters
from tests.core.test_search import HOSTILE, searcher
from tests.oracle import Oracle, assert_nearest

pytestmark = pytest.mark.skipif(not available(), reason="needs numba")
D, K = 40, 5
seeds = st.integers(0, 2**32 - 1)
_SMALL = plan._SMALL


def in_cells(index, Q, budget=None, K=K):
    """Distances and positions by some points, or all, and how many codes were read."""
    with index.lock.reading():
        searching = index.searcher()
        queries = index.queries(searching, Q)
        count = searching.n if budget is None else budget
        squares, indices, opened = searching.in_cells(queries, K, count)
        return *index._distances_of(Q, squares, indices), opened


class AnyHistory(RuleBasedStateMachine):
    """Changes in any order; all cells together have every point, and exact bounds."""

    @initialize(
        seed=seeds,
        dtype=st.sampled_from([np.float64, np.float32]),
        k=st.sampled_from([None, 1, 8, D]),
        offset=st.sampled_from([0.0, 1e3]),
    )
    def build(self, seed, dtype, k, offset):
        # Transformed rows of few columns have codes, and so cells, too.
        plan._SMALL, self.dtype, self.offset = 0, dtype, offset
        X = self.points(seed, 1100)
        U = None
        if k is not None:
            U = np.random.default_rng(seed + 1).normal(size=(k, D))
        self.index = Index(U, X, n_neighbors=K, recall=0.9)
        self.oracle = Oracle(U, X)
        self.index.prepare()

    def points(self, seed, count):
        X = clusters(count, D, 20, 0.3, seed % 10_000)
        return (X + self.offset).astype(self.dtype)

    @rule(seed=seeds, count=st.sampled_from([1, 7, 300]))
    def append(self, seed, count):
        X = self.points(seed, count)
        self.index.append(X)
        self.oracle.append(X)

    @rule(seed=seeds, count=st.sampled_from([1, 20, 400]))
    def replace(self, seed, count):
        at = np.random.default_rng(seed).permutation(self.index.n)[:count]
        X = self.points(seed, len(at))
        self.index.assign(at, X)
        self.oracle.X[at] = X

    @rule(seed=seeds, count=st.sampled_from([1, 30]))
    def replace_but_be_interrupted(self, seed, count):
        at = np.random.default_rng(seed).permutation(self.index.n)[:count]
        X, centred = self.points(seed, len(at)), cached.centred

        def interrupted(state):
            cached.centred = centred
            raise KeyboardInterrupt

        cached.centred = interrupted
        with pytest.raises(KeyboardInterrupt):
            self.index.assign(at, X)
        self.oracle.X[at] = X

    @rule(seed=seeds, share=st.sampled_from([0.001, 0.1]))
    def remove(self, seed, share):
        if self.index.n > 1300:
            most = int(share * self.index.n) + 1
            gone = np.random.default_rng(seed).permutation(self.index.n)[:most]
            self.index.remove(gone)
            self.oracle.remove(gone)

    @rule()
    def empty_a_cell(self):
        self.index.prepare()
        labels = self.index.state.cells.labels(self.index.n)
        gone = np.flatnonzero(labels == np.bincount(labels[labels >= 0]).argmin())
        if 0 < len(gone) < self.index.n - 1050:
            self.index.remove(gone)
            self.oracle.remove(gone)

    @rule(seed=seeds, size=st.sampled_from([0.1, 5.0]))
    def add_low_rank(self, seed, size):
        rng = np.random.default_rng(seed)
        W, V = size * rng.normal(size=(self.index.k, 1)), rng.normal(size=(D, 1))
        self.index.add_low_rank(W, V / np.linalg.norm(V))
        self.oracle.U = self.index.U

    @rule(seed=seeds, k=st.sampled_from([1, 8, D]))
    def set_metric(self, seed, k):
        self.index.set_metric(np.random.default_rng(seed).normal(size=(k, D)))
        self.oracle.U = self.index.U

    @rule()
    def save_and_load(self):
        Q = self.points(1, 20)
        before = self.index.kneighbors(Q, K, approximate=True)
        self.index = Index.restored(pickle.loads(pickle.dumps(self.index.saved())))
        after = self.index.kneighbors(Q, K, approximate=True)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)

    @invariant()
    def all_cells_are_exact(self):
        if not hasattr(self, "index"):
            return
        Q = np.vstack([self.index.X[:3], self.points(7, 3)])
        distances, indices, _ = in_cells(self.index, Q)
        rtol = 1e-8 if self.dtype == np.float64 else 1e-5
        atol = 1e-7 * (1 + self.offset) * np.abs(self.oracle.U).max()
        assert_nearest(distances, indices, self.oracle.query_all(Q), rtol, atol)
        self.index.check()

    def teardown(self):
        plan._SMALL = _SMALL


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=20, stateful_step_count=15, deadline=None
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", [None, "full", "ill-conditioned"])
@pytest.mark.parametrize("name", HOSTILE)
def test_cells_are_exact_on_data_made_to_break_bounds(name, metric, dtype):
    X, rng = HOSTILE[name].astype(dtype), np.random.default_rng(1)
    U = None if metric is None else rng.normal(size=(24, 24))
    if metric == "ill-conditioned":
        U = U * 10.0 ** np.linspace(-5, 5, 24)
    plain = searcher(X, U, r=8)
    Q = np.vstack([X[:3], X[5:8] + X.std(axis=0), 3 * X[9:10] - 2 * X[11:12]])
    space, queries = plain.space, plain.queries(Q.astype(dtype))
    coded = encode(space.rows, space.origin, plain.unit, plain.P)
    for even in (False, True):
        cells = partition.make(space, coded, np.arange(2), even)
        cells.check(coded, space.rows, space.origin)
        by_cells = search.DenseSearch(space, coded, plain.plan, cells=cells)
        expected = plain.kneighbors(queries, 3, way="scan")
        squares, indices, _ = by_cells.in_cells(queries, 3, len(X))
        np.testing.assert_array_equal(squares, expected[0])
        np.testing.assert_array_equal(indices, expected[1])


def test_no_two_clusters_share_a_cell_of_an_exact_search(monkeypatch):
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(100), 30)
    Z = rng.normal(size=(100, 32))[own] + 0.1 * rng.normal(size=(3000, 32))
    Z = Z.astype(np.float32)

    def shared():
        """How many cells have points of several clusters."""
        centres = partition._means(Z, 110, True, np.random.default_rng(1), 1)
        labels, _ = partition.nearest_rows(Z, centres)
        pairs = np.unique(np.stack([labels, own]), axis=1)
        return np.count_nonzero(np.bincount(pairs[0]) > 1)

    assert shared() == 0
    monkeypatch.setattr(partition, "_WIDE", np.inf)
    assert shared() > 0


def test_an_exact_search_uses_cells_of_clustered_points():
    X = clusters(6000, 128, 60, 0.2).astype(np.float32)
    Q = clusters(6040, 128, 60, 0.2).astype(np.float32)[6000:]
    far = 2 * np.random.default_rng(5).normal(size=(70, 128)).astype(np.float32)
    index = Index(None, X, n_neighbors=K)
    assert index.prepare().uses_cells
    oracle = Oracle(None, X)
    for queries in (Q, far, np.vstack([Q, far]), Q[:1], far[:1]):
        truth = oracle.query_all(queries)
        assert_nearest(*index.kneighbors(queries, K), truth, 1e-5, 0)
    by_cells = index.searcher()
    opened = by_cells.in_cells(by_cells.queries(Q), K, None)[2]
    assert 0 < opened.mean() < 0.1 * len(X)
    # From far away, cells exclude nothing, and the search says so early.
    assert (by_cells.in_cells(by_cells.queries(far), K, None)[2] < 0).mean() > 0.5


@pytest.mark.parametrize("made", ["normal", "mapped", "few"])
def test_an_exact_search_has_no_cells_where_they_are_of_no_use(made, tmp_path):
    X = np.random.default_rng(0).normal(size=(6000, 128)).astype(np.float32)
    if made == "mapped":
        X = clusters(6000, 128, 60, 0.2).astype(np.float32)
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    if made == "few":
        X = clusters(900, 128, 9, 0.2).astype(np.float32)
    index = Index(None, X)
    assert not index.prepare().uses_cells
    assert index.state.cells is None


def test_work_grows_as_the_root_of_the_number_of_points():
    opened = []
    for n in (4000, 64_000):
        X = clusters(n + 50, 32, n // 50, 0.2, seed=1).astype(np.float32)
        index = Index(None, X[:n], n_neighbors=K, recall=0.9)
        index.prepare(2)
        read = in_cells(index, X[n:], index.probing(K).budget)[2]
        opened.append(read.mean() + len(index.state.cells.radii))
    # 16 times the points: 4 times the cells, and as many points in one of them.
    assert opened[1] < 8 * opened[0]


def test_points_that_come_later_are_put_into_cells():
    X = clusters(3000, D, 20, 0.3).astype(np.float32)
    index = Index(None, X[:2000], n_neighbors=K, recall=0.9)
    index.prepare()
    index.append(X[2000:2050])
    index.prepare()
    cells = index.state.cells
    assert cells.n - cells.starts[-1] == 50
    index.append(X[2050:2900])
    index.prepare()
    cells = index.state.cells
    assert cells.n == cells.starts[-1] == 2900
    index.check()


@pytest.mark.parametrize("case", ["equal", "rank 0", "rank 1", "two places"])
def test_degenerate_points_and_metrics(case):
    rng = np.random.default_rng(0)
    X, U = rng.normal(size=(2000, D)), np.eye(D)
    if case == "equal":
        X[:] = X[0]
    elif case == "two places":
        X = X[rng.integers(2, size=2000)]
    else:
        U = np.zeros((D, D))
        U[0, 0] = case == "rank 1"
    index = Index(U, X, n_neighbors=K, recall=0.9)
    Q, oracle = rng.normal(size=(6, D)), Oracle(U, X)
    distances, indices, _ = in_cells(index, Q)
    assert_nearest(distances, indices, oracle.query_all(Q), 1e-8, 1e-12)
    found = index.kneighbors(Q, K, approximate=True)
    assert found[0].shape == (6, K)
    for row in found[1]:
        assert len(set(row)) == K
    index.check()


def test_more_neighbours_than_the_nearest_cells_have():
    X = clusters(3000, D, 20, 0.3)
    index = Index(None, X, n_neighbors=K, recall=0.9)
    Q = X[:4] + 0.1
    distances, indices, _ = in_cells(index, Q, budget=1, K=600)
    truth = Oracle(None, X).query_all(Q)
    assert_nearest(distances, indices, truth, 1e-8, 0)


def test_cells_are_the_same_for_any_number_of_threads():
    X = clusters(5000, 64, 50, 0.5).astype(np.float32)
    one, two = (Index(None, X, recall=0.9) for _ in range(2))
    one.prepare(1), two.prepare(2)
    for name, values in one.state.cells._asdict().items():
        np.testing.assert_array_equal(values, getattr(two.state.cells, name))
    assert one.probing(10) == two.probing(10)


def test_cells_of_transformed_rows_that_all_points_have_left():
    X, rng = clusters(4000, 100, 20, 0.3), np.random.default_rng(0)
    index = Index(rng.normal(size=(20, 100)), X, n_neighbors=K, recall=0.8)
    index.prepare()
    index.assign(np.arange(1900), X[:1900] + 0.1)
    index.remove(np.arange(1900, 4000))
    index.add_low_rank(rng.normal(size=(20, 1)), rng.normal(size=(100, 1)))
    index.check()
    assert index.kneighbors(X[:3], K, approximate=True)[0].shape == (3, K)


def test_sparse_points_that_are_no_longer_transformed():
    X = sparse.random(6000, 200, 0.05, format="csr", random_state=0)
    rng = np.random.default_rng(0)
    index = Index(rng.normal(size=(8, 200)), X, n_neighbors=K, recall=0.8)
    index.prepare()
    assert index.state.cells is not None
    U = rng.normal(size=(200, 200))
    index.set_metric(U)
    truth = Oracle(U, X).query_all(X[:3].toarray())
    found = index.kneighbors(X[:3], K, approximate=True)
    assert_nearest(*found, truth, 1e-8, 1e-6)
    assert index.measured(K) is None
    index.saved()
