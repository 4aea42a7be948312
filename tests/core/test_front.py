"""The choice of columns that a neighbour query looks at, held against a grid."""

import numpy as np
import pytest

from skmahal import MetricMaintenance
from skmahal._core import front, kernels
from tests.core.data import clusters, decaying

K = 10


class WholeSketch(MetricMaintenance):
    """Looks at all rows of one sketch."""

    def _heads(self, R):
        return [self.m]


def counted_cost(X, Q, lead, head):
    """Mean cost of queries by what they truly read, for given columns."""
    index = WholeSketch(None, X, m=head, L=5, lead=lead, seed=1)
    exact = ((Q[:, np.newaxis] - X) ** 2).sum(axis=2)
    limits = np.sort(exact, axis=1)[:, K - 1 : K]
    picks = index._picks(Q, 1)
    bounds = [
        index._bounds(q[np.newaxis], pick[np.newaxis], K).multiplied()[0]
        for q, pick in zip(Q, picks, strict=True)
    ]
    n, k = X.shape
    candidates = (np.array(bounds) <= limits).sum(axis=1)
    looked_at = front.cost(n, k, lead + head, 0)
    each = front.cost(n, k, lead + head, candidates)
    return np.minimum(each, looked_at + front.exact_cost(n, k)).mean()


DATA = {
    "clusters": lambda: clusters(2040, 200, 40, 0.5),
    "decaying": lambda: decaying(2040, 200, 0.97),
    "steep": lambda: decaying(2040, 200, 0.8),
}


@pytest.mark.parametrize("name", DATA)
def test_the_choice_is_near_the_best_of_a_grid(name):
    data = DATA[name]()
    X, Q = data[:2000], data[2000:]
    index = MetricMaintenance(None, X, m=64, L=5, lead="auto", seed=0)
    grid = {
        (r, m): counted_cost(X, Q, r, m)
        for r in (0, 16, 64)
        for m in (8, 24, 64, 192, 320)
    }
    chosen = counted_cost(X, Q, index.lead, index._front.head)
    assert chosen <= 1.3 * min(grid.values())
    # The grid is not flat: a wrong choice would be seen.
    assert 1.3 * min(grid.values()) < max(grid.values())


@pytest.mark.parametrize("name", DATA)
def test_predicted_costs_are_near_the_counted_ones(name):
    data = DATA[name]()
    X, Q = data[:2000], data[2000:]
    index = MetricMaintenance(None, X, m=64, L=5, lead="auto", seed=0)
    counted = counted_cost(X, Q, index.lead, index._front.head)
    assert counted / 2 <= index._front.cost <= 2 * counted


def test_brute_force_is_chosen_where_no_point_stands_out():
    flat = np.random.default_rng(0).normal(size=(3000, 100))
    assert not MetricMaintenance(None, flat, eps=0.4, lead="auto").looks_at_sketches
    apart = clusters(3000, 300, 40, 0.1)
    assert MetricMaintenance(None, apart, eps=0.4, lead="auto").looks_at_sketches


def test_who_sets_m_has_decided_for_sketches(monkeypatch):
    flat = np.random.default_rng(0).normal(size=(500, 100))
    asked = []

    def search(bounds, *args):
        asked.append(bounds.multiplied().shape)
        return nearest(bounds, *args)

    nearest = kernels.nearest
    monkeypatch.setattr(kernels, "nearest", search)
    index = MetricMaintenance(None, flat, m=8, seed=0)
    monkeypatch.setattr(index, "_find_exactly", lambda *_: None)
    monkeypatch.setattr(index, "_settled", lambda *_: None)
    index.kneighbors(flat[:1], 2)
    assert asked == [(1, 500)]


def test_rows_of_a_sketch_that_are_not_alike_are_looked_at_together():
    X = clusters(500, 300, 10, 0.1)
    for sketch in ("countsketch", "srht"):
        index = MetricMaintenance(None, X, m=64, R=1, sketch=sketch, seed=0)
        assert index.head == 64
    assert MetricMaintenance(None, X, m=64, R=1, seed=0).head < 64
    assert MetricMaintenance(None, X, m=64, R=3, seed=0).head == 64


def test_several_sketches_are_looked_at_as_one_where_points_hardly_differ():
    """With clusters that nearly touch, more rows are worth more than they cost."""
    X = clusters(2010, 1500, 40, 1.0)
    index = MetricMaintenance(None, X[:2000], m=32, L=10, lead=0, seed=0)
    assert index.bank > 1
    found, _ = index.kneighbors(X[2000:], K)
    exact = ((X[2000:, np.newaxis] - X[:2000]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found**2, np.sort(exact, axis=1)[:, :K])
    single = MetricMaintenance(None, X[:2000], m=32, L=10, R=1, lead=0, seed=0)
    assert single.bank == 1


def test_a_budget_is_served_by_every_sketch():
    """Also where certified queries look at several as one."""
    X = clusters(2040, 1500, 40, 1.0)
    index = MetricMaintenance(None, X[:2000], m=32, L=10, lead=0, seed=0)
    assert index.bank > 1
    used = set()
    estimates = index._estimates

    def seen(u, picks):
        used.update(picks.ravel().tolist())
        return estimates(u, picks)

    index._estimates = seen
    index.kneighbors(X[2000:], 5, candidates=50)
    assert len(used) > 10 // index.bank


def test_votes_for_few_neighbours_are_bounds_though_many_were_planned_for():
    """R follows from K at the time of the query, the head from what was expected."""
    X = clusters(510, 300, 20, 0.2)
    index = MetricMaintenance(None, X[:500], m=64, L=10, lead=0, seed=0)
    assert index._front.head != index.m
    index._certificate = lambda misses, k=None: (5, 0.9)
    found, _ = index.kneighbors(X[500:], 5)
    exact = ((X[500:, np.newaxis] - X[:500]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found**2, np.sort(exact, axis=1)[:, :5])


def test_a_plan_is_kept_while_the_metric_goes_a_short_way_and_then_made_anew():
    X = decaying(600, 120, 0.9)
    index = MetricMaintenance(np.eye(120), X, m=16, lead="auto", seed=0)
    index.prepare()
    first, lead = index._front, index._lead.map
    rng = np.random.default_rng(0)
    for step in range(1, 5):
        U = index.U + 0.2 * np.linalg.qr(rng.normal(size=(120, 120)))[0]
        index.set_metric(U)
        kept = index._front is first and index._lead.map is lead
        # Twice a fifth of its size, and the third time it has gone too far.
        assert kept == (step < 3)
        index.check()
        exact = np.linalg.norm((X[:5, np.newaxis] - X) @ U.T, axis=2)
        found, _ = index.kneighbors(X[:5], 3)
        np.testing.assert_allclose(found, np.sort(exact, axis=1)[:, :3], atol=1e-6)


def test_a_metric_that_has_nothing_to_do_with_the_last_is_planned_for():
    X = decaying(600, 120, 0.9)
    index = MetricMaintenance(np.eye(120), X, m=16, lead="auto", seed=0)
    lead = index._lead.map
    index.set_metric(np.random.default_rng(0).normal(size=(120, 120)))
    assert index._lead.map is not lead


def test_one_point_is_enough():
    index = MetricMaintenance(None, np.ones((1, 100)), lead="auto")
    assert index.kneighbors(np.zeros((2, 100)), 1)[0].tolist() == [[10.0], [10.0]]
