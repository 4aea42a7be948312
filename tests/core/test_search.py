"""Bounds, the ways of a query and the choice among them.

Private names: all ways must find the same neighbours, and which way a query goes must
not show in its answer.
"""

import numpy as np
import pytest

from skmahal._core import search
from skmahal._core.codes import encode, leading_directions, power_of_two
from skmahal._core.kernels import available
from skmahal._core.plan import Shares, choose, cost, open_shares, prepare, samples
from skmahal._core.points import row_squares
from skmahal._core.search import DenseSearch, Space
from tests.core.data import clusters, decaying
from tests.oracle import Oracle, assert_nearest

RNG = np.random.default_rng(0)
WAYS = ("lead", "rows", "codes", "scan", "transformed")
compiled = pytest.mark.skipif(not available(), reason="needs numba")

# Points made to break bounds: far from zero, of extreme sizes, nearly equal, of sizes
# that differ, with many ties, and with numbers below the smallest normal ones.
HOSTILE = {
    "normal": RNG.normal(size=(700, 24)),
    "offset": RNG.normal(size=(700, 24)) + 1e6,
    "tiny": 1e-15 * RNG.normal(size=(700, 24)),
    "huge": 1e15 * RNG.normal(size=(700, 24)),
    "near duplicates": 1 + 1e-7 * RNG.normal(size=(700, 24)),
    "clusters of near duplicates": np.repeat(RNG.normal(size=(70, 24)), 10, axis=0)
    + 1e-6 * RNG.normal(size=(700, 24)),
    "columns of all sizes": RNG.normal(size=(700, 24)) * 10.0 ** np.arange(-12, 12),
    "rows of all sizes": RNG.normal(size=(700, 24))
    * 10.0 ** RNG.uniform(-8, 8, (700, 1)),
    "one far point": np.vstack([RNG.normal(size=(699, 24)), np.full((1, 24), 1e12)]),
    "ties": RNG.integers(0, 2, size=(700, 24)).astype(float),
    "equal": np.ones((700, 24)),
    "zero": np.zeros((700, 24)),
    "denormal": np.where(
        RNG.random((700, 24)) < 0.5, 1e-310, RNG.normal(size=(700, 24))
    ),
}


def space_of(X, U):
    origin = X.mean(axis=0, dtype=float).astype(X.dtype).astype(float)
    centred = X - origin
    rows = centred if U is None else centred @ U.T
    U = np.zeros((0, X.shape[1])) if U is None else U
    return Space(X, origin, row_squares(rows), row_squares(centred), U)


def unit_of(space):
    return power_of_two(np.sqrt(space.sizes.max()))


def searcher(X, U, r):
    space = space_of(X, U)
    P = leading_directions(X - space.origin, r, np.random.default_rng(0))
    coded = encode(X, space.origin, unit_of(space), P)
    coded = coded.with_lead(len(P), len(P), X, space.origin)
    coded.check(X, space.origin)
    U, unit = np.eye(X.shape[1]) if U is None else U, np.sqrt(space.norms.max())
    none = np.zeros((0, len(U)))
    images = encode(X, space.origin, power_of_two(unit), none, U=U)
    return DenseSearch(space, coded, images=images)


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", [None, "full", "low rank", "steep", "tall"])
@pytest.mark.parametrize("name", HOSTILE)
def test_every_way_finds_the_neighbours_of_brute_force(name, metric, dtype):
    X, rng = HOSTILE[name].astype(dtype), np.random.default_rng(1)
    U = {
        None: None,
        "full": rng.normal(size=(24, 24)),
        "low rank": rng.normal(size=(5, 24)),
        "steep": rng.normal(size=(24, 24)) * 10.0 ** np.linspace(-5, 5, 24),
        "tall": rng.normal(size=(192, 24)) * 10.0 ** np.linspace(-5, 5, 24),
    }[metric]
    Q = np.vstack([X[:3], X[5:8] + X.std(axis=0), 3 * X[9:10] - 2 * X[11:12]])
    Q = Q.astype(dtype)
    truth = Oracle(U, X).query_all(Q)
    found = searcher(X, U, r=4)
    for way in WAYS:
        for queries in (Q, Q[:1]):
            squares, indices = found.kneighbors(found.queries(queries), 5, way=way)
            # Where all digits cancel in the oracle too, its own rounding is allowed.
            atol = 4e-8 * truth.max() * np.finfo(np.float64).eps ** 0.25
            assert_nearest(np.sqrt(squares), indices, truth[: len(queries)], 1e-7, atol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", [None, "full"])
@pytest.mark.parametrize("name", HOSTILE)
def test_brute_force_without_compiled_loops(name, metric, dtype, monkeypatch):
    X = HOSTILE[name].astype(dtype)
    U = None if metric is None else np.random.default_rng(1).normal(size=(24, 24))
    Q = np.vstack([X[:3], X[5:8] + X.std(axis=0)]).astype(dtype)
    truth = Oracle(U, X).query_all(Q)
    monkeypatch.setattr(search, "available", lambda: False)
    found = DenseSearch(space_of(X, U))
    squares, indices = found.kneighbors(found.queries(Q), 5)
    atol = 4e-8 * truth.max() * np.finfo(np.float64).eps ** 0.25
    assert_nearest(np.sqrt(squares), indices, truth, 1e-7, atol)


@compiled
@pytest.mark.parametrize("K", [1, 7, 130])
@pytest.mark.parametrize("n", [1, 31, 128, 129, 1000])
def test_blocks_and_runs_end_anywhere(n, K):
    X = np.random.default_rng(n).normal(size=(n, 5))
    found, K = searcher(X, None, r=2), min(n, K)
    Q = np.random.default_rng(1).normal(size=(5, 5))
    truth = Oracle(None, X).query_all(Q)
    for way in WAYS[:3]:
        for queries in (Q, Q[:4], Q[:1]):
            squares, indices = found.kneighbors(found.queries(queries), K, way=way)
            given = truth[: len(queries)], 1e-9, 1e-12
            assert_nearest(np.sqrt(squares), indices, *given)


@pytest.mark.parametrize("way", [None, *WAYS])
def test_ties_go_to_the_lower_position(way):
    X = np.repeat(np.arange(20.0), 30)[:, np.newaxis]
    found = searcher(X, None, r=1)
    squares, indices = found.kneighbors(found.queries([[7.0]]), 40, way=way)
    np.testing.assert_array_equal(indices[0, :30], np.arange(210, 240))
    np.testing.assert_array_equal(indices[0, 30:], np.arange(180, 190))
    np.testing.assert_array_equal(squares[0], [0.0] * 30 + [1.0] * 10)


def test_without_compiled_loops_neighbours_are_the_same(monkeypatch):
    X, U = RNG.normal(size=(500, 12)), RNG.normal(size=(12, 12))
    truth = Oracle(U, X).query_all(X[:9])
    monkeypatch.setattr(search, "available", lambda: False)
    found = DenseSearch(space_of(X, U))
    squares, indices = found.kneighbors(found.queries(X[:9]), 5)
    assert_nearest(np.sqrt(squares), indices, truth, 1e-9, 1e-9)
    assert squares[:, 0].max() == 0


@compiled
def test_queries_far_from_all_points_are_answered():
    X = RNG.normal(size=(2000, 30)).astype(np.float32)
    found = searcher(X, None, r=8)
    Q = (1e4 * RNG.normal(size=(70, 30))).astype(np.float32)
    truth = Oracle(None, X).query_all(Q)
    for way in (None, "lead"):
        squares, indices = found.kneighbors(found.queries(Q), 5, way=way)
        assert_nearest(np.sqrt(squares), indices, truth, 1e-9, 1e-9)


@compiled
def test_single_queries_from_outside_and_then_from_the_data():
    X, rng = decaying(6000, 96, rate=0.8), np.random.default_rng(2)
    found = searcher(X, None, r=8)
    Q = np.vstack([rng.uniform(X.min(), X.max(), (40, 96)), X[:40] + 0.001])
    truth, pauses = Oracle(None, X).query_all(Q), []
    for at in range(len(Q)):
        given = found.queries(Q[at : at + 1])
        squares, indices = found.kneighbors(given, 5, way="lead")
        assert_nearest(np.sqrt(squares), indices, truth[at : at + 1], 1e-7, 1e-9)
        pauses.append(found._pauses["lead"])
    # Leading coordinates are of no use for the first queries: three of 40 try them.
    assert pauses[:40].count(search._PAUSE) == 3
    assert set(pauses[60:]) == {0}


GRID = {
    "clusters": (clusters(6000, 96, count=60, noise=0.1), None),
    "decaying": (decaying(6000, 96, rate=0.93), None),
    "isotropic": (RNG.normal(size=(6000, 96)), None),
    "whitened": (decaying(6000, 96, rate=0.93), "whitened"),
}


def opened(search, queries, K):
    """Mean number of codes that are read for a query."""
    shape = len(queries[0]), K
    found = np.full(shape, search.n), np.full(shape, np.inf), np.zeros(shape[0], int)
    search._find(queries, found, slice(0, shape[0]), "lead", 1 << 24)
    return found[2].mean()


def metric_of(name):
    """The points of a grid, and U of a whitening metric or None."""
    X, metric = GRID[name]
    if metric is None:
        return X, None
    return X, whitening(X[:1000])


@compiled
@pytest.mark.parametrize("name", GRID)
def test_predicted_shares_are_those_that_are_counted(name):
    X, U = metric_of(name)
    space, K = space_of(X, U), 10
    chosen, seen, judged = samples(*X.shape, np.random.default_rng(0))
    P = leading_directions(X[seen] - space.origin, 48, np.random.default_rng(0))
    predicted = open_shares(space, chosen, judged, P, K, 0.2).near
    coded = encode(X, space.origin, unit_of(space), P)
    for r, share in predicted.items():
        found = DenseSearch(space, coded.with_lead(r, r, X, space.origin))
        counted = opened(found, found.queries(X[1:3000:100]), K) / len(X)
        assert share <= 3 * counted + 0.02, (r, share, counted)
        assert counted <= 3 * share + 0.02, (r, share, counted)


def left_in_vain(search, queries, way, K):
    """Mean share of points that bounds leave and that are no neighbours."""
    squares, _ = search.kneighbors(queries, K)
    limits = (squares[:, -1] - queries.squares) / search.norm_unit
    tiles = search._tiles(way, queries, 1 << 24)
    left = [
        np.count_nonzero(products + norms + shifts[:, None] <= limits[:, None])
        for _, products, norms, shifts in tiles
    ]
    return (sum(left) / len(limits) - K) / search.n


@compiled
@pytest.mark.parametrize("name", GRID)
def test_predicted_shares_in_vain_are_those_that_are_counted(name):
    X, U = metric_of(name)
    X, U = X.astype(np.float32), np.eye(96) if U is None else U
    found, K = searcher(X, U, r=4), 10
    chosen, _, judged = samples(*X.shape, np.random.default_rng(0))
    shares = open_shares(found.space, chosen, judged, found.P, K, 0.2)
    assert shares.k == 96
    for way, share in shares.vain.items():
        counted = left_in_vain(found, found.queries(X[1:3000:100]), way, K)
        assert share <= 2 * counted + 0.01, (way, share, counted)
        assert counted <= 2 * share + 0.01, (way, share, counted)


@compiled
def test_transformed_rows_have_codes_where_the_metric_stretches_errors():
    X, rng = decaying(6000, 256, rate=0.95), np.random.default_rng(0)
    coded, plan = prepare(space_of(X, whitening(X)), None, 10, 0.2)
    assert plan[:2] == ("transformed", "transformed")
    assert plan.missed(1) > 0
    assert plan.missed(100) > 0
    mild = np.eye(256) + 0.01 * rng.normal(size=(256, 256))
    coded, plan = prepare(space_of(X, mild), coded, 10, 0.2)
    assert not plan.uses_images
    assert plan.missed(1) == plan.missed(100) == 0


def whitening(X):
    """U of a metric in which all directions count the same."""
    values, vectors = np.linalg.eigh(np.cov(X.T))
    return (vectors / np.sqrt(values)).T.copy()


def test_the_choice_is_the_cheapest_of_all_ways():
    shares = {0: 1.0, 16: 0.3, 64: 0.01}
    for n, d in ((1000, 64), (50_000, 512), (8000, 5000)):
        plan = choose(n, d, Shares(shares, shares, 0.0))
        assert plan.costs["many"][plan.many] == min(plan.costs["many"].values())
        assert plan.costs["one"][plan.one] == min(plan.costs["one"].values())
        for name, r in (("many", plan.r_many), ("one", plan.r_one)):
            lead = cost("lead", n, d, r, shares[r], many=name == "many")
            assert getattr(plan, name) != "lead" or plan.costs[name]["lead"] == lead


def test_what_leaves_all_points_open_is_not_chosen():
    shares = dict.fromkeys((0, 32, 256), 1.0)
    plan = choose(20_000, 512, Shares(shares, shares, 0.0))
    assert plan[:4] == ("codes", "codes", 0, 0)


@pytest.mark.parametrize("length", [0.0, 1e-300, 0.3, 1.0, 5.0, 1e300])
def test_units_are_powers_of_two_at_or_above_a_length(length):
    unit = power_of_two(length)
    assert length <= unit
    assert np.frexp(unit)[0] == 0.5


# --- numbers at the ends of their range -----------------------------------------------


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e17, 1e19, 1e20, 1e22, 1e24, 1e30])
def test_one_point_is_so_large_that_products_of_others_underflow(size, dtype):
    X = np.random.default_rng(0).normal(size=(96, 4)).astype(dtype)
    X[-1] = size if dtype == np.float64 else min(size, 1e18)
    space = space_of(X, None)._replace(origin=np.zeros(4))
    squares = row_squares(X)
    space = space._replace(norms=squares, sizes=squares)
    P = leading_directions(X, 2, np.random.default_rng(0))
    coded = encode(X, space.origin, unit_of(space), P)
    images = encode(X, space.origin, unit_of(space), P[:0])
    coded = coded.with_lead(2, 2, X, space.origin)
    found = DenseSearch(space, coded, images=images)
    Q = (1.01 * X[:5]).astype(dtype)
    truth = Oracle(None, X).query_all(Q)
    for way in WAYS:
        for queries in (Q, Q[:1]):
            squares, indices = found.kneighbors(found.queries(queries), 3, way=way)
            assert_nearest(np.sqrt(squares), indices, truth[: len(queries)], 1e-7, 0)
    for at, (near, _) in enumerate(found.within(found.queries(Q), 1.0, 1 << 20)):
        np.testing.assert_array_equal(near, np.flatnonzero(truth[at] <= 1.0))


@compiled
@pytest.mark.parametrize("way", WAYS)
def test_queries_below_the_smallest_normal_number(way):
    X = np.random.default_rng(0).normal(size=(300, 4))
    X -= X.mean(axis=0)
    space = space_of(X, None)._replace(origin=np.zeros(4))
    P = leading_directions(X, 2, np.random.default_rng(0))
    coded = encode(X, space.origin, unit_of(space), P)
    images = encode(X, space.origin, unit_of(space), P[:0])
    coded = coded.with_lead(2, 2, X, space.origin)
    found = DenseSearch(space, coded, images=images)
    Q = np.array([[1e-310, 0.0, 0.0, 0.0]])
    squares, indices = found.kneighbors(found.queries(Q), 3, way=way)
    assert_nearest(np.sqrt(squares), indices, Oracle(None, X).query_all(Q), 1e-7, 0)


@compiled
@pytest.mark.parametrize("way", WAYS)
def test_every_position_is_that_of_a_point_under_a_tiny_metric(way):
    X = np.random.default_rng(0).normal(size=(300, 4))
    found = searcher(X, 1e-155 * np.eye(4), 2)
    for count in (1, 5):
        _, indices = found.kneighbors(found.queries(X[:count]), 3, way=way)
        assert indices.max() < 300


def test_rows_of_denormal_size_have_distances():
    X = (1e-40 * np.random.default_rng(0).normal(size=(12, 4))).astype(np.float32)
    found = DenseSearch(space_of(X, None))
    _, indices = found.kneighbors(found.queries(X[:3]), 4)
    np.testing.assert_array_equal(indices[:, 0], [0, 1, 2])
    assert np.isfinite(found.squares(found.queries(X))[0]).all()


def test_an_offset_costs_no_more_rows():
    """Rounding of an origin far away is no part of bounds from centred rows."""
    X = np.random.default_rng(0).normal(size=(600, 4))
    for offset in (0.0, 1e6):
        found = searcher(X + offset, None, r=2)
        queries = found.queries(X[:1] + offset)
        bounds = [
            p + norms + shifts[0]
            for _, p, norms, shifts in found._tiles("rows", queries, 1 << 20)
        ]
        exact = row_squares(X - X[0])
        limit = (np.sort(exact)[10] - queries.squares[0]) / found.norm_unit
        assert np.count_nonzero(np.concatenate(bounds, axis=1) <= limit) < 30


def test_leading_coordinates_that_are_none_are_not_chosen_for_single_queries():
    shares = {0: 0.001, 32: 0.0009}
    plan = choose(50_000, 64, Shares(shares, shares, 0.0))
    assert plan.one != "lead" or plan.r_one > 0
    assert choose(50_000, 64, Shares({0: 0.001}, {0: 1.0}, 0.0)).one == "codes"


def test_arrays_of_queries_stay_writable():
    X = np.random.default_rng(0).normal(size=(60, 4))
    found, Q = DenseSearch(space_of(X, None)), np.ones((2, 4))
    found.kneighbors(found.queries(Q), 3)
    Q += 1
