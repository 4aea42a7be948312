"""Degenerate and extreme data: results are as right as those for ordinary data.

They are compared with distances in extended precision, whose range is far beyond that
of float64.
"""

from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from skmahal import SketchedMahalanobisNeighbors

from .oracle import Oracle

N, D, K = 40, 6, 5
SEARCHES = {
    "exact": {},
    # One sketch: the same serves a query and its multiple.
    "certified": {
        "m": 2,
        "L": 1,
        "R": 1,
        "lead": 1,
        "delta": 1e-9,
        "n_candidates": "certified",
    },
}
DTYPES = [np.float64, np.float32]

# Relative errors of a distance, and of one in units of the size of the points.
RTOL = {np.float64: 1e-9, np.float32: 1e-4}
DRIFT = {np.float64: 1e-12, np.float32: 1e-4}
SCALES = {
    np.float64: [1e-140, 1e-75, 1e75, 1e140],
    np.float32: [1e-15, 1e-8, 1e8, 1e15],
}
# A metric is of less range: the largest squared distances are of its entries squared.
LARGEST_METRIC = 1e90


class Case(NamedTuple):
    U: np.ndarray
    X: np.ndarray
    Q: np.ndarray


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def ordinary(n=N, d=D, k=K):
    return Case(normal(k, d, seed=1), normal(n, d), normal(4, d, seed=2))


def duplicates():
    U, X, Q = ordinary()
    return Case(U, np.repeat(X[:5], 8, axis=0), np.vstack([X[:2], Q]))


def all_equal():
    U, X, Q = ordinary()
    return Case(U, np.repeat(X[:1], N, axis=0), np.vstack([X[:1], Q]))


def of_rank(rank):
    _, X, Q = ordinary()
    return Case(normal(K, rank) @ normal(rank, D, seed=3), X, Q)


def zero_rows():
    U, X, Q = ordinary()
    U[[0, 3]] = 0
    return Case(U, X, Q)


def constant_columns():
    U, X, Q = ordinary()
    X[:, [0, 4]] = 7
    return Case(U, X, Q)


def with_denormals(tiny):
    U, X, Q = ordinary()
    X[::2, 1:3], Q[:, 4] = 3 * tiny, tiny
    X[3], U[2] = tiny, 5 * tiny
    return Case(U, X, Q)


def far_away(offset=1e6):
    U, X, Q = ordinary()
    return Case(U, X + offset, Q + offset)


CASES = {
    "ordinary": ordinary,
    "duplicates": duplicates,
    "all points equal": all_equal,
    "metric of rank 0": lambda: of_rank(0),
    "metric of rank 1": lambda: of_rank(1),
    "zero rows in U": zero_rows,
    "one point": lambda: ordinary(n=1),
    "one feature": lambda: ordinary(d=1),
    "one row in U": lambda: ordinary(k=1),
    "more rows than features": lambda: ordinary(k=3 * D),
    "constant columns": constant_columns,
    "denormals": lambda: with_denormals(5e-324),
    "denormals of float32": lambda: with_denormals(1e-45),
}


def fitted(case, search, dtype):
    case = Case(*(part.astype(dtype) for part in case))
    index = SketchedMahalanobisNeighbors(
        min(3, len(case.X)), metric_learner=case.U, random_state=0, **SEARCHES[search]
    )
    return index.fit(case.X), case


def updated(index, case, size, places):
    """Index and case after changes of every kind, of entries of the given sizes."""
    U, X, Q = (np.array(part) for part in case)
    dtype, (of_U, of_X) = X.dtype, size
    W = (of_U * normal(len(U), 1, seed=5)).astype(dtype)
    V = normal(U.shape[1], 1, seed=6).astype(dtype)
    new = (places + of_X * normal(3, U.shape[1], seed=7)).astype(dtype)
    index.kneighbors(Q, 1)
    index.sample(Q)
    index.update_metric(low_rank=(W, V))
    index.partial_fit(new)
    index.update_metric(W[:1] * V.T, rows=[0], additive=True)
    index.update_points([0], new[2:])
    index.remove_points([1])
    X = np.vstack([X, new])
    X[0] = new[2]
    return Case(index.components_, np.delete(X, 1, axis=0), Q)


def truth_of(case):
    """Distances in extended precision, (queries, points)."""
    U, X, Q = (part.astype(np.longdouble) for part in case)
    gaps = (Q[:, np.newaxis] - X) @ U.T
    return np.sqrt((gaps**2).sum(axis=2))


def size_of(case):
    """The largest row under the metric, from the middle of the points."""
    U, X, Q = (part.astype(np.longdouble) for part in case)
    rows = (np.vstack([X, Q]) - X.mean(axis=0)) @ U.T
    return np.sqrt((rows**2).sum(axis=1).max())


def assert_close(found, truth, case, power=1, terms=1):
    """Within the stated error; the smallest squares are below the range of floats."""
    dtype = case.X.dtype.type
    least = np.sqrt(np.longdouble(np.finfo(dtype).tiny)) * 16 * np.sqrt(len(case.U))
    size = DRIFT[dtype] * size_of(case) + least
    limit = RTOL[dtype] * truth + terms * size * (
        1 if power == 1 else size_of(case) + least
    )
    assert np.isfinite(found).all()
    assert (np.abs(found.astype(np.longdouble) - truth) <= limit).all()


def assert_neighbours(index, case, truth):
    K = min(3, len(case.X))
    distances, indices = index.kneighbors(case.Q, K)
    assert_close(distances, np.sort(truth, axis=1)[:, :K], case)
    assert_close(distances, np.take_along_axis(truth, indices, axis=1), case)
    assert all(len(set(row)) == K for row in indices)
    radius = float(np.median(truth))
    for near, named, row in zip(
        *index.radius_neighbors(case.Q, radius), truth, strict=True
    ):
        assert_close(near, row[named], case)
        wide = np.zeros(len(row), dtype=bool)
        wide[named] = True
        edge = np.abs(row - radius) <= 1e-4 * radius
        assert (wide == (row <= radius))[~edge].all()


def assert_exact_distances(index, case, truth):
    # No public method has exact distances where those of an index are estimates.
    held, n = index._maintenance, len(case.X)
    assert_close(held.exact_all(case.Q), truth, case)
    i, j = np.arange(n), np.arange(n)[::-1]
    pairs = truth_of(Case(case.U, case.X, case.X))[i, j]
    found = held.exact_pair(i, j)
    assert_close(found, pairs, case)
    same = (case.X[i] == case.X[j]).all(axis=1)
    assert (found[same] == 0).all()
    for power in (1, 2):
        sums = (truth**power).sum(axis=1)
        found = index.sum_distances(case.Q, power=power)
        assert_close(found, sums, case, power, terms=n)


def assert_draws(index, case, truth):
    """No draw where the distance is zero, unless all are."""
    for power in (1, 2):
        draws = index.sample(case.Q, 50, power=power, random_state=0)
        assert draws.shape == (len(case.Q), 50)
        for row, drawn in zip(truth, draws, strict=True):
            assert (row[drawn] > 0).all() or (row <= 1e-6 * size_of(case)).all()


def assert_right(index, case):
    truth = truth_of(case)
    assert_neighbours(index, case, truth)
    assert_exact_distances(index, case, truth)
    assert_draws(index, case, truth)
    assert np.isfinite(index.distances(case.Q)).all()
    assert np.isfinite(index.pair_distances(range(len(case.X)), 0)).all()
    assert index.check() <= DRIFT[np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", CASES)
def test_degenerate_data_is_searched_right(name, search, dtype):
    index, case = fitted(CASES[name](), search, dtype)
    assert_right(index, case)
    assert_right(index, updated(index, case, (1.0, 1.0), 0.0))


@pytest.mark.parametrize(
    ("dtype", "scale"), [(dtype, s) for dtype in DTYPES for s in SCALES[dtype]]
)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("where", ["points", "metric", "both"])
def test_any_scale_is_searched_right(where, search, dtype, scale):
    U, X, Q = ordinary()
    X[7] = X[9]
    of_metric = min(scale, LARGEST_METRIC), 1.0
    of = {"points": (1.0, scale), "metric": of_metric, "both": (scale**0.5,) * 2}
    of_U, of_X = of[where]
    index, case = fitted(Case(of_U * U, of_X * X, of_X * Q), search, dtype)
    assert_right(index, case)
    assert_right(index, updated(index, case, (of_U, of_X), 0.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [-20, 20])
def test_estimates_follow_the_scale(power, dtype):
    """A sketch is linear, and a power of two changes no digit."""
    U, X, Q = ordinary()
    scale = 2.0 ** (power if dtype is np.float32 else 20 * power)
    one, _ = fitted(Case(U, X, Q), "certified", dtype)
    other, case = fitted(Case(U, scale * X, scale * Q), "certified", dtype)
    plain = one.distances((case.Q / dtype(scale)).astype(dtype))
    np.testing.assert_allclose(other.distances(case.Q) / scale, plain, rtol=1e-5)
    i = np.arange(N)
    plain = one.pair_distances(i, i[::-1])
    np.testing.assert_allclose(
        other.pair_distances(i, i[::-1]) / scale, plain, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("offset", [1e6, -1e4])
def test_neighbours_far_from_the_origin_stay_exact(offset, search, dtype):
    index, case = fitted(far_away(offset), search, dtype)
    assert_named_exactly(index, case)
    assert_named_exactly(index, updated(index, case, (1.0, 1.0), offset))


def assert_named_exactly(index, case):
    """The neighbours are the nearest; which of two at one distance is left open."""
    truth = truth_of(case)
    distances, indices = index.kneighbors(case.Q, 5)
    named = np.take_along_axis(truth, indices, axis=1)
    best = np.sort(truth, axis=1)[:, :5]
    np.testing.assert_allclose(named.astype(float), best.astype(float), rtol=1e-9)
    assert_close(distances, named, case)


def test_many_points_at_the_largest_scale_are_drawn_by_distance():
    """``n Σ d²``, of which the tree takes the root, is beyond float64 here."""
    n = 20_000
    X = np.ones((n, 1))
    X[::2] = 3
    index = SketchedMahalanobisNeighbors().fit(3e148 * X)
    draws = index.sample([[0.0]], 4000, random_state=0)
    # P = 3/4 for the far half; the tail of this binomial beyond 10% is below 1e-9.
    assert abs((X[draws[0]] == 3).mean() - 0.75) < 0.05


@pytest.mark.parametrize("scale", [1e10, 1e30])
@pytest.mark.parametrize(("n", "d"), [(40, 6), (5000, 40)])
def test_queries_are_much_larger_than_points(n, d, scale):
    """All distances are equal but for rounding, so that bounds exclude nothing."""
    X, Q = 1e-30 * normal(n, d), scale * normal(3, d, seed=1)
    index = SketchedMahalanobisNeighbors(3).fit(X)
    truth = np.linalg.norm(Q, axis=1)[:, np.newaxis]
    for queries in (slice(0, 1), slice(0, 3)):
        distances, indices = index.kneighbors(Q[queries])
        np.testing.assert_allclose(distances, np.tile(truth[queries], 3), rtol=1e-12)
        np.testing.assert_array_equal(indices, np.tile(np.arange(3), (len(indices), 1)))
        everything = np.tile(truth[queries], n)
        np.testing.assert_allclose(index.distances(Q[queries]), everything, rtol=1e-12)
        found = index.radius_neighbors(Q[queries], 1.01 * float(truth.max()))[1]
        assert [len(near) for near in found] == [n] * len(found)


def assert_nearest_named(index, Q, truth):
    """The neighbours are the nearest by distances in float64, up to its rounding."""
    distances, indices = index.kneighbors(Q, 5)
    named = np.take_along_axis(truth, indices, axis=1)
    np.testing.assert_allclose(named, np.sort(truth, axis=1)[:, :5], rtol=1e-12)
    np.testing.assert_allclose(distances, named, rtol=RTOL[distances.dtype.type])


def scaled(dtype, large):
    """Points of which a column is large, and a metric under which it is not."""
    X, scales = normal(4000, 40), np.ones(40)
    scales[3] = large
    return (X * scales).astype(dtype), np.diag(1 / scales)


@pytest.mark.parametrize("n_queries", [1, 80])
@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 1e6), (np.float64, 1e12)])
def test_columns_are_scaled_and_the_metric_back(dtype, large, n_queries):
    """The codes of points with a large column say little of the others."""
    X, U = scaled(dtype, large)
    index = SketchedMahalanobisNeighbors(metric_learner=U).fit(X)
    Q = X[:n_queries] + X[-n_queries:] / dtype(8)
    assert_nearest_named(index, Q, Oracle(U, X).query_all(Q))
    index.update_metric(low_rank=(normal(40, 2), 1e-3 * U @ normal(40, 2, seed=1)))
    assert_nearest_named(index, Q, Oracle(index.components_, X).query_all(Q))


@pytest.mark.parametrize("n_queries", [1, 80])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize(("dtype", "gap"), [(np.float32, 3e-6), (np.float64, 1e-9)])
def test_near_duplicates_are_told_apart(dtype, gap, storage, n_queries):
    """Squared distances are far below the rounding of squared lengths."""
    X = normal(4000, 40)
    X[:200] = X[0] + gap * normal(200, 40, seed=1)
    X = X.astype(dtype)
    U = np.eye(40) + 0.1 * normal(40, 40, seed=2)
    Q = X[:n_queries]
    held = sparse.csr_matrix(X) if storage == "sparse" else X
    index = SketchedMahalanobisNeighbors(metric_learner=U).fit(held)
    truth = Oracle(U, X).query_all(Q)
    assert_nearest_named(index, Q, truth)
    radius = float(np.sort(truth[0])[50:52].mean())
    found = index.radius_neighbors(Q[:1], radius)[1][0]
    np.testing.assert_array_equal(found, np.flatnonzero(truth[0] <= radius))
    sums = index.sum_distances(Q, 0, 200)
    np.testing.assert_allclose(sums, (truth[:, :200] ** 2).sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("size", "weight"), [(1.5e308, 1.0), (1e150, 1e90)])
@pytest.mark.parametrize("method", ["kneighbors", "distances", "radius_neighbors"])
def test_queries_too_large_for_distances_are_refused_without_warnings(
    method, size, weight, count
):
    X = np.random.default_rng(0).normal(size=(N, D))
    index = SketchedMahalanobisNeighbors(metric_learner={"U": weight * np.eye(D)})
    query = getattr(index.fit(X), method)
    with pytest.raises(ValueError, match="too large"):
        query(np.full((count, D), size))
