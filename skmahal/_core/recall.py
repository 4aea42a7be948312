"""How many points a search reads for the requested recall, by measurement.

Some points of the index are held out: their exact neighbours are found, and for each of
these the number of points in cells whose centres are nearer than that of its own cell.
A search that takes the nearest cells until they have b points finds the neighbours for
which that number is below b. The smallest b is taken for which their share is at least
the recall with 95 % confidence.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import beta

from .saved import integer_from
from .search import without_own

# Probability that the mean recall of queries like the held ones is below the bound.
LEVEL = 0.05

# Held points: so many, and more if each has few neighbours.
_LEAST_HELD, MOST_HELD = 128, 1000
_PAIRS = 4000

# Recent queries that are enough to measure on.
LEAST_RECENT = 32


# The number of points is no longer known once the index has drifted so much. It is also
# measured again after less, when so many times the work of it has been done since.
_MUCH, _LITTLE = 0.05, 0.01
_WORK = 4


class Probing(NamedTuple):
    """How many points are read for K neighbours, and how that was found.

    The nearest cells are probed until they have `budget` points. `recall` is the mean
    recall of held points or of recent queries, where it is less, and `least` its lower
    bound; `queries` is how many of these there were, and `recent` how many recent
    queries, as of a `version`. `share` of the points are in the cells that are probed,
    and `first_share` were when cells were new. `drift` and `spent` are what the index
    had drifted by, and the work that it had done, when that was measured.
    """

    K: int
    budget: int
    recall: float
    least: float
    queries: int
    recent: int
    share: float
    first_share: float
    version: int
    drift: float
    spent: float

    def is_old(self, drift, spent, cost, has_recent):
        """Whether to measure again, which costs `cost` ns, at a drift and work.

        `has_recent` says whether there are as many recent queries as are ever kept.
        """
        if self.has_moved(drift) or (has_recent and not self.recent):
            return True
        return drift - self.drift >= _LITTLE and spent - self.spent >= _WORK * cost

    def has_moved(self, drift):
        """Whether the index has drifted so far that the recall is not known."""
        return drift - self.drift >= _MUCH


_WHOLE = "queries", "recent", "version"
_REAL = "recall", "least", "share", "first_share", "drift", "spent"


class Reads(NamedTuple):
    """Which points are read before the neighbours of held points are found.

    `before` has for each neighbour how many points are in nearer cells, (points, K),
    and `ends` how many are in the nearest 1, 2, … cells, (points, cells). `always` are
    points that are in no cell, and `last` the positions of the last neighbours.
    """

    before: np.ndarray
    ends: np.ndarray
    always: int = 0
    last: np.ndarray | None = None

    def recall(self, budget):
        """Recall of each held point."""
        return np.mean(self.before < budget, axis=1)

    def points(self, budget):
        """How many points are read on average; the last cell is read to its end."""
        last = np.minimum((self.ends < budget).sum(axis=1), self.ends.shape[1] - 1)
        return float(np.mean(self.ends[np.arange(len(last)), last])) + self.always

    def budget_for(self, recall):
        """The least number of points whose recall is certain enough; all at most."""
        tried = np.unique(self.before) + 1
        # `tried` in which all neighbours of all held points are found is the last.
        low, high = 0, len(tried) - 1
        while low < high:
            middle = (low + high) // 2
            if mean_bounds(self.recall(tried[middle]))[0] >= recall:
                high = middle
            else:
                low = middle + 1
        found = int(tried[low])
        enough = mean_bounds(self.recall(found))[0] >= recall
        return found if enough else int(self.ends[0, -1]) + self.always


def probings_from(values):
    """The saved :class:`Probing` for each number of neighbours."""
    probings = {}
    for saved in values:
        K, budget = (integer_from(saved, name, least=1) for name in ("K", "budget"))
        whole = {name: integer_from(saved, name) for name in _WHOLE}
        rest = {name: float(saved[name]) for name in _REAL}
        probings[K] = Probing(K=K, budget=budget, **whole, **rest)
    return probings


def held_positions(n, K=1):
    """Positions of the points that are held to measure the recall of K neighbours.

    With more neighbours there are fewer, which are the first of the others.
    """
    count = min(max(_LEAST_HELD, -(-_PAIRS // K)), MOST_HELD, n // 4)
    return np.random.default_rng(1).permutation(n)[:count]


def mean_bounds(recalls, level=LEVEL):
    """A lower and an upper bound of the mean recall, each with confidence 1 - `level`.

    The neighbours of a query are found or missed together, so that they count for
    fewer. The bounds are those of Clopper and Pearson for as many independent ones as
    have the same variance [1]_.

    References
    ----------
    .. [1] Korn and Graubard. Confidence intervals for proportions with small expected
       number of positive counts estimated from survey data. Survey Methodology, 1998.

    >>> np.round(mean_bounds(np.ones(300)), 3)
    array([0.99, 1.  ])
    >>> np.round(mean_bounds(np.repeat([1.0, 0.8], [200, 20])), 3)
    array([0.974, 0.988])
    """
    count, mean = len(recalls), float(np.mean(recalls))
    variance = float(np.var(recalls)) / max(1, count - 1)
    # Recalls that are all the same may differ in others: one query stands for itself.
    size = mean * (1 - mean) / variance if variance > 0 else count
    lower = beta.ppf(level, size * mean, size * (1 - mean) + 1) if mean > 0 else 0.0
    upper = beta.isf(level, size * mean + 1, size * (1 - mean)) if mean < 1 else 1.0
    return float(lower), float(upper)


def calibrated(search, K, recall, recent, jobs=1, working_bytes=1 << 24, **rest):
    """The :class:`Probing` that has a recall for K neighbours; `rest` is kept in it.

    `recent` are queries of late, or None: held points and they have the recall each.
    O(nd) at most for each of them. Also returns positions of held points and of their
    last neighbours.
    """
    own = held_positions(search.n, K)
    groups = [(search.queries(search.space.rows[own]), own)]
    if recent is not None and len(recent.squares) >= LEAST_RECENT:
        groups.append((recent, None))
    counts = [len(group[0].squares) for group in groups]
    groups = [reads_of(search, *group, K, jobs, working_bytes) for group in groups]
    budget = max(group.budget_for(recall) for group in groups)
    recalls = [group.recall(budget) for group in groups]
    least, mean, size = min(
        (mean_bounds(r)[0], float(np.mean(r)), len(r)) for r in recalls
    )
    share = float(np.mean([group.points(budget) for group in groups])) / search.n
    first = rest.pop("first_share") or share
    numbers = mean, least, size, sum(counts[1:]), share, first
    return Probing(K, budget, *numbers, **rest), (own, groups[0].last)


def reads_of(search, queries, own, K, jobs=1, working_bytes=1 << 24):
    """The :class:`Reads` for exact neighbours of queries.

    `own` are positions of queries that are points, which are not their own neighbours;
    None if they are not.
    """
    cells, p = search.cells, len(search.cells.starts) - 1
    more = int(own is not None)
    found = search.kneighbors(queries, K + more, jobs, working_bytes)
    near = found[1] if own is None else without_own(own, *found)[1]
    scores = cells.norms - 2 * queries.gradients @ cells.decoded(search.d).T
    order = np.argsort(scores, axis=1, kind="stable").astype(np.int32)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(p, dtype=np.int32)[np.newaxis], axis=1)
    counts = np.diff(cells.starts).astype(np.int32)[order]
    ends = np.cumsum(counts, axis=1, dtype=np.int32)
    # Points in no cell are always looked at.
    labels = cells.labels(search.n)[near]
    ranks = np.take_along_axis(ranks, np.maximum(labels, 0), axis=1)
    before = np.take_along_axis(ends - counts, ranks, axis=1)
    before[labels < 0] = 0
    return Reads(before, ends, int(cells.n - cells.starts[-1]), near[:, -1])
