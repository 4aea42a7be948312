"""Compiled loops and NumPy find the same neighbours, which are those of brute force."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skmahal._core import compiled, kernels
from skmahal._core.kernels import HeldCandidates, TakenCandidates

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
    indices = np.empty((len(bounds), K), dtype=np.intp)
    squares = np.empty((len(bounds), K))
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
