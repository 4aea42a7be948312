"""After any number of updates, an index is as good as one that is fitted again."""

import numpy as np
import pytest

from skmahal import SketchedMahalanobisNeighbors

from .oracle import Oracle, assert_nearest

N, D, K = 60, 12, 10
SKETCHED = {"m": 3, "L": 2, "R": 1, "lead": 2, "delta": 1e-9}
SEARCHES = {"exact": {}, "certified": {**SKETCHED, "n_candidates": "certified"}}

# Relative error of squared lengths under the metric, and of a distance.
DRIFT = 4e-12
RTOL = {np.float32: 1e-6, np.float64: 1e-10}


class Mixed:
    """An index with every array in use, and changes of all kinds in random order."""

    def __init__(self, search, dtype):
        self.rng, self.dtype = np.random.default_rng(0), dtype
        self.index = SketchedMahalanobisNeighbors(
            3, metric_learner=self.normal(K, D), random_state=0, **SEARCHES[search]
        ).fit(self.normal(N, D))
        self.changes = [
            self.step,
            self.step,
            self.step,
            self.set_row,
            self.add_to_row,
            self.replace_point,
            self.add_point,
            self.remove_point,
        ]

    def normal(self, *shape):
        return self.rng.normal(size=shape).astype(self.dtype)

    def change(self):
        if self.rng.random() < 0.01:
            self.resize()
        else:
            self.changes[self.rng.integers(len(self.changes))]()

    def step(self):
        """Of rank one, with a pull to zero that keeps the metric from wandering off."""
        w, v = 0.1 * self.normal(K, 1), self.normal(D, 1)
        pull = -0.02 * self.index.components_ @ v
        self.index.update_metric(low_rank=(np.hstack([w, pull]), np.hstack([v, v])))

    def set_row(self):
        self.index.update_metric(self.normal(1, D), rows=[self.rng.integers(K)])

    def add_to_row(self):
        row = self.rng.integers(K)
        self.index.update_metric(0.1 * self.normal(1, D), rows=[row], additive=True)

    def resize(self):
        """A column of U, up and down by a large factor: rounding must not stay."""
        column = self.index.components_[:, :1]
        factor = 1000 if np.linalg.norm(column) < 100 else 1 / 1000
        e = np.eye(D, 1, dtype=self.dtype)
        self.index.update_metric(low_rank=((factor - 1) * column, e))

    def replace_point(self):
        self.index.update_points([self.rng.integers(40)], self.normal(1, D))

    def add_point(self):
        if self.index.n_samples_fit_ < 2 * N:
            self.index.partial_fit(self.normal(1, D))

    def remove_point(self):
        if self.index.n_samples_fit_ > N // 2 + 10:
            self.index.remove_points([self.rng.integers(self.index.n_samples_fit_)])


def assert_good(index, Q, dtype):
    """The drift is as stated, and neighbours are those of metric and points."""
    drift = index.check()
    assert drift <= DRIFT
    oracle = Oracle(index.components_, index._maintenance.X)
    truth = oracle.query_all(Q)
    assert_nearest(*index.kneighbors(Q), truth, rtol=RTOL[dtype], atol=0)
    np.testing.assert_allclose(
        index.sum_distances(Q), (truth**2).sum(axis=1), rtol=RTOL[dtype]
    )
    return drift


def follow(search, dtype, updates, every, count):
    mixed, drifts = Mixed(search, dtype), []
    Q = mixed.normal(4, D)
    for at in range(updates):
        mixed.change()
        if at % every == 0:
            mixed.index.distances(Q)
            mixed.index.sample(Q)
            drifts.append(assert_good(mixed.index, Q, dtype))
    count("updates followed", updates)
    # Without any drift, everything would have been computed again.
    assert max(drifts) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "dtype", "updates"),
    [
        ("certified", np.float32, 1500),
        ("certified", np.float64, 500),
        ("exact", np.float32, 500),
        ("exact", np.float64, 500),
    ],
)
def test_mixed_updates_stay_within_the_stated_drift(search, dtype, updates, count):
    follow(search, dtype, updates, 50, count)


@pytest.mark.stress
def test_a_hundred_thousand_mixed_updates_stay_within_the_stated_drift(count):
    follow("certified", np.float32, 100_000, 500, count)
