"""Compiled loops and NumPy find the same neighbours, which are those of brute force."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist

from skmahal._core import compiled, kernels
from skmahal._core import exact as exact_module
from skmahal._core.exact import ExactMaintenance
from skmahal._core.images import Columns
from skmahal._core.kernels import HeldCandidates, TakenCandidates
from skmahal._core.tiles import ColumnPart, Expansion, Part, row_squares

BACKENDS = ["numpy", "numba"] if find_spec("numba") else ["numpy"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "fast", lambda: None)
    return request.param


def case(seed=0, n=700, k=300, queries=6, pending=3, dtype=np.float64):
    """Candidates, the exact squares they stand for, and lower bounds of those."""
    rng = np.random.default_rng(seed)
    rows, u = rng.normal(size=(n, k)), rng.normal(size=(queries, k))
    weights, steps = rng.normal(size=(pending, k)), rng.normal(size=(pending, n))
    held = [array.astype(dtype) for array in (u, rows, weights, steps)]
    gaps = u[:, np.newaxis] - (rows + steps.T @ weights)
    exact = (gaps**2).sum(axis=2)
    bounds = (exact * rng.uniform(0.2, 0.999, size=exact.shape)).astype(dtype)
    return HeldCandidates(*held), exact, bounds


def search(bounds, candidates, K, most=None):
    count = len(candidates.queries)
    indices, squares = np.empty((count, K), dtype=np.intp), np.empty((count, K))
    most = bounds.shape[1] if most is None else most
    undecided = kernels.nearest(bounds, candidates, most, indices, squares)
    return indices, squares, undecided


@pytest.mark.parametrize("pending", [0, 1, 5])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-4)])
@pytest.mark.parametrize("K", [1, 10, 700])
def test_neighbours_are_those_of_brute_force(backend, K, dtype, rtol, pending):
    candidates, exact, bounds = case(pending=pending, dtype=dtype)
    indices, squares, undecided = search(bounds, candidates, K)
    assert not undecided.any()
    assert_allclose(squares, np.sort(exact, axis=1)[:, :K], rtol=rtol)
    assert_allclose(np.take_along_axis(exact, indices, axis=1), squares, rtol=rtol)


def test_bounds_are_given_back_as_they_were(backend):
    candidates, _, bounds = case()
    before = bounds.copy()
    search(bounds, candidates, 5)
    assert_array_equal(bounds, before)


class Images:
    """Points, queries, and images of both whose squared distances are bounds."""

    room = 1 << 24

    def __init__(self, n, k=40, queries=5, dtype=np.float64, lead=6, seed=0):
        rng = np.random.default_rng(seed)
        X, Q = rng.normal(size=(n, k)), rng.normal(size=(queries, k))
        turn = np.linalg.qr(rng.normal(size=(k, k)))[0]
        self.X, self.Q = X.astype(dtype), Q.astype(dtype)
        self.exact = ((Q[:, np.newaxis] - X) ** 2).sum(axis=2)
        none = np.empty((0, k), dtype=dtype), np.empty((0, n), dtype=dtype)
        self.candidates = HeldCandidates(self.Q, self.X, *none)
        # Parts of a rotation, weighted, are never longer than the whole.
        maps = [turn[:lead], turn[lead : lead + 20]] if lead else [turn[:20]]
        self.parts = [
            self.part(rows.astype(dtype), 1.0 / (1 + i)) for i, rows in enumerate(maps)
        ]

    def part(self, rows, weight):
        image = Columns(rows)
        image.load(image.project(self.X))
        chunks = image.blocks(len(self.X))
        return ColumnPart(image.project(self.Q), chunks, len(self.X), weight)

    def expansion(self, way):
        if way == "columns":
            return Expansion(self.parts, 1e-5, self.room)
        # In float64, as norms are.
        part = Part(self.Q, self.X, row_squares(self.X))
        return Expansion([part], 1e-5, self.room)

    def assert_nearest(self, indices, squares, rtol):
        K = indices.shape[1]
        assert_allclose(squares, np.sort(self.exact, axis=1)[:, :K], rtol=rtol)
        found = np.take_along_axis(self.exact, indices, axis=1)
        assert_allclose(found, squares, rtol=rtol)
        assert all(len(set(row)) == K for row in indices)


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("lead", [0, 6])
@pytest.mark.parametrize(("n", "K"), [(1, 1), (130, 7), (700, 10), (700, 300)])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-4)])
@pytest.mark.parametrize("queries", [1, 5])
def test_products_and_search_in_one_find_the_nearest(
    backend, way, lead, n, K, dtype, rtol, queries
):
    images = Images(n, dtype=dtype, lead=lead, queries=queries)
    found = search(images.expansion(way), images.candidates, K, n)
    assert not found[2].any()
    images.assert_nearest(*found[:2], rtol)


@pytest.mark.parametrize("way", ["columns", "rows"])
def test_points_may_be_searched_a_segment_at_a_time(way):
    """Fewer points at once than neighbours: the first segments decide little."""
    images = Images(1500)
    images.room = 1
    for K in (3, 200):
        found = search(images.expansion(way), images.candidates, K, 1500)
        images.assert_nearest(*found[:2], 1e-12)


@pytest.mark.parametrize("room", [1, 1 << 24])
def test_queries_that_products_leave_open_are_said(backend, room):
    images = Images(1500, lead=0)
    images.room = room
    _, _, undecided = search(images.expansion("columns"), images.candidates, 3, 20)
    assert undecided.all()
    _, _, undecided = search(images.expansion("rows"), images.candidates, 3, 1500)
    assert not undecided.any()


@pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("pending", [0, 2])
def test_every_point_may_be_read(pending):
    candidates, exact, _ = case(pending=pending)
    indices, squares = candidates.nearest_of_all(9)
    assert_allclose(squares, np.sort(exact, axis=1)[:, :9])
    assert_allclose(np.take_along_axis(exact, indices, axis=1), squares)


def test_queries_that_leave_too_many_points_are_said(backend):
    candidates, exact, _ = case()
    bounds = exact / 4
    limits = np.sort(exact, axis=1)[:, 4:5]
    # The points first evaluated are the nearest, as bounds are in order.
    left = (bounds <= limits).sum(axis=1)
    most = int(np.median(left))
    _, _, undecided = search(bounds, candidates, 5, most)
    assert_array_equal(undecided, left > most)
    assert undecided.any()
    assert not undecided.all()


@pytest.mark.parametrize("K", [1, 3, 7])
def test_ties_go_to_the_lower_index(backend, K):
    rows = np.zeros((2000, 2))
    rows[::7] = [3.0, 4.0]
    rows[1::7] = [5.0, 0.0]
    rows[2::7] = [0.0, -5.0]
    rows[3::7] = [1.0, 0.0] if K == 1 else [9.0, 0.0]
    rows[4::7] = rows[5::7] = rows[6::7] = [20.0, 0.0]
    candidates = HeldCandidates(
        np.zeros((1, 2)), rows, np.empty((0, 2)), np.empty((0, 2000))
    )
    exact = (rows**2).sum(axis=1)
    indices, _, _ = search(np.zeros((1, 2000)), candidates, K)
    assert_array_equal(indices[0], np.lexsort((np.arange(2000), exact))[:K])


@pytest.mark.parametrize("k", [3, 100, 700])
@pytest.mark.parametrize("K", [1, 5, 6, 7])
def test_equal_points_go_by_index_however_they_were_summed(backend, K, k):
    rng = np.random.default_rng(k)
    rows = rng.normal(size=(60, k))
    rows[::6] = rows[0]
    query = rows[:1] + 0.1 * rng.normal(size=(1, k))
    none = np.empty((0, k)), np.empty((0, 60))
    indices, _, _ = search(np.zeros((1, 60)), HeldCandidates(query, rows, *none), K)
    assert_array_equal(indices[0], 6 * np.arange(K))


@pytest.mark.parametrize("finite", [0, 3, 8])
def test_infinite_bounds_lead_to_points_that_are_there(backend, finite):
    candidates, exact, bounds = case()
    bounds[:, finite:] = np.inf
    bounds[:, :finite] = 0
    before = bounds.copy()
    indices, squares, _ = search(bounds, candidates, 5)
    assert_array_equal(bounds, before)
    assert indices.min() >= 0
    assert indices.max() < bounds.shape[1]
    assert_allclose(np.take_along_axis(exact, indices, axis=1), squares)


@given(
    n=st.integers(1, 300),
    k=st.integers(1, 600),
    pending=st.integers(0, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_both_find_the_same(n, k, pending, seed, data):
    K = data.draw(st.integers(1, n))
    most = data.draw(st.integers(K, n))
    candidates, _, bounds = case(seed, n, k, 3, pending)
    indices, squares, undecided = search(bounds, candidates, K, most)
    taken = TakenCandidates(
        candidates.queries,
        lambda i: (candidates.rows + candidates.steps.T @ candidates.weights)[i],
    )
    same, near, left = search(bounds, taken, K, most)
    assert_array_equal(left, undecided)
    assert_array_equal(same[~left], indices[~left])
    assert_allclose(near[~left], squares[~left], rtol=1e-9)


def test_a_budget_is_spent_on_the_smallest_estimates(backend):
    candidates, exact, bounds = case()
    indices, squares = np.empty((6, 4), dtype=np.intp), np.empty((6, 4))
    kernels.budgeted(bounds, candidates, 20, indices, squares)
    for q in range(6):
        allowed = np.argsort(bounds[q])[:20]
        best = allowed[np.argsort(exact[q, allowed])[:4]]
        assert_array_equal(indices[q], best)
        assert_allclose(squares[q], exact[q, best])


def test_the_smallest_of_many_are_found_through_a_sample():
    values = np.random.default_rng(0).normal(size=50_000)
    for K in (1, 10, 2000):
        found = kernels.smallest_bounds(values, K)
        assert_array_equal(np.sort(found), np.sort(np.argsort(values)[:K]))


@pytest.mark.parametrize("K", [1, 7, 200, 300])
@pytest.mark.parametrize("many", [True, False], ids=["many", "few"])
@pytest.mark.parametrize("k", [20, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_one_query_is_answered_by_itself(backend, monkeypatch, K, many, k, dtype, kind):
    """By a product of many numbers, or of few in rows that are short; or by reading."""
    monkeypatch.setattr(exact_module, "_MANY", 0 if many else 10**9)
    rng = np.random.default_rng(0)
    U, X = rng.normal(size=(k, 140)), rng.normal(size=(301, 140))
    index = ExactMaintenance(U.astype(dtype), kind(X[:300].astype(dtype)))
    index.update_low_rank(rng.normal(size=k), rng.normal(size=140))
    found, indices = index.kneighbors(X[300].astype(dtype), K)
    exact = np.linalg.norm((X[:300] - X[300]) @ index.U.T.astype(float), axis=1)
    rtol = 1e-4 if dtype == np.float32 else 1e-10
    assert_allclose(found[0], np.sort(exact)[:K], rtol=rtol)
    assert_allclose(exact[indices[0]], found[0], rtol=rtol)


@pytest.mark.parametrize(
    ("n", "k", "queries"), [(3000, 4, 200), (300, 8192, 6)], ids=["many", "large"]
)
def test_points_that_are_open_for_all_queries_are_evaluated_in_parts(n, k, queries):
    """More entries than are kept at a time, and rows that come by parts."""
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(n, k)), rng.normal(size=(queries, k))
    candidates = HeldCandidates(Q, X, np.empty((0, k)), np.empty((0, n)))
    bounds = np.zeros((queries, n))
    indices, squares, undecided = search(bounds, candidates, 5, n)
    exact = cdist(Q, X, "sqeuclidean")
    assert not undecided.any()
    assert_array_equal(indices, np.argsort(exact, axis=1)[:, :5])
    assert_allclose(squares, np.sort(exact, axis=1)[:, :5])


def test_bounds_of_rows_are_of_the_type_of_the_rows():
    images = Images(300, dtype=np.float32)
    assert images.expansion("rows").multiplied().dtype == np.float32
