from importlib.util import find_spec

import numpy as np
import pytest

from skmahal._core import compiled
from skmahal._core.exact import ExactMaintenance
from skmahal._core.kernels import HeldCandidates, TakenCandidates
from skmahal._core.state import State
from skmahal._core.tiles import row_squares
from skmahal._core.tree import DistanceTree

K = 4


class Planted:
    """A tree over rows that are kept beside it, changed alike."""

    def __init__(self, n, bucket, rng):
        self.rng, self.rows = rng, rng.normal(size=(n, K))
        self.tree = DistanceTree(bucket)
        step = 3 * bucket
        blocks = (
            (slice(a, a + step), self.rows[a : a + step]) for a in range(0, n, step)
        )
        self.tree.build(blocks, row_squares(self.rows), K)

    def append(self, count):
        new = self.rng.normal(size=(count, K))
        self.tree.append(new)
        self.rows = np.vstack([self.rows, new])

    def assign(self, count):
        i = self.rng.permutation(len(self.rows))[:count]
        new = self.rng.normal(size=(len(i), K))
        self.rows[i] = new
        self.tree.assign(i, self.between)

    def remove(self, count):
        i = np.sort(self.rng.permutation(len(self.rows))[:count])
        self.rows = np.delete(self.rows, i, axis=0)
        self.tree.remove(i, self.between)

    def move(self, rank):
        W, T = (
            self.rng.normal(size=(K, rank)),
            self.rng.normal(size=(len(self.rows), rank)),
        )
        self.rows = self.rows + T @ W.T
        self.tree.move(W, T, row_squares(self.rows))

    def between(self, start, stop):
        return self.rows[start:stop]

    def squares(self, q, start, stop):
        return row_squares(self.rows[start:stop] - q)

    def candidates(self, Q, held=True):
        if not held:
            return TakenCandidates(Q, lambda i: self.rows[i])
        none = np.empty((0, K)), np.empty((0, len(self.rows)))
        return HeldCandidates(Q, self.rows, *none)

    def check(self):
        self.tree.check(self.rows, row_squares(self.rows), 1e-9)
        Q = self.rng.normal(size=(2, K))
        n = len(self.rows)
        for start, stop in [(0, n), *np.sort(self.rng.integers(0, n + 1, (8, 2)))]:
            found = self.tree.squared_sums(
                Q,
                start,
                stop,
                lambda a, b: np.stack([self.squares(q, a, b) for q in Q]),
            )
            exact = [self.squares(q, start, stop).sum() for q in Q]
            np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bucket", [1, 2, 7, 128])
@pytest.mark.parametrize("n", [1, 5, 300])
def test_sums_follow_any_change_without_a_rebuild(n, bucket, monkeypatch):
    planted = Planted(n, bucket, np.random.default_rng(n + bucket))
    monkeypatch.setattr(DistanceTree, "build", pytest.fail)
    for count in (1, 3, 40, 200):
        planted.append(count)
        planted.check()
        planted.move(2)
        planted.assign(min(count, len(planted.rows)))
        planted.check()
        planted.remove(len(planted.rows) - 1 if count == 200 else count)
        planted.check()


def test_removals_do_not_leave_a_trail_of_empty_or_tiny_buckets():
    planted = Planted(2000, 16, np.random.default_rng(0))
    while len(planted.rows) > 40:
        planted.remove(len(planted.rows) // 2)
        planted.check()
    assert len(planted.tree.counts) <= 4 * len(planted.rows) / 16 + 1


def draw(planted, q, size, power=1):
    points = planted.candidates(q[np.newaxis])
    rng = np.random.default_rng(0)
    return planted.tree.sample(q[np.newaxis], size, power, rng, points)[0]


def test_all_distances_zero_gives_uniform_draws():
    planted = Planted(30, 8, np.random.default_rng(0))
    planted.remove(29)
    planted.rows[:] = 2.0
    planted.tree.build(
        iter([(slice(0, 1), planted.rows)]), row_squares(planted.rows), K
    )
    for _ in range(3):
        planted.tree.append(planted.rows[:1])
        planted.rows = np.vstack([planted.rows, planted.rows[:1]])
    assert set(draw(planted, np.full(K, 2.0), 100)) == {0, 1, 2, 3}


@pytest.mark.parametrize("power", [1, 2])
def test_a_point_at_distance_zero_is_never_drawn(power):
    planted = Planted(20, 4, np.random.default_rng(0))
    assert 7 not in draw(planted, planted.rows[7], 2000, power)


def test_one_point_that_dwarfs_all_others_is_still_drawn_in_proportion():
    planted = Planted(3000, 16, np.random.default_rng(0))
    planted.rows *= 1e-6
    planted.rows[1234] = 1e6
    planted.tree.build(
        ((slice(a, a + 16), planted.rows[a : a + 16]) for a in range(0, 3000, 16)),
        row_squares(planted.rows),
        K,
    )
    q = np.full(K, 1e3)
    draws = draw(planted, q, 4000)
    distances = np.sqrt(planted.squares(q, 0, 3000))
    p = distances[1234] / distances.sum()
    deviation = np.sqrt(4000 * p * (1 - p))
    assert abs((draws == 1234).sum() - 4000 * p) <= 5 * deviation


@pytest.mark.parametrize("how", ["assign", "remove"])
def test_a_huge_point_leaves_no_rounding_behind_when_it_goes(how):
    planted = Planted(300, 16, np.random.default_rng(0))
    huge = np.full((1, K), 1e12)
    if how == "remove":
        planted.tree.append(huge)
        planted.tree.remove(np.array([300]), planted.between)
    else:
        before = planted.rows[7].copy()
        for row in (huge[0], before):
            planted.rows[7] = row
            planted.tree.assign(np.array([7]), planted.between)
    planted.check()


@pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("power", [1, 2])
def test_the_compiled_walk_takes_the_same_turns(monkeypatch, power):
    planted = Planted(1000, 4, np.random.default_rng(0))
    Q = np.random.default_rng(1).normal(size=(3, K))

    def draws(held):
        rng = np.random.default_rng(2)
        return planted.tree.sample(Q, 200, power, rng, planted.candidates(Q, held))

    by_loops = draws(held=True)
    np.testing.assert_array_equal(by_loops, draws(held=False))
    monkeypatch.setattr(compiled, "fast", lambda: None)
    np.testing.assert_array_equal(by_loops, draws(held=True))


@pytest.mark.parametrize("power", [1, 2])
def test_draws_that_meet_at_a_leaf_share_its_distances(power):
    planted = Planted(60, 4, np.random.default_rng(0))
    points = planted.candidates(planted.rng.normal(size=(1, K)), held=False)
    asked = []
    plain = points.squares
    points.squares = lambda q, i: asked.append(len(i)) or plain(q, i)
    rng = np.random.default_rng(1)
    planted.tree.sample(points.queries, 5000, power, rng, points)
    # A round for every walk that starts over, each with every leaf once.
    assert sum(asked) <= 60 * 30


def test_a_search_that_is_repeated_has_the_same_draws(monkeypatch):
    """And goes on from where one that is not repeated would."""
    X = np.random.default_rng(0).normal(size=(300, K))
    index, searched = ExactMaintenance(2 * np.eye(K), X), State.searched
    rng, other = np.random.default_rng(1), np.random.default_rng(1)
    expected = [index.sample_exact(X[0], 50, random_state=rng) for _ in range(2)]

    def twice(state, Q, u, search):
        searched(state, Q, u, search)
        return searched(state, Q, u, search)

    monkeypatch.setattr(State, "searched", twice)
    draws = [index.sample_exact(X[0], 50, random_state=other) for _ in range(2)]
    np.testing.assert_array_equal(draws, expected)
