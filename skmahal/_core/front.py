"""How many leading directions and sketch rows the search for neighbours looks at.

A search compares every point by `lead` exact directions and by `head` sketch rows, the
first of one sketch or all of several, and evaluates the points that this cannot
exclude. The other rows are for estimates. More columns cost more for every point and
leave fewer points; where the balance lies depends on the data, so both are chosen by
trying them on a sample.
"""

from typing import NamedTuple

import numpy as np

from .tiles import Part, lower_bounds, row_squares

QUERIES = 32
_LEADS = (0, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_HEADS = (8, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256)
_BANKS = (1, 2, 3, 5, 10, 20, 50)

# Costs in units of one column of one point in a matrix product, as measured with
# numba, OpenBLAS and AVX-512: writing and reading a bound, starting on a candidate, and
# reading one number of it from memory.
_BOUND = 25
_CANDIDATE = 5000
_NUMBER = 8

# Brute force for the few queries of a batch that are left takes longer a query.
_LEFT = 2
_FEW_POINTS = 64

# Numbers between this and its inverse have squares in float32, and sums of them.
_LARGE = 1e15

# What is not in the model, as the choice of a sketch for every query, also takes time.
_TRUST = 0.75


class Front(NamedTuple):
    """A choice, with the cost of a query by it and by brute force."""

    lead: int
    head: int
    cost: float
    exact_cost: float

    @property
    def pays(self):
        """Whether it is cheaper than brute force, by enough to trust the model."""
        return self.cost < _TRUST * self.exact_cost


def cost(n, k, columns, candidates):
    """Cost of a query that compares `columns` of every point, for candidates left.

    Examples
    --------
    >>> float(cost(1000, 500, 64, 20)) < float(exact_cost(1000, 500))
    True
    """
    per_candidate = _CANDIDATE + _NUMBER * k
    return (n + k) * columns + _BOUND * n + candidates * per_candidate


def exact_cost(n, k):
    """Cost of a query that compares all k columns of every point."""
    return n * (k + _BOUND)


def most_open(n, k, few):
    """Points up to which evaluating those costs less than brute force.

    Few queries share little of what brute force reads from memory. And a few points
    cost less than to begin anew.

    Examples
    --------
    >>> most_open(10_000, 500, few=False), most_open(10_000, 500, few=True)
    (1166, 4444)
    """
    per_point = _NUMBER * k if few else _LEFT * (k + _BOUND)
    return max(_FEW_POINTS, int(n * per_point / (_CANDIDATE + _NUMBER * k)))


def choose(rows, coordinates, n, K, heads, leads, votes, rng):
    """The cheapest of a grid for n points, of which `rows` are a sample.

    Parameters
    ----------
    rows : ndarray of shape (sample, k)
        Transformed points.
    coordinates : ndarray of shape (sample, at least the largest of `leads`)
        The same along the leading directions.
    n, K : int
        Numbers of points, and of neighbours to find among them.
    heads : dict
        For each number of sketch rows, what an estimate is multiplied by to be a bound.
    leads : iterable of int
        Numbers of leading directions.
    votes : int
        Sketches that serve a query.
    rng : numpy Generator

    Returns
    -------
    front : Front

    Notes
    -----
    Points of the sample are the queries. The distance to the K-th of n points is that
    to the K/n quantile of the sample, and an estimate from m rows is simulated by a
    chi-squared number. A query costs at most the comparison and brute force. O(grid ·
    queries · sample), and one product of queries and sample.
    """
    k, queries = rows.shape[1], min(QUERIES, len(rows))
    rows, coordinates = _in_range(rows, coordinates)
    squares = _pairwise(rows, queries)
    rank = min(len(rows) - 1, max(1, round(K * len(rows) / n)))
    limits = np.partition(squares, rank, axis=1)[:, rank, np.newaxis]
    noise = rng.standard_normal(squares.shape, dtype=np.float32)
    estimates = {
        m: np.float32(shrink) * _chi_squared(m * votes, noise)
        for m, shrink in heads.items()
    }
    full = exact_cost(n, k)
    best = None
    for r in leads:
        kept = _pairwise(coordinates[:, :r], queries)
        rest = np.maximum(squares - kept, 0)
        for m, estimate in estimates.items():
            candidates = n * (estimate * rest + kept <= limits).mean(axis=1)
            looked_at = cost(n, k, r + m * votes, 0)
            each = np.minimum(cost(n, k, r + m * votes, candidates), looked_at + full)
            if best is None or each.mean() < best.cost:
                best = Front(r, m, float(each.mean()), float(full))
    return best


def lead_grid(most):
    """Numbers of leading directions to try, up to `most`.

    >>> lead_grid(20)
    [0, 8, 16]
    """
    return [r for r in _LEADS if r <= most]


def head_grid(m, L=1):
    """Numbers of sketch rows to try: of one sketch of m rows, and whole ones up to L.

    >>> head_grid(30, L=10)
    [8, 16, 24, 30, 60, 90, 150, 300]
    """
    whole = {size for size in _BANKS if size < L} | {L}
    return [size for size in _HEADS if size < m] + [m * size for size in sorted(whole)]


def _in_range(rows, coordinates):
    """Both in float32, and of size one where squares would leave its range.

    Examples
    --------
    >>> _in_range(np.array([[1e200, -4e200]]), np.array([[2e200]]))
    (array([[ 0.25, -1.  ]], dtype=float32), array([[0.5]], dtype=float32))
    """
    size = max(rows.max(), -rows.min())
    if size and not 1 / _LARGE < size < _LARGE:
        rows, coordinates = rows / size, coordinates / size
    return tuple(part.astype(np.float32, copy=False) for part in (rows, coordinates))


def _pairwise(rows, queries):
    """Squared distances from the first rows to all, in float32."""
    norms = row_squares(rows).astype(np.float32)
    D = lower_bounds([Part(rows[:queries], rows, norms)], slack=0)
    D[np.arange(queries), np.arange(queries)] = 0
    return np.maximum(D, 0, out=D)


def _chi_squared(m, noise):
    """Numbers of the law χ²(m)/m, from standard normal ones (Wilson and Hilferty)."""
    spread = 2 / (9 * m)
    return np.maximum(1 - spread + np.float32(np.sqrt(spread)) * noise, 0) ** 3
