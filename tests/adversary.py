"""Attackers who see public results only, and who know the points and the metric.

Each makes `count` queries and returns unit vectors, the rows of an array, whose lengths
it expects to be reported as too small or too large. Each works on any object that has
the public methods of an index, over two points ``points = [a, -a]`` under the Euclidean
metric. This is no restriction: an attacker who knows U would choose ``U q`` like this.

What can be learned of a sketch Π is the matrix ``ΠᵀΠ``. It is the identity on average;
its largest eigenvalues are near ``(1 + √(k/m))²``, and k - m of them are zero.
"""

import numpy as np

from skmahal import MahalanobisSketch

ATTACKS = {}
_PLACED = 500
_AT_ONCE = 16


def attack(function):
    """List a function among the attacks, by its name."""
    ATTACKS[function.__name__] = function
    return function


class OneSketch:
    """A :class:`MahalanobisSketch` that reports distances and shows no vector."""

    def __init__(self, points, **parameters):
        self._sketch = MahalanobisSketch(**parameters).fit(points)
        self._points = self._sketch.transform(points)

    def distances(self, X):
        gaps = self._sketch.transform(X)[:, np.newaxis] - self._points
        return np.linalg.norm(gaps, axis=2)

    def kneighbors(self, X, n_neighbors, return_distance=False):
        assert not return_distance, "the attackers look at indices only"
        return np.argsort(self.distances(X), axis=1)[:, :n_neighbors]

    def pair_distances(self, i, j):
        return np.linalg.norm(self._points[i] - self._points[j], axis=-1)

    def partial_fit(self, X):
        self._points = np.vstack([self._points, self._sketch.transform(X)])

    def remove_points(self, indices):
        self._points = np.delete(self._points, indices, axis=0)


class Structure:
    """A :class:`MetricMaintenance` under the names of the estimator's methods."""

    def __init__(self, maintenance):
        self.maintenance = maintenance
        self.distances = maintenance.query_all
        self.pair_distances = maintenance.query_pair
        self.partial_fit = maintenance.append
        self.remove_points = maintenance.remove

    def kneighbors(self, X, n_neighbors, return_distance=False):
        assert not return_distance, "the attackers look at indices only"
        return self.maintenance.kneighbors(X, n_neighbors, n_neighbors)[1]


class Refreshing:
    """An index whose sketches are drawn again before every `every` queries."""

    def __init__(self, index, every):
        self._index, self._every = index, every

    def distances(self, X):
        return np.concatenate([self._index.distances(Q) for Q in self._turns(X)])

    def kneighbors(self, X, n_neighbors, return_distance=False):
        found = [
            self._index.kneighbors(Q, n_neighbors, return_distance=return_distance)
            for Q in self._turns(X)
        ]
        return np.concatenate(found)

    def pair_distances(self, i, j):
        turns = self._turns(j)
        return np.concatenate([self._index.pair_distances(i, part) for part in turns])

    def partial_fit(self, X):
        self._index.partial_fit(X)

    def remove_points(self, indices):
        self._index.remove_points(indices)

    def _turns(self, queries):
        for start in range(0, len(queries), self._every):
            self._index.refresh_sketches()
            yield queries[start : start + self._every]


def reported_lengths(index, points, vectors):
    """Lengths of vectors by the index: how far they are from the first point."""
    return index.distances(points[0] + vectors)[:, 0]


def placed_lengths(index, points, vectors):
    """Lengths of vectors by the index: distances of points that are added for this."""
    n, lengths = len(points), []
    for start in range(0, len(vectors), _PLACED):
        batch = vectors[start : start + _PLACED]
        index.partial_fit(points[0] + batch)
        placed = np.arange(n, n + len(batch))
        lengths.append(index.pair_distances(0, placed))
        index.remove_points(placed)
    return np.concatenate(lengths)


@attack
def regression(index, points, count, rng):
    """Extreme eigenvectors of the quadratic form that explains the estimates.

    The squared estimate for a vector v is ``vᵀ M v``. For random unit vectors,
    ``E[(d̂² - 1) v vᵀ]`` has the eigenvectors of M, and so has the sum, in the end.
    """
    vectors = unit(rng.normal(size=(count, points.shape[1])))
    return _extremes(vectors, reported_lengths(index, points, vectors))


@attack
def placing(index, points, count, rng):
    """Regression on distances between points that the attacker adds."""
    vectors = unit(rng.normal(size=(count, points.shape[1])))
    return _extremes(vectors, placed_lengths(index, points, vectors))


@attack
def summing_by_neighbours(index, points, count, rng):
    """Sum of queries, each with the sign of the point that was reported as nearer.

    ``‖Π(q - a)‖² - ‖Π(q + a)‖² = -4 qᵀΠᵀΠ a``: the result is the sign of q along
    ``w = ΠᵀΠ a``, and the sum turns to w. This lies in the row space of Π, where
    lengths are near ``√(1 + k/m)`` times too long. No distance needs to be reported:
    the point that is returned is enough if estimates decide it, as they do with an
    integer `n_candidates`. Exact neighbours reveal nothing.
    """
    Q = rng.normal(size=(count, points.shape[1]))
    nearest = index.kneighbors(Q, 1, return_distance=False)[:, 0]
    return unit(np.where(nearest == 0, 1, -1) @ Q)[np.newaxis]


@attack
def summing_by_distances(index, points, count, rng):
    """Sum of queries, each with the sign of the point of smaller reported distance."""
    Q = rng.normal(size=(count, points.shape[1]))
    to_first, to_second = index.distances(Q)[:, :2].T
    return unit(np.sign(to_second - to_first) @ Q)[np.newaxis]


@attack
def watching(index, points, count, rng):
    """Sum of queries near the middle of two points whose order is reported wrongly.

    Who knows the points knows their order. Estimates order them by ``w = ΠᵀΠ a`` and
    not by a, so that the queries whose order is wrong lie between the two, and their
    sum, with the signs of the report, turns to w. What the index says of itself, if it
    does, tells how near the middle the queries have to be.
    """
    eps = index.guarantee().eps if hasattr(index, "guarantee") else 0.3
    if hasattr(index, "audit"):
        ratios = index.audit(200, random_state=0).ratios
        eps = max(1e-3, min(eps, ratios[1.0] - ratios[0.0]))
    Q = rng.normal(size=(count, points.shape[1]))
    middle = points[0] - points[1]
    along = Q @ middle / (middle @ middle)
    Q -= ((1 - eps) * along)[:, np.newaxis] * middle
    order = np.argsort(index.distances(Q)[:, :2], axis=1, kind="stable")[:, 0]
    wrong = (order == 0) != (along > 0)
    if not wrong.any():
        return unit(middle)[np.newaxis]
    return unit(np.where(order == 0, 1, -1)[wrong] @ Q[wrong])[np.newaxis]


@attack
def greedy(index, points, count, rng):
    """The shortest and the longest unit vector found by trying, each from the last."""
    shorter = _climb(lambda V: -reported_lengths(index, points, V), points, count, rng)
    longer = _climb(lambda V: reported_lengths(index, points, V), points, count, rng)
    return np.stack([shorter, longer])


def _climb(height, points, count, rng):
    """A high unit vector, by steps in random directions from the best one so far.

    The step grows while it leads higher, and shrinks while it does not. Each of the two
    climbs has half of the queries.
    """
    best = unit(rng.normal(size=points.shape[1]))
    reached, step = height(best[np.newaxis])[0], 0.5
    for _ in range(count // (2 * _AT_ONCE)):
        steps = step * unit(rng.normal(size=(_AT_ONCE, len(best))))
        tried = unit(best + steps)
        heights = height(tried)
        higher = heights.max() > reached
        step *= 1.3 if higher else 0.8
        if higher:
            best, reached = tried[heights.argmax()], heights.max()
    return best


def _extremes(vectors, lengths):
    """Unit vectors along which these lengths grow least and most."""
    moments = (vectors * (lengths**2 - 1)[:, np.newaxis]).T @ vectors
    return np.linalg.eigh(moments)[1][:, [0, -1]].T


def unit(vectors):
    """Vectors in the same directions, of length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
