"""Seeds follow the law of k-means++ exactly, and take few passes over the points."""

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.cluster import kmeans_plusplus

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors, sample_seeds
from skmahal._core.index import Index
from tests.core.data import clusters

TINY_TAIL = 1e-6
U = np.array([[2.0, 0.5], [0.0, 1.0]])
FEW = np.random.default_rng(0).normal(size=(6, 2))


def law_of_three(X, power):
    """Probabilities of all ordered triples of seeds, by brute force."""
    d = np.linalg.norm((X[:, None] - X) @ U.T, axis=2) ** power
    n = len(X)
    law = np.zeros((n, n, n))
    for a in range(n):
        for b in range(n):
            if d[a, b] > 0:
                nearest = np.minimum(d[a], d[b])
                p = d[a, b] / d[a].sum() / n
                law[a, b] = p * nearest / nearest.sum()
    return law


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("trials", [0, 1, 16])
def test_seeds_follow_the_law(power, trials, monkeypatch):
    """Whether masses are computed anew for every seed, or trials are made before."""
    monkeypatch.setattr("skmahal.seeding._TRIALS", trials)
    index = MetricMaintenance(U, FEW)
    draws, rng = 3000, np.random.RandomState(power)
    counts = np.zeros((6, 6, 6))
    for _ in range(draws):
        counts[tuple(sample_seeds(index, 3, power=power, random_state=rng))] += 1
    law = law_of_three(FEW, power)
    assert counts[law == 0].sum() == 0
    often = law * draws >= 5
    observed, expected = counts[often], draws * law[often]
    if expected.sum() < draws - 5:
        observed = np.append(observed, draws - observed.sum())
        expected = np.append(expected, draws - expected.sum())
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.isf(TINY_TAIL, len(expected) - 1)


def test_few_passes_are_made_over_the_points(monkeypatch):
    X = clusters(4000, 20, count=100, noise=0.1)
    index, passes = SketchedMahalanobisNeighbors().fit(X), []
    whole = Index.distances

    def counted(self, Q, *args, **kwargs):
        passes.append(len(Q))
        return whole(self, Q, *args, **kwargs)

    monkeypatch.setattr(Index, "distances", counted)
    seeds = sample_seeds(index, 150, random_state=0)
    assert len(set(seeds)) == 150
    assert len(passes) < 30


def test_seeds_are_as_good_as_those_of_scikit_learn():
    """The mean potential of 40 draws, of which either has its own spread."""
    X, k = clusters(1000, 5, count=30, noise=0.2), 30
    index = MetricMaintenance(None, X)

    def potential(seeds):
        gaps = np.linalg.norm(X[:, None] - X[seeds], axis=2)
        return (gaps.min(axis=1) ** 2).sum()

    ours = [potential(sample_seeds(index, k, random_state=s)) for s in range(40)]
    theirs = [
        potential(kmeans_plusplus(X, k, n_local_trials=1, random_state=s)[1])
        for s in range(40)
    ]
    assert stats.ks_2samp(ours, theirs).pvalue > TINY_TAIL


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_matrix, np.float32])
def test_every_kind_of_index_has_seeds(storage):
    X = storage(clusters(300, 8, count=5, noise=0.01))
    index = SketchedMahalanobisNeighbors(metric_learner=np.eye(8)[:6]).fit(X)
    seeds = sample_seeds(index, 5, random_state=0, n_jobs=2)
    dense = X.toarray() if sparse.issparse(X) else X
    nearest = np.linalg.norm((dense[:, None] - dense[seeds])[..., :6], axis=2)
    assert nearest.min(axis=1).max() < 0.2
    np.testing.assert_array_equal(seeds, sample_seeds(index, 5, random_state=0))


def test_equal_points_are_drawn_once_others_are_used_up():
    index = MetricMaintenance(None, np.repeat([[0.0], [1.0]], 4, axis=0))
    seeds = sample_seeds(index, 8, random_state=0)
    assert sorted(seeds) == list(range(8))
    assert abs(seeds[0] // 4 - seeds[1] // 4) == 1


def test_the_metric_of_the_moment_counts():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    index = SketchedMahalanobisNeighbors().fit(X)
    index.update_metric([[1e-6, 0.0]], rows=[0])
    first = [sample_seeds(index, 2, random_state=s) for s in range(30)]
    assert all({0, 1} != set(pair) for pair in first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_clusters": 7}, "n_clusters must be an integer from 1 to 6"),
        ({"n_clusters": 2, "power": 3}, "power must be 1 or 2"),
        ({"n_clusters": 2, "random_state": "a"}, "random_state"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        sample_seeds(MetricMaintenance(U, FEW), **arguments)


@pytest.mark.parametrize("index", [FEW, None, "index"])
def test_what_is_no_index_is_named(index):
    with pytest.raises(TypeError, match="index must be a neighbour estimator, got a"):
        sample_seeds(index, 2)
