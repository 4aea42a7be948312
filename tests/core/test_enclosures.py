"""Enclosed distances are within 1 ± eps, always; private names, to take every way."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from skmahal import MetricMaintenance
from skmahal._core import enclosures
from skmahal._core.kernels import available
from skmahal._core.plan import Shares, choose, cost_of_all, open_shares, samples
from tests.core.data import clusters, decaying
from tests.core.test_search import GRID, HOSTILE, metric_of, searcher, space_of
from tests.oracle import Oracle

pytestmark = pytest.mark.skipif(not available(), reason="needs numba")
RNG = np.random.default_rng(0)
EVERY = np.arange(10_000)

# A way, and the number of queries that go it.
WAYS = {"lead": 7, "lead, one": 1, "codes": 7, "codes, one": 1}


def enclosed(search, Q, eps, way):
    """Distances in one way, and how many points it left open."""
    way = way.split(",")[0]
    one = way if search.r_one else "codes"
    search.plan = search.plan._replace(all_many=way, all_one=one)
    queries = search.queries(Q)
    D = np.empty((len(Q), search.n), search.space.rows.dtype)
    if search.are_far(queries):
        search.distances(queries, D)
        return D, D.size
    enclosures.distances(search, queries, eps, D)
    # A distance that is exact is one that bounds have left open.
    exact = np.sqrt(
        [search.squares_to(queries, at, EVERY[: search.n]) for at in range(len(Q))]
    )
    return D, int(np.sum(exact.astype(D.dtype) == D))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", [None, "full", "ill-conditioned"])
@pytest.mark.parametrize("name", HOSTILE)
def test_distances_are_within_eps_on_data_made_to_break_bounds(name, metric, dtype):
    X, rng = HOSTILE[name].astype(dtype), np.random.default_rng(1)
    U = None if metric is None else rng.normal(size=(24, 24))
    if metric == "ill-conditioned":
        U = U * 10.0 ** np.linspace(-5, 5, 24)
    Q = np.vstack([X[:3], X[5:8] + X.std(axis=0), 3 * X[9:10] - 2 * X[11:12]])
    Q, search = Q.astype(dtype), searcher(X, U, r=8)
    truth = Oracle(U, X).query_all(Q)
    # Where all digits cancel in the oracle too, its own rounding is allowed.
    atol = 4e-8 * truth.max() * np.finfo(np.float64).eps ** 0.25
    for way, count in WAYS.items():
        for eps in (1e-3, 0.05, 0.2, 0.7):
            found, _ = enclosed(search, Q[:count], eps, way)
            error = np.abs(found - truth[:count])
            assert (error <= eps * truth[:count] + atol).all(), (way, eps)


@pytest.mark.parametrize("way", WAYS)
def test_most_points_are_enclosed_where_bounds_are_narrow(way):
    X = decaying(4000, 64, rate=0.8)
    search = searcher(X, None, r=24)
    Q = decaying(4100, 64, rate=0.8)[4000:][: WAYS[way]]
    found, left = enclosed(search, Q, 0.2, way)
    assert left < 0.02 * found.size
    errors = np.abs(found / cdist(Q, X) - 1)
    assert 1e-6 < errors.max() <= 0.2


@pytest.mark.slow
def test_ten_million_distances_at_the_edge_of_their_bounds():
    """Queries along what codes and leading coordinates leave out of a point."""
    X = clusters(5000, 32, count=40, noise=0.4).astype(np.float32)
    search, eps, seen = searcher(X, None, r=8), 0.1, 0
    codes, steps, *_ = search.codes
    x = (X - search.space.origin) / search.unit
    coded = steps[:, None].astype(float) * codes[:, :32]
    lost = {"codes": x - coded, "lead": x - x @ search.P.T @ search.P}
    for name, gaps in lost.items():
        gaps = gaps / np.linalg.norm(gaps, axis=1, keepdims=True)
        for length in (-2.0, -0.3, -0.01, 0.01, 0.3, 2.0):
            Q = (X[:180] + length * gaps[:180]).astype(np.float32)
            truth = cdist(Q, X)
            search.plan = search.plan._replace(all_many=name, all_one=name)
            for some in (slice(None), *(slice(i, i + 1) for i in range(180))):
                queries = search.queries(Q[some])
                found = np.empty((len(queries.squares), search.n), np.float32)
                enclosures.distances(search, queries, eps, found)
                assert (np.abs(found - truth[some]) <= eps * truth[some]).all()
                seen += found.size
    assert seen >= 10**7


@pytest.mark.parametrize("name", GRID)
def test_predicted_shares_are_those_that_are_counted(name):
    X, U = metric_of(name)
    search, eps = searcher(X, U, r=48), 0.2
    chosen, _, judged = samples(*X.shape, np.random.default_rng(0))
    shares = open_shares(space_of(X, U), chosen, judged, search.P, 10, eps)
    Q = X[chosen] + 1e-9
    _, left = enclosed(search, Q, eps, "lead")
    counted = left / (len(Q) * len(X))
    assert abs(shares.all[48] - counted) <= 0.02 + 0.2 * counted
    left = sum(enclosed(search, Q[i : i + 1], eps, "codes")[1] for i in range(len(Q)))
    assert abs(shares.codes - left / (len(Q) * len(X))) <= 0.02


def test_the_choice_is_the_cheapest_and_isotropic_points_are_not_led():
    open_ = dict.fromkeys((0, 32, 256), 1.0)
    plan = choose(20_000, 512, Shares(open_, open_, 0.0))
    assert (plan.all_many, plan.all_one, plan.r_many, plan.r_one) == (
        "codes",
        "codes",
        0,
        0,
    )
    narrow = {0: 1.0, 32: 0.2, 64: 0.0}
    for n, d in ((1000, 64), (50_000, 512), (8000, 5000)):
        plan = choose(n, d, Shares(dict.fromkeys(narrow, 1.0), narrow, 0.0))
        for name, way in (("all many", plan.all_many), ("all one", plan.all_one)):
            costs = plan.costs[name]
            cheap = costs[way] == min(costs.values()) < costs["exact"] / 1.25
            assert cheap or (
                way == "exact" and min(costs.values()) >= costs[way] / 1.25
            )
    assert plan.all_many == "lead"
    lead = cost_of_all("lead", 8000, 5000, plan.r_many, 0.0, many=True)
    assert plan.costs["all many"]["lead"] == lead


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_do_not_depend_on_threads(dtype):
    X = decaying(9000, 64, rate=0.8).astype(dtype)
    index = MetricMaintenance(None, X, seed=0).index
    assert index.prepare().encloses(8)
    one, two = (index.distances(X[:8], jobs, enclosed=True) for jobs in (1, 3))
    np.testing.assert_array_equal(one, two)


def test_a_tiny_eps_is_kept_by_exact_distances():
    X = decaying(3000, 40, rate=0.8)
    index = MetricMaintenance(None, X, eps=1e-7, seed=0)
    assert index.engine == "exact"
    np.testing.assert_allclose(index.query_all(X[:5]), cdist(X[:5], X), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e6, 1e9, 1e10, 1e11, 1e12, 1e14])
def test_queries_far_from_all_points(scale, dtype):
    """Products of their squares are too large for float32 long before squares are."""
    X = decaying(3000, 64, rate=0.8).astype(dtype)
    index = MetricMaintenance(None, X, adaptive=True)
    Q = (scale * np.random.default_rng(1).normal(size=(5, 64))).astype(dtype)
    truth = Oracle(None, X).query_all(Q)
    for some in (slice(0, 5), slice(0, 1)):
        assert np.abs(index.query_all(Q[some]) / truth[some] - 1).max() <= 0.2


@pytest.mark.parametrize("eps", [1e-5, 1e-4, 1e-2])
def test_rounding_of_exact_distances_is_within_a_small_eps(eps):
    """Points in float32 of many features, and queries so near that digits are lost."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5000)).astype(np.float32) + 3
    index = MetricMaintenance(None, X, adaptive=True, eps=eps)
    Q = (X[:8] + 0.058 * rng.normal(size=(8, 5000))).astype(np.float32)
    truth = cdist(Q.astype(float), X.astype(float))
    assert np.abs(index.query_all(Q) / truth - 1).max() <= eps + 1e-7


def test_an_audit_looks_at_enclosed_distances(monkeypatch):
    X = decaying(3000, 64, rate=0.8)
    index = MetricMaintenance(None, X, adaptive=True)
    found = index.audit(500, random_state=0)
    assert (found.passed, found.allowed, found.outside) == (True, 0, 0)
    assert 1e-6 < found.ratios[1.0] - 1 <= 0.2
    # Bounds that are wrong have to be made: no public name has them.
    whole = enclosures.distances

    def wrong(search, queries, eps, out, jobs=1):
        whole(search, queries, eps, out, jobs)
        out[:, ::50] *= 1.3

    monkeypatch.setattr(enclosures, "distances", wrong)
    assert not index.audit(500, random_state=0).passed
