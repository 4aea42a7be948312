"""Exact neighbours in float64, and how near to them an answer comes."""

import numpy as np
from scipy.stats import chi2
from sklearn.utils.extmath import randomized_svd

_SPARE = 50
_TOLERANCE = 1e-6
_SAMPLE = 2000


class Truth:
    """The exact neighbours of queries.

    Candidates are found in float32, K and some to spare, and ranked in float64 from the
    points and the metric themselves.
    """

    def __init__(self, problem, Y, K):
        self._problem = problem
        candidates = _nearest(Y, transformed(problem.Q, problem.U), K + _SPARE)
        self.kth = np.sort(self._distances(candidates), axis=1)[:, K - 1]
        self.K = K

    def recall(self, indices):
        """Share of the K places held by points that are truly among the K nearest."""
        d = self._distances(indices)
        right = d <= self.kth[: len(indices), None] * (1 + _TOLERANCE)
        found = [
            len(np.unique(row[ok])) for row, ok in zip(indices, right, strict=True)
        ]
        return float(np.minimum(found, self.K).mean() / self.K)

    def _distances(self, indices):
        """Distances in float64 of queries from the points given for each."""
        X, U, Q = self._problem
        if U is not None:
            U = U.astype(np.float64)
        d = np.empty(indices.shape)
        for row, points in enumerate(indices):
            gap = X[points].astype(np.float64) - Q[row]
            d[row] = np.linalg.norm(transformed(gap, U), axis=1)
        return d


def transformed(X, U):
    """Rows under U; the same rows where U is None."""
    return X if U is None else X @ U.T


def surviving_share(Y, u, kth, K, delta=0.01, queries=100, seed=0):
    """Share of the points that a certified bound leaves open, on average.

    The bound is that of r leading directions and one Gaussian sketch of m rows with
    r = m = 64, a quarter of the dimension at the most: a point stays open if
    ``‖Pᵀ(u - y)‖² + ‖G(u - y)‖² / (1 + ε)²`` is not above the squared K-th distance,
    with 1 + ε from the upper χ² tail at delta / K. The same sizes for all data, so that
    the figure tells about the data and not about the settings of an index.
    """
    k = Y.shape[1]
    m = max(1, min(64, k // 4))
    rng = np.random.default_rng(seed)
    sample = Y[np.sort(rng.permutation(len(Y))[:_SAMPLE])]
    _, _, P = randomized_svd(sample - sample.mean(axis=0), m, random_state=0)
    P = P.astype(Y.dtype)
    Pi = rng.standard_normal((m, k), dtype=np.float32) / np.float32(np.sqrt(m))
    G = Pi - (Pi @ P.T) @ P
    G *= np.float32(np.sqrt(m / chi2.isf(delta / K, m)))
    maps = np.vstack([P, G]).T
    squares = _squares(Y @ maps, u[:queries] @ maps)
    return float(np.mean(squares <= kth[:queries, None] ** 2))


def _nearest(Y, u, count):
    """Positions of the `count` nearest rows of Y for each row of u, in float32."""
    count = min(count, len(Y))
    found = np.empty((len(u), count), dtype=np.intp)
    step = max(1, (1 << 24) // len(Y))
    norms = _row_squares(Y)
    for start in range(0, len(u), step):
        here = slice(start, start + step)
        D = norms - 2 * (u[here] @ Y.T)
        found[here] = np.argpartition(D, count - 1, axis=1)[:, :count]
    return found


def _squares(Y, u):
    D = _row_squares(Y) + _row_squares(u)[:, None]
    D -= 2 * (u @ Y.T)
    return D


def _row_squares(Y):
    return np.einsum("ij,ij->i", Y, Y)
