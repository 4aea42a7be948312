"""Seeds for clustering under the metric of an index: k-means++ and its variants."""

import numpy as np
from sklearn.base import BaseEstimator

from skmahal._core.types import Indices, Power, RandomState

from ._core.checks import as_choice, as_count
from ._core.maintenance import MetricMaintenance
from ._core.threads import thread_count
from ._estimator import generator_from

# Trials of a seed before masses are computed again.
_TRIALS = 16


def sample_seeds(
    index: MetricMaintenance | BaseEstimator,
    n_clusters: int,
    *,
    power: Power = 2,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> Indices:
    """Draw seeds of clusters, each in proportion to its distance from earlier seeds.

    The first seed is a point chosen uniformly. Each other is a point x with probability
    proportional to ``min_s d(x, s) ** power`` over the seeds s drawn so far: with power
    2 this is the seeding of k-means++ [1]_, with power 1 that of k-medians. The law is
    exact, up to rounding of distances.

    Parameters
    ----------
    index : fitted neighbour estimator or MetricMaintenance
        The points, and the metric at present.
    n_clusters : int
        Number of seeds, at most the number of points.
    power : {1, 2}, default=2
        Power of the distance.
    random_state : int, RandomState instance or None, default=None
        Determines the draws.
    n_jobs : int or None, default=None
        Threads. None is as many as BLAS may use.

    Returns
    -------
    indices : ndarray of shape (n_clusters,)
        Positions of the seeds, in the order in which they were drawn. They are distinct
        as long as there are points that differ from all seeds; after that, points are
        drawn uniformly from those that are no seeds.

    Notes
    -----
    The mass of a point, its distance to the nearest seed to the power, can only fall.
    So a seed is drawn in proportion to masses that may be old, and accepted with
    probability new over old mass: that is rejection sampling from the exact law. A
    trial costs O(d) a seed since the masses were computed. They are computed again, in
    one pass over the points for all of these seeds, O(nd) each, only if trials are
    rejected. For comparison, :func:`sklearn.cluster.kmeans_plusplus` makes a pass for
    every seed.

    References
    ----------
    .. [1] Arthur and Vassilvitskii. k-means++: the advantages of careful seeding. SODA
       2007.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors, sample_seeds
    >>> X = np.repeat(np.eye(3) * 9, 50, axis=0)
    >>> index = SketchedMahalanobisNeighbors().fit(X)
    >>> np.sort(sample_seeds(index, 3, random_state=0) // 50)
    array([0, 1, 2])
    """
    if not isinstance(index, MetricMaintenance) and not hasattr(index, "_fitted"):
        kind = type(index).__name__
        raise TypeError(f"index must be a neighbour estimator, got a {kind}.")
    held = index if isinstance(index, MetricMaintenance) else index._fitted()
    power, rng = as_choice("power", power, (1, 2)), generator_from(random_state)
    jobs = thread_count(n_jobs)
    with held.index.lock.reading():
        count = as_count("n_clusters", n_clusters, most=held.n)
        masses = _Masses(held.index, power, int(rng.integers(held.n)), jobs)
        while len(masses.seeds) < count:
            masses.draw(rng)
        return np.array(masses.seeds)


class _Masses:
    """Masses of all points, as of some of the seeds, and the seeds since then."""

    def __init__(self, index, power, first, jobs):
        self.index = index
        self.power = power
        self.jobs = jobs
        self.seeds, self.since = [first], [first]
        self.masses = np.full(index.n, np.inf)
        self._compute()

    def draw(self, rng):
        """Add a seed, a point in proportion to its mass as of all seeds."""
        seed = self._accepted(rng) if self.since else None
        if seed is None:
            self._compute()
            if self.total[-1] > 0:
                seed = self._places(rng, 1)[0]
            else:
                seed = rng.choice(np.delete(np.arange(self.index.n), self.seeds))
        self.seeds.append(int(seed))
        self.since.append(int(seed))

    def _accepted(self, rng):
        """A point drawn by old masses and accepted by its new one, or None."""
        for place in self._places(rng, _TRIALS):
            since = np.full(len(self.since), place), np.array(self.since)
            pairs = np.float64(self.index.pair_distances(*since))
            mass = min(self.masses[place], (pairs**self.power).min())
            if rng.random() * self.masses[place] < mass:
                return place
        return None

    def _places(self, rng, size):
        """Points in proportion to the masses that were computed."""
        if not self.total[-1] > 0:
            return []
        drawn = rng.random(size) * np.nextafter(self.total[-1], 0)
        return np.searchsorted(self.total, drawn, side="right")

    def _compute(self):
        """Masses as of all seeds, in one pass over the points."""
        step = max(1, self.index.working_bytes // (8 * self.index.n))
        for start in range(0, len(self.since), step):
            Q = self.index.X[self.since[start : start + step]]
            nearest = self.index.distances(Q, self.jobs).min(axis=0)
            powers = np.float64(nearest) ** self.power
            np.minimum(self.masses, powers, out=self.masses)
        self.masses[self.seeds] = 0
        self.total, self.since = np.cumsum(self.masses), []
